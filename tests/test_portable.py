"""The same bits, and so the same printed numbers, whatever the processor offers and however many threads there are."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from fa_lib.paths import ROOT

SETTINGS = {  # others than those that the tests run under
    "default": {"ATEN_CPU_CAPABILITY": "default"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "onednn": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "two threads": {"OMP_NUM_THREADS": "2"},
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
    assert there.stdout == digest_here and len(re.findall(r"\w{64}\n", there.stdout)) == 4


def nbval(*paths, **settings):
    return run(
        "-m", "pytest", "--override-ini", "addopts=-q", "--nbval-lax", "-p", "no:cacheprovider", *paths, **settings
    )


@pytest.mark.slow
def test_nbval_fails_when_a_printed_number_is_altered(tmp_path):
    path = "notebooks/03_golden_value.ipynb"
    notebook = nbformat.read(ROOT / path, as_version=4)
    checked = next(c for c in notebook.cells if "nbval-check-output" in c.metadata.get("tags", []))
    text = checked.outputs[0]["text"]
    digit = [match.start() for match in re.finditer(r"\d", text)][-1]
    checked.outputs[0]["text"] = text[:digit] + str((int(text[digit]) + 1) % 10) + text[digit + 1 :]
    copy = tmp_path / Path(path).name
    nbformat.write(notebook, copy)
    result = nbval(str(copy))
    assert result.returncode == 1 and "1 failed" in result.stdout, result.stdout


def test_committed_notebooks_can_fail():
    """Executed, without images, and with text in every checked cell: else nbval compares nothing."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
        checked = [c for c in cells if "nbval-check-output" in c.metadata.get("tags", [])]
        assert checked or path.stem.startswith("00_"), path
        assert all(c.execution_count for c in cells), path
        assert all(c.outputs and c.outputs[0].output_type == "stream" for c in checked), path
        assert not any("data" in output for c in cells for output in c.outputs), path
        assert not any(output.get("name") == "stderr" for c in cells for output in c.outputs), path
        assert all(len(c.source.splitlines()) <= 25 for c in cells), path
