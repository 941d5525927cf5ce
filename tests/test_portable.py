"""The same bits, and the same printed numbers, whatever the processor offers and however many threads there are."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import pytest

from fa_lib.paths import ROOT

SETTINGS = {
    "default": {"ATEN_CPU_CAPABILITY": "default"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "avx512": {"ATEN_CPU_CAPABILITY": "avx512"},
    "onednn": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "one thread": {"OMP_NUM_THREADS": "1"},
    "two threads": {"OMP_NUM_THREADS": "2"},
}
PRINTED = ("default", "avx2", "onednn", "one thread")  # the others are what the notebooks run under anyway
FIGURES = [f"notebooks/{name}.ipynb" for name in
           ("01_kernels", "02_precision", "03_golden_value", "04_sequence_length", "05_algorithm_changes")]  # fmt: skip
TRAINING = [f"notebooks/{name}.ipynb" for name in
            ("06_inside_a_model", "07_weight_divergence", "08_weights_in_context")]  # fmt: skip


def run(*command, **settings):
    return subprocess.run(
        [sys.executable, *command], env=os.environ | settings, cwd=ROOT, capture_output=True, text=True, timeout=900
    )


@pytest.fixture(scope="module")
def digest_here():
    return run("tests/digests.py").stdout


@pytest.mark.parametrize("name", SETTINGS)
def test_emulated_bits_are_the_same(name, digest_here):
    there = run("tests/digests.py", **SETTINGS[name])
    assert there.returncode == 0, there.stderr
    assert there.stdout == digest_here and re.fullmatch(r"BF16 \w{64}\nFP16 \w{64}\n", there.stdout)


def nbval(*paths, **settings):
    return run(
        "-m", "pytest", "--override-ini", "addopts=-q", "--nbval-lax", "-p", "no:cacheprovider", *paths, **settings
    )


@pytest.fixture(scope="module")
def nbval_under_each_setting():
    with ThreadPoolExecutor(2) as pool:  # most of a run is one thread that starts a kernel
        paths = {name: FIGURES + (TRAINING if name == "default" else []) for name in PRINTED}
        runs = {name: pool.submit(nbval, *paths[name], OMP_WAIT_POLICY="PASSIVE", **SETTINGS[name]) for name in PRINTED}
        return {name: future.result() for name, future in runs.items()}


@pytest.mark.parametrize("name", PRINTED)
def test_notebooks_print_the_same_numbers(name, nbval_under_each_setting):
    result = nbval_under_each_setting[name]
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("path", [*FIGURES, TRAINING[0]])
def test_nbval_fails_when_a_printed_number_is_altered(path, tmp_path):
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
