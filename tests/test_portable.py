"""The same bits, and so the same printed numbers, whatever the processor offers and however many threads there are."""

import os
import re
import subprocess
import sys

import nbformat
import pytest

from fa_lib.execution.paths import ROOT

SETTINGS = {  # others than those that the tests run under, each of another library
    "least": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    "other": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "2"},
}


def run(*command, **settings):
    return subprocess.run(
        [sys.executable, *command], env=os.environ | settings, cwd=ROOT, capture_output=True, text=True, timeout=900
    )


@pytest.fixture(scope="module")
def digest_here():
    return run("tests/digests.py").stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_emulated_bits_are_the_same(name, digest_here):
    there = run("tests/digests.py", **SETTINGS[name])
    assert there.returncode == 0, there.stderr
    assert there.stdout == digest_here and len(re.findall(r"\w{64}\n", there.stdout)) == 5


def nbval(*paths, **settings):
    return run(
        "-m", "pytest", "--override-ini", "addopts=-q", "--nbval-lax", "-p", "no:cacheprovider", *paths, **settings
    )


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
        assert all(len(c.source.splitlines()) <= 25 for c in cells), path
