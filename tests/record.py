"""What is measured on a GPU, rehearsed on a CPU: `make test-record`. (Not collected by `make test`.)"""

import json
import subprocess
import sys

import pandas as pd

from fa_lib.execution.paths import ROOT


def test_a_rehearsal_writes_the_tables_and_makes_only_what_is_missing(tmp_path):
    def rehearse():
        command = [sys.executable, "-m", "benchmarks.record", "--device", "cpu", "--out", f"{tmp_path}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return [line.removesuffix(": done") for line in done.stdout.splitlines() if line.endswith(": done")]

    steps = ["gpu_machine", "01_kernels", "backends_rule", "speed", "14_gallery"]
    assert rehearse() == steps
    tables = {name: pd.read_csv(tmp_path / "data/results" / f"{name}.csv") for name in [*steps, "01_kernels.rule"]}
    machine = tables["gpu_machine"]  # torch's kernel on a CPU is not FlashAttention-2 of a GPU, and is near it
    assert (machine.outcome == "answered").all() and 0 < machine.different.max() < 1 and machine.largest.max() < 0.05
    validation = tables["01_kernels"].query("choice == 'model' and fmt == 'BF16'")
    assert (validation.identical > 0.9).all()
    rule = tables["01_kernels.rule"].query("kernel in ['flash', 'as_shipped'] and tensor == 'o'")
    assert rule.passed.all() and tables["backends_rule"].passed.all()
    assert tables["14_gallery"].verdict.tolist() == ["passes"] and (tables["speed"].seconds > 0).all()
    provenance = json.loads((tmp_path / "data/results/gpu_machine.provenance.json").read_text())
    assert provenance["device"]["threads"] >= 1
    (tmp_path / "data/results/gpu_machine.csv").unlink()
    assert rehearse() == ["gpu_machine"]
