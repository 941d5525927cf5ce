"""The gallery, judged: every kernel in a process of its own, which may crash or hang; a row of a table for each."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd

from fa_lib.check.findings import Finding, Judgement, Severity
from fa_lib.check.judge import judge_kernel
from fa_lib.check.kernel import QUICK, Depth, examine
from fa_lib.execution.files import replacing
from fa_lib.execution.fingerprint import code_version, digest
from fa_lib.execution.sweep import sweep
from fa_lib.experiments.finds import FINDS
from fa_lib.experiments.variant import known
from fa_lib.gallery.catalogue import ENTRIES, Entry, installed

GALLERY = Depth(
    lengths=(128, 1500, 4096, 16384), seeds=2, shapes=("97", "113 x 203", "causal 203", "GQA 384", "256"), head_dims=(),
    troubled_n=512, bias_seeds=3, runs=3, square=1500,
)  # fmt: skip
ONE_BY_ONE = ("ggml_decode", "ggml_decode_1_thread", "ggml_decode_v_fp32", "ggml_few", "ggml_q8_0", "ggml_q4_0",
              "whisper_decode", "whisper_few", "onnx_group_query_decode", "pallas_gpu_decode")  # fmt: skip
SLOW = ("pallas", "flash_jax")  # files whose kernels are interpreted, or compiled anew for every shape
FIVE = ("ggml_decode", "ggml_prefill", "ring_16_bit_logits", "onnx_attention", "transformers_eager")  # of a quick look
LIMIT_S = 600  # of one kernel
QUERIES = {"1": "1", "16": "16", "many": "as many as keys"}


def judge_all(keys: Sequence[str], quick: bool, folder: Path, say: Callable, jobs: int = 2) -> pd.DataFrame:
    """Judge kernels of the gallery, and keep what each came to below `folder`; what is there already is not judged
    again, unless its code, its library's version or the depth has changed.

    Args:
        keys: of gallery.catalogue.ENTRIES. quick: seconds for each kernel instead of a minute.
        say: told when a kernel is done. jobs: kernels at a time.

    Returns:
        `row` of each, in the order of keys.

    Raises:
        ValueError: a key is unknown.
    """
    entries = [known("kernel", key, ENTRIES) for key in keys]
    left = [entry for entry in entries if not entry.problem and not _kept(entry, quick, folder)]
    say(f"{len(entries)} kernels: {len(entries) - len(left)} done before or not to be had here, {len(left)} to judge")

    def judge(entry):
        problem = _in_a_process(entry, quick, folder)
        say(f"{entry.key}: {problem or _read(entry, folder)['verdict']}")

    with ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(judge, entry) for entry in left]:
            done.result()
    return pd.DataFrame([row(entry, None if entry.problem else _read(entry, folder)) for entry in entries])


def judge_one(key: str, quick: bool, folder: Path) -> None:
    """Judge one kernel in this process: a record with its findings and numbers, below `folder`."""
    entry, kernel = ENTRIES[key], f"fa_lib.gallery:{key}"
    found = examine(kernel, _depth(entry, quick), cache=f"{folder / 'cells'}", beside=())
    record = judge_kernel(kernel, found).record() | dict(numbers=errors(found["lengths"]))
    _write(entry, folder, dict(key=_key(entry, quick), problem="") | record)


def row(entry: Entry, record: dict | None) -> dict[str, Any]:
    """What a kernel came to.

    Args:
        record: of `judge_one`; None where the kernel cannot run here.

    Returns:
        key, project, version (of its distribution), use; verdict ("passes", "fails", "not_judged", "cannot_run");
        times_1, times_16, times_many: largest error over Baseline's by number of queries, the largest over formats, N
        and ordinary inputs, inf where an output is not finite; relative_1 and so on: largest relative error;
        carries, carried_in, tile: the sums carried in low precision, their format and tile; outwards and
        baseline_outwards (ulp), gradients (largest error over Baseline's), problem.
    """
    told = dict(key=entry.key, project=entry.project, version=installed(entry.needs[0]) or "", use=entry.use)
    if record is None or "findings" not in record:
        verdict = "cannot_run" if record is None else record["verdict"]
        return told | dict(verdict=verdict, problem=entry.problem if record is None else record["problem"])
    found = _findings(record)
    low = [f for f in found if f.what == "carry" and f.severity == Severity.FAILS]
    carried = dict(
        carries=" ".join(dict.fromkeys(f.where["sum"] for f in low)),
        carried_in=" ".join(dict.fromkeys(f.where["fmt"] for f in low)),
        tile=max((f.where["tile"] or 0 for f in low), default=0) or None,
    )
    gradients = max((f.number for f in found if f.what == "gradients" and f.number), default=None)
    side = next((f for f in found if f.what == "outwards"), None)
    bias = dict(outwards=side and side.number, baseline_outwards=side and side.where.get("baseline"))
    causes = dict.fromkeys(f.what for f in found if f.severity == Severity.FAILS or f.what == "rounded_splits")
    return told | dict(verdict=record["verdict"]) | record["numbers"] | carried | bias | dict(
        gradients=gradients, cause=" ".join(causes), problem="",
    )  # fmt: skip


def errors(lengths: pd.DataFrame) -> dict[str, float]:
    """times_<queries> and relative_<queries> of a table of `kernel.measure`, see `row`; NaN where nothing ran."""
    numbers = {}
    if not len(lengths):
        return numbers
    groups = lengths.queries.where(lengths.queries < lengths.n, "many").astype(str)
    for queries, rows in lengths.groupby(groups):
        if queries in QUERIES:
            broken = (rows.outcome == "broken") & rows.problem.str.contains("infinite")
            numbers[f"times_{queries}"] = float("inf") if broken.any() else float(rows.times_max.max())
            numbers[f"relative_{queries}"] = float("inf") if broken.any() else float(rows.relative.max())
    return numbers


def judgement_of(key: str, folder: Path) -> Judgement | None:
    """The Judgement that `judge_one` left below `folder`; None where the kernel did not come to an end."""
    record = _read(ENTRIES[key], folder)
    return Judgement("kernel", record["subject"], tuple(_findings(record))) if "findings" in record else None


def _findings(record):
    return [Finding(**each | dict(severity=Severity(each["severity"]))) for each in record["findings"]]


def prove(cache: str = "") -> dict[str, pd.DataFrame]:
    """The tables of the three finds: find -> rows of `experiments.finds`, with the parameters of each."""
    on = dict(distribution=["uniform", "normal"], seed=range(2))

    def over(find, **grid):
        return sweep(FINDS[find], grid | on, cache=cache)

    lengths = over("ggml", n=[512, 1024, 2048, 4096, 8192, 16384], queries=1, threads=2)
    queries = over("ggml", n=4096, queries=[63, 64], threads=2)
    threads = over("ggml", n=16384, queries=1, threads=[1, 8])
    return dict(
        ggml=pd.concat([lengths, queries, threads], ignore_index=True),
        ringattention=over("ringattention", n=[512, 2048, 8192]),
        pallas_decode=over("pallas_decode", n=4096, splits=[1, 4, 16]),
    )


def _depth(entry, quick):
    if quick:
        return QUICK
    depth = replace(GALLERY, lengths=(128, 512, 1024, 4096), square=512) if entry.module in SLOW else GALLERY
    return replace(depth, square=128, troubled_n=128) if entry.key in ONE_BY_ONE else depth  # a call for each query


def _key(entry, quick):
    """What a record depends on."""
    versions = {name: installed(name) for name in entry.needs}
    return digest(
        [
            code_version(judge_one, [dict(kernel=f"fa_lib.gallery:{entry.key}")], []),
            versions,
            asdict(_depth(entry, quick)),
        ]
    )


def _in_a_process(entry, quick, folder):
    """Judge a kernel in a process of its own; "" or what became of it, which its record says too.

    Raises:
        RuntimeError: an error of ours, not of the kernel's, which would be a row.
    """
    given = f"{entry.key!r}, {quick}, Path({str(folder)!r})"
    code = f"from pathlib import Path; from fa_lib.survey import judge_one; judge_one({given})"
    command, environment = [sys.executable, "-c", code], os.environ | dict(OMP_NUM_THREADS="1")
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        verdict, problem = "not_judged", f"took longer than {LIMIT_S} s"
    else:
        if done.returncode == 0:
            return ""
        if done.returncode > 0:
            raise RuntimeError(f"gallery: judging {entry.key} failed:\n{done.stderr}")
        verdict, problem = "fails", f"ended its process by signal {-done.returncode}"
    _write(entry, folder, dict(key=_key(entry, quick), verdict=verdict, problem=problem))
    return problem


def _path(entry, folder):
    return folder / f"{entry.key}.json"


def _write(entry, folder, record):
    with replacing(_path(entry, folder)) as path:
        path.write_text(json.dumps(record, indent=1) + "\n")


def _read(entry, folder):
    return json.loads(_path(entry, folder).read_text())


def _kept(entry, quick, folder):
    """Whether a record of this code is there, and the kernel came to an end."""
    try:
        record = _read(entry, folder)
    except (OSError, ValueError):
        return False
    return record.get("key") == _key(entry, quick) and not record["problem"]
