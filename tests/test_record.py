"""What is measured on a GPU: the rehearsal on a CPU, and what a table's provenance says of the GPU."""

import json
import subprocess
import sys

import pandas as pd
import pytest

from fa_lib.execution import results
from fa_lib.execution.paths import ROOT

SMI = """#!/bin/sh
echo "$1" > "$0.asked"
echo "NVIDIA H200, 575.57.08, 345, 1980, 3201, 700.00, 31"
"""


def test_the_provenance_of_a_table_names_device_driver_and_clocks(tmp_path, monkeypatch):
    def held():
        results.save(tmp_path, "a_table", {}, pd.DataFrame({"x": [1]}))
        return json.loads((tmp_path / "data/results/a_table.provenance.json").read_text())["device"]

    monkeypatch.setenv("PATH", f"{tmp_path}")
    assert not set(results.QUERY) & held().keys()  # no nvidia-smi
    smi = tmp_path / "nvidia-smi"
    smi.write_text(SMI)
    smi.chmod(0o755)
    found = held()
    assert results.device().items() <= found.items()
    assert (found["name"], found["driver_version"]) == ("NVIDIA H200", "575.57.08")
    assert (found["clocks.sm"], found["clocks.max.sm"], found["clocks.mem"]) == ("345", "1980", "3201")
    assert (tmp_path / "nvidia-smi.asked").read_text().strip() == f"--query-gpu={','.join(results.QUERY)}"
    smi.write_text("#!/bin/sh\necho no devices were found\nexit 6\n")  # as where the driver is not loaded
    assert not set(results.QUERY) & held().keys()


@pytest.mark.slow
def test_a_rehearsal_writes_the_tables_and_makes_only_what_is_missing(tmp_path):
    def rehearse():
        command = [sys.executable, "-m", "benchmarks.record", "--device", "cpu", "--out", f"{tmp_path}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return [line.removesuffix(": done") for line in done.stdout.splitlines() if line.endswith(": done")]

    steps = ["launches_kept", "gpu_machine", "01_kernels", "backends_rule", "speed", "14_gallery"]
    assert rehearse() == steps
    tables = {name: pd.read_csv(tmp_path / "data/results" / f"{name}.csv") for name in [*steps, "01_kernels.rule"]}
    machine = tables["gpu_machine"]  # torch's kernel on a CPU is not FlashAttention-2 of a GPU, and is near it
    assert (machine.outcome == "answered").all() and 0 < machine.different.max() < 1 and machine.largest.max() < 0.05
    validation = tables["01_kernels"].query("choice == 'model' and fmt == 'BF16'")
    assert (validation.identical > 0.9).all()
    rule = tables["01_kernels.rule"].query("kernel in ['flash', 'as_shipped'] and tensor == 'o'")
    assert rule.passed.all() and tables["backends_rule"].passed.all()
    assert tables["14_gallery"].verdict.tolist() == ["passes"] and (tables["speed"].seconds > 0).all()
    assert not tables["launches_kept"].same.any()  # of kernels that did not run
    provenance = json.loads((tmp_path / "data/results/gpu_machine.provenance.json").read_text())
    assert provenance["device"]["threads"] >= 1
    (tmp_path / "data/results/gpu_machine.csv").unlink()
    assert rehearse() == ["gpu_machine"]
