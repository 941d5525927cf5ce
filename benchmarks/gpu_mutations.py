"""Does the judge fail a GPU kernel with one changed instruction? `python -m benchmarks.gpu_mutations` draws changes,
measures the effect of each without the judge, then asks the judge once about each severe one. A row is written as soon
as it is known, into benchmarks/mutations/gpu.csv; what is there is not done again.

Each change has processes of its own: the environment tells the machine there which instruction to change.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch

from attention_check.gpu import mutation
from fa_lib import kernels
from fa_lib.execution.files import replacing
from fa_lib.execution.paths import ROOT
from fa_lib.kernels.reference import golden
from fa_lib.numerics.formats import Format
from ptx_machine import mutate

TABLE = ROOT / "benchmarks" / "mutations" / "gpu.csv"
SHAPES = ((1, 1), (17, 33), (64, 64), (33, 130), (70, 70), (1, 200))  # queries, keys; of the random calls
DECODING = tuple((1, n) for n in (1, 33, 64, 130, 200, 300))
GPU = "A100"


class Changed(NamedTuple):
    """A kernel that is changed, as `check kernel` takes it, and the random calls that say what a change does."""

    function: str
    head_dim: int = 32
    shapes: Sequence[tuple[int, int]] = SHAPES
    dtypes: Sequence[torch.dtype] = (torch.float16, torch.bfloat16)


KERNELS = {
    "cuda": Changed("examples/cuda_attention.py:attention"),
    "triton": Changed("examples/triton_attention.py:attention", 64),  # the rows of 30 November are of 32
    "flash_attn": Changed("attention_gallery.flash_attn_kernels:fa2_cuda", 64),
    "flashinfer": Changed("attention_gallery.flashinfer_cuda:flashinfer_prefill", 64),
    "llama": Changed("attention_gallery.llama_cuda:llama_cuda_decode", 64, DECODING, (torch.float16,)),
}
JUDGE = [f"instruments/attention_check/{folder}" for folder in ("checks", "judge", "measure")]
SEVERE = 10  # times the unchanged kernel's error


def errors(name: str) -> list[float | None]:
    """The largest error against FP64, over the golden value's largest magnitude, of each random call; None: no numbers,
    or a Fault."""
    fn, found = kernels.get(KERNELS[name].function, gpu=GPU), []
    _, head_dim, shapes, dtypes = KERNELS[name]
    for dtype in dtypes:
        for causal in (False, True):
            for seed, (n_q, n_kv) in enumerate(shapes):
                generator = torch.Generator().manual_seed(seed)
                q, k, v = (torch.randn(1, 2, n, head_dim, generator=generator).to(dtype) for n in (n_q, n_kv, n_kv))
                due = golden(q, k, v, inputs=Format.of(dtype), causal=causal)
                try:
                    o = fn(q, k, v, causal=causal)
                    error = float((o.double() - due).abs().max() / due.abs().max())
                    found.append(error if error < float("inf") else None)
                except Exception:  # of the kernel, whatever it is
                    found.append(None)
    return found


def measured(name: str, settings: dict[str, str], timeout: float = 300) -> list[float | None]:
    """`errors`, in a process with settings; one None where it does not come back."""
    command = [sys.executable, "-m", "benchmarks.gpu_mutations", "--errors", name]
    status, output = mutation.ran(command, settings, timeout)
    return json.loads(output.strip().splitlines()[-1]) if status == 0 else [None]


def effect(changed: list[float | None], unchanged: list[float]) -> float:
    """The most times that a call's error is the unchanged kernel's; infinite where there are no numbers."""
    if None in changed:
        return float("inf")
    floor = max(unchanged) / 100  # of calls that are exact
    return max(new / max(old, floor) for new, old in zip(changed, unchanged, strict=True))


def check(name: str, folder: str) -> list[str]:
    """Return the command that asks the judge, at a fixed seed; folder: gets verdict.json."""
    command = [sys.executable, "-m", "fa_lib", "check", "kernel", KERNELS[name].function, "--gpu", GPU, "--quick"]
    return [*command, "--seed", "0", "--out", folder, "--json", f"{folder}/verdict.json"]


def judged(name: str, settings: dict[str, str], timeout: float) -> dict:
    """Ask the judge once: verdict, findings and seconds."""
    with tempfile.TemporaryDirectory() as folder:
        file, start = Path(folder) / "verdict.json", time.monotonic()
        status, _ = mutation.ran(check(name, folder), settings, timeout)
        seconds = round(time.monotonic() - start)
        found = json.loads(file.read_text()) if file.exists() else {}
    verdict = found.get("verdict", mutation.TIMEOUT if status is None else mutation.CRASHED)
    fails = [each["what"] for each in found.get("findings", []) if each.get("severity") == "fails"]
    return dict(verdict=verdict, findings=" ".join(dict.fromkeys(fails)), seconds=seconds)


def population(name: str) -> list[mutate.Change]:
    """The changes of what the random calls launch."""
    return mutation.recorded([sys.executable, "-m", "benchmarks.gpu_mutations", "--errors", name], "", GPU)


def launched(name: str) -> set[mutate.Change]:
    """The changes of what the judge launches: a Triton kernel has a version for each head_dim and kind of length."""
    with tempfile.TemporaryDirectory() as folder:
        return {*mutation.recorded(check(name, folder), "", GPU)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", nargs="*", default=[*KERNELS], choices=[*KERNELS])
    parser.add_argument("--changes", type=int, default=30, help="of each kernel, of each kind in turn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=1800, help="seconds of a judgement")
    parser.add_argument("--again", action="store_true", help="ask about what did not fail once more, into `now`")
    parser.add_argument("--errors", help="print the errors of a kernel's random calls")
    given = parser.parse_args()
    if given.errors:
        print(json.dumps(errors(given.errors)))
        return
    commit = subprocess.check_output(["git", "log", "-1", "--format=%h", "--", *JUDGE],
                                     text=True, cwd=ROOT).strip()  # fmt: skip
    rows = pd.read_csv(TABLE, keep_default_na=False).to_dict("records") if TABLE.exists() else []
    for name in given.kernels:
        unchanged, seen = measured(name, {}), launched(name)
        for change in mutation.drawn(population(name), given.changes, given.seed):
            about = dict(of=name) | asdict(change) | dict(source=change.source.rsplit("/", 1)[-1])
            row = next((row for row in rows if all(row[key] == value for key, value in about.items())), None)
            if row is None:
                settings = {mutate.CHANGE: mutate.as_json(change)}
                size = effect(measured(name, settings), unchanged)
                row = about | dict(effect=size, verdict="", findings="", seconds="", judge="", now="")
                row |= dict(launched=int(change in seen))
                rows.append(row)
            if float(row["effect"]) > SEVERE and not row["verdict"]:
                row |= judged(name, {mutate.CHANGE: mutate.as_json(change)}, given.timeout) | dict(judge=commit)
            if given.again and row["verdict"] not in ("", "fails") and float(row["effect"]) > SEVERE:
                row["now"] = judged(name, {mutate.CHANGE: mutate.as_json(change)}, given.timeout)["verdict"]
            with replacing(TABLE) as path:
                pd.DataFrame(rows).to_csv(path, index=False)
            print(name, change.kind, row["effect"], row["verdict"], row["seconds"], flush=True)
    print(score(pd.DataFrame(rows)).to_string())


def score(rows: pd.DataFrame) -> pd.DataFrame:
    """By kind, and of all: severe changes that were judged, how many of them failed, and its 95 % interval."""
    from scipy.stats import binomtest

    severe = rows[(rows.effect.astype(float) > SEVERE) & (rows.verdict != "")]
    found = []
    for kind, own in [*severe.groupby("kind"), ("all", severe)]:
        failed = int((own.verdict == "fails").sum())
        interval = binomtest(failed, len(own)).proportion_ci(method="wilson") if len(own) else (0, 1)
        found.append(dict(kind=kind, severe=len(own), failed=failed, low=interval[0], high=interval[1]))
    return pd.DataFrame(found)


if __name__ == "__main__":
    main()
