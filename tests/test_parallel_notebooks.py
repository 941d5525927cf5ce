"""Notebooks side by side: forks of one process, that share cores. tests/attacks/test_make.py kills them."""

import os
import sys
import threading
import time
from functools import partial
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from fa_lib.execution.notebook import run
from fa_lib.execution.parallel_notebooks import run_beside
from fa_lib.execution.progress import Progress
from fa_lib.numerics.double_double import _matmul

pytestmark = [
    pytest.mark.slow,  # they start a process that imports what notebooks use
    pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone"),
]
CELL = """import os, matplotlib
from pathlib import Path
Path({out!r}).write_text(f"{{os.getpid()}} {{os.getppid()}} {{os.getcwd()}} {{matplotlib.get_backend()}}")
{more}"""
SOURCES = {  # of notebooks; those with the same letter follow one another
    "a1": "# sweep(compare, 1)", "a2": "# sweep(\n    compare, 1)", "b": "# import fa_lib.training", "c": "",
    "kernel": "print('printed')", "kernel_fails": "1 / 0",
}  # fmt: skip
FIRST = ("a1", "b", "c", "kernel")  # the first of each that share nothing: four, as many as may be at work


def begin(folder, sources, work, jobs):
    """Whether all ended well: notebooks of one cell of code, by name, after a text that is no code."""
    (folder / "scales").mkdir()
    (folder / "scales/paper.yaml").write_text("".join(f"{name}: {{}}\n" for name in sources))
    for name, more in sources.items():
        code = CELL.format(out=f"{folder / name}.cell", more=more)
        cells = [new_markdown_cell("sweep(compare, fa_lib.training"), new_code_cell(code)]
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        nbformat.write(new_notebook(cells=cells, metadata=kernel), folder / f"{name}.ipynb")
    paths = [folder / f"{name}.ipynb" for name in sources]
    return run_beside(paths, Progress(dict.fromkeys(sources, 1), jobs), work, lambda line: None)


def work(folder, path, kernel):
    """In the process of a notebook: what it finds, when it is at work; and the notebook, where that is asked for."""
    own = len(os.listdir("/proc/self/task")) - threading.active_count() + 1  # threads, without those of Python
    path.with_suffix(".found").write_text(f"{os.environ['OMP_NUM_THREADS']} {own} {len(_matmul.signatures)}")
    path.with_suffix(".pid").write_text(f"{os.getpid()}")
    for _ in range(2):
        with open(folder / "times", "a") as file:
            file.write(f"{path.stem}\n")
        if path.stem in FIRST:
            meet(folder)
    if path.stem == "a1":  # a2 begins after it
        sys.exit(3)
    if path.stem.startswith("kernel"):
        run(path, "paper", folder / "build", kernel=kernel)


def meet(folder, seconds=60):
    """Wait until all of FIRST are at work; those that cannot be so together do not come to their second time."""
    deadline = time.monotonic() + seconds
    while not all((folder / f"{name}.pid").exists() for name in FIRST):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A folder in which all of SOURCES were at work, four at a time with two of eight cores each."""
    folder = tmp_path_factory.mktemp("beside")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OMP_NUM_THREADS", raising=False)
        patch.setattr(os, "cpu_count", lambda: 8)
        assert not begin(folder, SOURCES, partial(work, folder), jobs=4)  # two fail, the first among them
        assert "OMP_NUM_THREADS" not in os.environ
    return folder


def test_processes_have_their_share_of_the_cores_no_threads_and_what_is_compiled(done):
    assert {name: (done / f"{name}.found").read_text() for name in SOURCES} == dict.fromkeys(SOURCES, "2 1 1")


def test_notebooks_that_share_cells_or_runs_follow_one_another_and_one_that_fails_stops_no_other(done):
    """What the code says counts, and not the text."""
    order = (done / "times").read_text().split()
    assert sorted(order) == sorted([*SOURCES] * 2)  # those of FIRST have met
    assert [name for name in order if name[0] == "a"] == ["a1", "a1", "a2", "a2"]


def test_a_kernel_is_a_fork_that_runs_the_notebook(done):
    """Its prints and its errors come into the notebook; it draws there, in the notebook's folder."""
    for name in ("kernel", "kernel_fails"):
        pid, parent, folder, backend = (done / f"{name}.cell").read_text().split()
        assert parent == (done / f"{name}.pid").read_text() and pid not in (parent, f"{os.getpid()}")
        assert Path(folder) == done and backend.endswith("inline")
        assert not Path(f"/proc/{pid}").exists()
    [_, cell] = nbformat.read(done / "build/kernel.ipynb", as_version=4).cells
    assert cell.outputs[0].text == "printed\n"
    assert "ZeroDivisionError" in (done / "build/kernel_fails.failed.ipynb").read_text()
