"""The gallery, judged: every kernel in a separate process, which may crash or hang; a row of a table for each."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from fa_lib import kernels
from fa_lib.check.isolation.worker import Outcome
from fa_lib.check.judge.findings import Judgement, Severity
from fa_lib.check.judge.kernel import judge_kernel
from fa_lib.check.measure.draws import OF_LENGTHS, worst_draws
from fa_lib.check.measure.examine import examine
from fa_lib.check.measure.plan import QUICK, CheckPlan
from fa_lib.check.measure.relations import RELATIONS
from fa_lib.execution import process_settings
from fa_lib.execution.files import replacing
from fa_lib.execution.fingerprint import code_version, digest
from fa_lib.execution.forked_calls import call_each
from fa_lib.execution.lookup import lookup
from fa_lib.execution.pools import workers
from fa_lib.execution.sweep import sweep
from fa_lib.experiments.finds import FINDS
from fa_lib.gallery.caches import HELD, over_bits
from fa_lib.gallery.catalogue import CATALOGUES
from fa_lib.gallery.entry import FEW_QUERIES, Entry, installed
from fa_lib.gallery.openvino_kernels import computes_fp16_in_bf16
from fa_lib.kernels.rule import ALLOWED

GALLERY = CheckPlan(
    lengths=(128, 1500, 4096, 16384), seeds=2, shapes=("97", "113 x 203", "causal 203", "GQA 384", "256"), head_dims=(),
    troubled_n=512, bias_seeds=3, runs=3, square=1500, relations=(*RELATIONS,),
)  # fmt: skip
ON_GPU = CheckPlan(  # a kernel in a minute or less, most of it Triton's compiler
    lengths=(128, 1024, 16384), seeds=2, shapes=("97", "causal 203", "GQA 384", "256"), head_dims=(), troubled_n=128,
    bias_seeds=3, runs=3, square=1024, relations=(*RELATIONS,),
)  # fmt: skip
MODELLED = CheckPlan(  # a GPU kernel on a CPU, in some minutes of one core
    lengths=(128, 512, 4096), seeds=1, shapes=("97", "causal 203", "GQA 384"), head_dims=(), troubled_n=128,
    bias_seeds=2, runs=2, square=512, relations=(*RELATIONS,), related_n=64, related_formats=1,
)  # fmt: skip
REHEARSED = CheckPlan((128,), 1, ("97",), (), 128, 2, 2, square=128)
PLANS = {"full": GALLERY, "quick": QUICK, "gpu": ON_GPU, "modelled": MODELLED, "rehearsal": REHEARSED}
SQUARE = ("113 x 203", "256")  # shapes that FEW_QUERIES are not asked for: they have others off and on the tiles
SLOW = ("pallas", "flash_jax")  # files whose kernels are interpreted, or compiled anew for every shape
COMPILED_ANEW = ("flex_triton", "flash_attn_triton_kernels", "xformers_kernels")  # for every shape, by Triton
BUILT = ("torch_flex_compiled", "cutlass_fmha", "fa2_cuda")  # anew for every shape or option
FIRST = (*BUILT, "flex_decode", "fa4_hopper", "flash_attn_triton_package")  # minutes each: else one is left at the end
FIVE = ("ggml_decode", "ggml_prefill", "ring_16_bit_logits", "onnx_attention", "transformers_eager")  # of a quick look
THREE = ("llama_cuda_decode", "sglang_extend", "conch_paged")  # of a quick look at GPU kernels
LIMIT_S = 600  # of one kernel
BY_FEW_BITS = {"error", "outputs", "relation", "sum_error", "coarse", "gradients"}  # findings that few bits make
QUERIES = {"1": "1", "16": "16", "many": "as many as keys"}


@dataclass(frozen=True)
class JudgingSettings:
    """How kernels of the gallery are judged.

    Attributes:
        folder: where the record of each is kept. depth: a key of PLANS.
        device: whose catalogue: "cpu", "cuda" or "modelled".
        cells: folder of finished cells and golden values; `folder`/cells where it is empty.
        limit_s: seconds of one kernel.
    """

    folder: str
    depth: str = "full"
    device: str = "cpu"
    cells: str = ""
    limit_s: float = LIMIT_S

    def entry(self, key: str) -> Entry:
        """The entry of a key, of the device's catalogue.

        Raises:
            ValueError: the key is unknown.
        """
        return lookup("kernel", key, CATALOGUES[self.device])


def judge_all(keys: Sequence[str], manner: JudgingSettings, say: Callable, jobs: int = 2) -> pd.DataFrame:
    """Judge kernels of the gallery, and keep what each came to; what is there already is not judged again, unless its
    code, its library's version or the depth has changed.

    Args:
        keys: of the device's catalogue.
        say: told when a kernel is done, after its record is written. jobs: kernels at a time.

    Returns:
        `rows`.

    Raises:
        ValueError: a key is unknown.
        RuntimeError: an error of ours, not of a kernel's.
    """
    entries = [manner.entry(key) for key in keys]
    left = [entry for entry in entries if not entry.problem and not _kept(entry, manner)]
    # XLA compiles for minutes, and the catalogue ends with slower ones
    left = sorted(left[::-1], key=lambda entry: (entry.key not in FIRST, "jax" not in entry.needs))
    say(f"{len(entries)} kernels: {len(entries) - len(left)} done before or not to be had here, {len(left)} to judge")

    # XLA takes most of a GPU's memory by default
    environment = dict(OMP_NUM_THREADS="1", XLA_PYTHON_CLIENT_PREALLOCATE="false")
    judge = partial(judge_one, manner=manner)
    for ended in call_each(judge, [entry.key for entry in left], jobs, manner.limit_s, environment):
        entry = manner.entry(ended.argument)
        problem = _problem(ended, manner)
        if problem:
            _write(entry, manner, dict(key=_key(entry, manner), problem=problem, verdict=_verdict(ended)))
        say(f"{entry.key}: {problem or row(entry, _read(entry, manner))['verdict']}")
    return rows(keys, manner)


def rows(keys: Sequence[str], manner: JudgingSettings) -> pd.DataFrame:
    """`row` of each key, in their order; of a kernel without a record that it is not judged yet."""
    entries = [manner.entry(key) for key in keys]
    waiting = dict(verdict="not_judged", problem="not judged yet")
    records = [None if entry.problem else _read(entry, manner) or waiting for entry in entries]
    return pd.DataFrame([row(entry, record) for entry, record in zip(entries, records)])


def judge_one(key: str, manner: JudgingSettings) -> None:
    """Judge one kernel in this process, and write a record with its findings and numbers.

    A kernel that refuses every call cannot run here: its record says why, as that of one whose library is missing.
    """
    process_settings.keep_memory()
    entry = manner.entry(key)
    kernel, device = entry.name, "cpu" if manner.device == "modelled" else manner.device
    cells = manner.cells or str(Path(manner.folder) / "cells")
    found = examine(kernel, _depth(entry, manner), device=device, cache=cells, beside=())
    asked = found.asked
    if (asked.outcome == Outcome.REFUSED).all():
        record = dict(verdict="cannot_run", problem=asked.problem.iloc[0])
    else:
        record = dict(problem="") | judge_kernel(kernel, found).record() | dict(numbers=errors(found.lengths))
        if key in HELD:
            record["over_bits"] = over_bits(key, kernels.get(entry.name))
            record["verdict"] = of_few_bits(record)
    _write(entry, manner, dict(key=_key(entry, manner)) | record)


def of_few_bits(record: dict) -> str:
    """The verdict of a kernel that holds K and V in few bits: what these bits cost does not count against it."""
    grave = {f.what for f in Judgement.of(record).findings if f.severity == Severity.FAILS} - BY_FEW_BITS
    return "fails" if grave or record["over_bits"] > ALLOWED["o"] else "passes"


def row(entry: Entry, record: dict | None) -> dict[str, Any]:
    """What a kernel came to.

    Args:
        record: of `judge_one`; None where the kernel cannot run here.

    Returns:
        key, project, version (of its distribution), use; verdict ("passes", "fails", "not_judged", "cannot_run");
        times_1, times_16, times_many: largest error over Baseline's by number of queries, the largest over formats, N
        and ordinary inputs, inf where an output is not finite; relative_1 and so on: largest relative error;
        carries, carried_in, tile: the sums carried in low precision, their format and tile; outwards and
        baseline_outwards (ulp), gradients (largest error over Baseline's), problem; over_bits: as of `caches`, of a
        kernel that holds K and V in few bits.
    """
    told = dict(key=entry.key, project=entry.project, version="" if entry.cannot else entry.version, use=entry.use)
    if record is None or "findings" not in record:
        verdict = "cannot_run" if record is None else record["verdict"]
        return told | dict(verdict=verdict, problem=entry.problem if record is None else record["problem"])
    found = Judgement.of(record).findings
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
        gradients=gradients, cause=" ".join(causes), problem="", over_bits=record.get("over_bits"),
    )  # fmt: skip


def errors(lengths: pd.DataFrame) -> dict[str, float]:
    """times_<queries> and relative_<queries> of a table of `examine.measure`, see `row`; NaN where nothing ran."""
    numbers = {}
    if not len(lengths):
        return numbers
    groups = lengths.queries.where(lengths.queries < lengths.n, "many").astype(str)
    for queries, rows in lengths.groupby(groups):
        if queries in QUERIES:
            infinite = (~rows.finite.astype(bool)).any()
            numbers[f"times_{queries}"] = (
                float("inf") if infinite else float(worst_draws(rows, OF_LENGTHS, ALLOWED["o"]).times_max.max())
            )
            numbers[f"relative_{queries}"] = float("inf") if infinite else float(rows.relative.max())
    return numbers


def judgement_of(key: str, manner: JudgingSettings) -> Judgement | None:
    """The Judgement that `judge_one` left; None where the kernel did not come to an end."""
    record = _read(manner.entry(key), manner)
    return Judgement.of(record) if record and "findings" in record else None


def prove(cache: str = "", jobs: int = 2) -> dict[str, pd.DataFrame]:
    """The tables of the finds: find -> rows of `experiments.finds`, with the parameters of each; without OpenVINO's
    where this processor computes its FP16 otherwise."""
    on = dict(distribution=["uniform", "normal"], seed=range(2))
    with workers(jobs) as pool:

        def over(find, **grid):
            return sweep(FINDS[find], grid | on, cache=cache, executor=pool)

        lengths = over("ggml", n=[512, 1024, 2048, 4096, 8192, 16384], queries=1, threads=2)
        queries = over("ggml", n=4096, queries=[63, 64], threads=2)
        threads = over("ggml", n=16384, queries=1, threads=[1, 8])
        found = dict(
            ggml=pd.concat([lengths, queries, threads], ignore_index=True),
            ringattention=over("ringattention", n=[512, 2048, 8192]),
            pallas_decode=over("pallas_decode", n=4096, splits=[1, 4, 16]),
        )
        return found | (dict(openvino=over("openvino", n=[512, 2048, 8192])) if computes_fp16_in_bf16() else {})


def _depth(entry, manner):
    depth = PLANS[manner.depth]
    if manner.depth == "full" and (entry.module in SLOW or entry.key in BUILT):
        depth = replace(depth, lengths=(128, 512, 4096), square=512, related_n=64, related_formats=1)
    if manner.device == "modelled":
        depth = replace(depth, asked_head_dims=None)  # each would be compiled
    if manner.device == "modelled" and entry.module in COMPILED_ANEW:
        depth = replace(depth, lengths=(128, 512), shapes=("97",), relations=QUICK.relations)
    if entry.key not in FEW_QUERIES:
        return depth
    shapes = tuple(shape for shape in depth.shapes if shape not in SQUARE)
    if manner.device == "modelled":  # some 50 ms for each query
        shapes, few = ("97",), dict(troubled_n=32, related_n=16, square=32, relations=QUICK.relations)
        return replace(depth, asked_queries=1, shapes=shapes, **few)
    return replace(depth, square=min(depth.square, 128), troubled_n=128, related_n=64, asked_queries=16, shapes=shapes)


def _key(entry, manner):
    """What a record depends on."""
    versions = {name: installed(name) for name in entry.needs} | dict(package=entry.package and entry.package.sha256)
    code = code_version(judge_one, [dict(kernel=entry.name)], [])
    return digest([code, versions, asdict(_depth(entry, manner)), manner.device])


def _problem(ended, manner):
    """What became of a kernel's process; "" where it came to its end.

    Raises:
        RuntimeError: an error of ours, not of the kernel's. On CUDA an error is reported as a kernel's, too: after a
            kernel's fault every call there fails, and nothing says whose it was.
    """
    if ended.code == 0:
        return ""
    if ended.code is None:
        return f"took longer than {manner.limit_s:g} s"
    if ended.code < 0:
        return f"ended its process by signal {-ended.code}"
    if manner.device == "cpu":
        raise RuntimeError(f"gallery: judging {ended.argument} failed:\n{ended.printed}")
    last = [line for line in ended.printed.splitlines() if line.strip()][-1:] or ["no word"]
    return f"ended its process with an error: {last[0].strip()[:200]}"


def _verdict(ended):
    """Of a kernel that did not come to its end: one that crashes fails."""
    return "fails" if ended.code is not None and ended.code < 0 else "not_judged"


def _path(entry, manner):
    return Path(manner.folder) / f"{entry.key}.json"


def _write(entry, manner, record):
    with replacing(_path(entry, manner)) as path:
        path.write_text(json.dumps(record, indent=1) + "\n")


def _read(entry, manner):
    """The record of a kernel; None where there is none, or what is there is damaged."""
    try:
        record = json.loads(_path(entry, manner).read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and "verdict" in record and "problem" in record else None


def _kept(entry, manner):
    """Whether a record of this code is there, and the kernel came to an end."""
    record = _read(entry, manner)
    return bool(record) and record.get("key") == _key(entry, manner) and record.get("problem") == ""
