"""The same bits, and so the same printed numbers, whatever the processor offers and however many threads there are."""

import os
import re
import runpy
import subprocess
import sys

import nbformat
import pytest

from fa_lib.execution.paths import ROOT

OTHER = {  # than this process runs under: the least of each library, and two threads
    "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "2",
}  # fmt: skip
DIGESTS = ROOT / "tests" / "digests.py"


@pytest.mark.slow
def test_emulated_bits_are_the_same_under_other_settings(capsys):
    there = subprocess.run([sys.executable, DIGESTS], env=os.environ | OTHER, cwd=ROOT, capture_output=True, text=True)
    assert there.returncode == 0, there.stderr
    runpy.run_path(f"{DIGESTS}")
    assert there.stdout == capsys.readouterr().out and len(re.findall(r"\w{64}\n", there.stdout)) == 5


def test_committed_notebooks_can_fail():
    """Executed, without images, and with text in every checked cell: else nbval compares nothing."""
    for path in sorted((ROOT / "notebooks").rglob("[!.]*.ipynb")):
        cells = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
        checked = [c for c in cells if "nbval-check-output" in c.metadata.get("tags", [])]
        assert checked or path.stem == "panel", path
        assert all(c.execution_count for c in cells), path
        assert all(c.outputs and c.outputs[0].output_type == "stream" for c in checked), path
        assert not any("data" in output for c in cells for output in c.outputs), path
        assert not any(output.get("name") == "stderr" for c in cells for output in c.outputs), path
