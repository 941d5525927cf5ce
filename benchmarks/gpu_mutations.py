"""Does the judge fail a GPU kernel with one changed instruction? `python -m benchmarks.gpu_mutations` asks it again
about each severe change of benchmarks/mutations/gpu.csv that it did not fail, and writes the verdict into `now`.

This file of commit 05af82be drew the changes and measured the effect of each. A change is asked about in processes of
its own: the environment tells the machine there to run the text that `rewritten` gives.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd

from fa_lib.execution.files import replacing
from fa_lib.execution.paths import ROOT
from ptx_machine.launch import REWRITE

TABLE = ROOT / "benchmarks" / "mutations" / "gpu.csv"
ROW = "GPU_MUTATION"  # in the environment: a row of the table as JSON
GPU = "A100"
KERNELS = {  # as `check kernel` takes them
    "cuda": "examples/cuda_attention.py:attention", "triton": "examples/triton_attention.py:attention",
    "flash_attn": "attention_gallery.flash_attn_kernels:fa2_cuda",
    "flashinfer": "attention_gallery.flashinfer_cuda:flashinfer_prefill",
    "llama": "attention_gallery.llama_cuda:llama_cuda_decode",
}  # fmt: skip
SEVERE = 10  # times the unchanged kernel's error
LIMIT_S = 1800


def rewritten(text: str, kernel: str) -> str:
    """The PTX text of a kernel with the change of the environment's row, where the text has that statement; the lines
    keep their numbers."""
    row, lines = json.loads(os.environ[ROW]), text.split("\n")
    first, statement = row["line"] - 1, ""
    for last in range(first, len(lines)):  # a statement may have several lines
        before, ends, rest = lines[last].split("//")[0].partition(";")
        statement += f" {before.strip()}"
        if ends:
            if kernel == row["kernel"] and f"{statement.strip()};" == row["before"]:
                lines[first : last + 1] = [""] * (last - first) + [row["after"] + rest]
            break
    return "\n".join(lines)


def judged(row: dict) -> str:
    """Ask the judge about a changed kernel, at a fixed seed: its verdict."""
    settings = {REWRITE: "benchmarks.gpu_mutations:rewritten", ROW: json.dumps(row)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "verdict.json"
        command = [sys.executable, "-m", "fa_lib", "check", "kernel", KERNELS[row["of"]], "--gpu", GPU, "--quick"]
        process = subprocess.Popen([*command, "--seed", "0", "--out", folder, "--json", str(file)], cwd=ROOT,
                                   env=os.environ | settings, start_new_session=True)  # fmt: skip
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            return "timeout"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # it has workers
        return json.loads(file.read_text())["verdict"] if file.exists() else "crashed"


def main():
    rows = pd.read_csv(TABLE, keep_default_na=False).to_dict("records")
    for row in rows:
        if row["verdict"] not in ("", "fails"):
            row["now"] = judged(row)
            with replacing(TABLE) as path:
                pd.DataFrame(rows).to_csv(path, index=False)
            print(row["of"], row["kind"], row["now"], flush=True)
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
