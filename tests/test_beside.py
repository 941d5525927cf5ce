"""Notebooks side by side: forks of one process, that share cores and end with whoever started them."""

import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from fa_lib.execution.beside import run_beside
from fa_lib.execution.notebook import run
from fa_lib.execution.progress import Progress

pytestmark = [
    pytest.mark.slow,  # each starts a process that imports what notebooks use
    pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone"),
]


def notebooks(folder, sources):
    """Notebooks of one cell of code, by name, after a text that is no code."""
    for name, source in sources.items():
        cells = [new_markdown_cell("sweep(compare, fa_lib.training"), new_code_cell(source)]
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        nbformat.write(new_notebook(cells=cells, metadata=kernel), folder / f"{name}.ipynb")
    return [folder / f"{name}.ipynb" for name in sources]


def beside(paths, work, jobs=2):
    return run_beside(paths, Progress({path.stem: 1 for path in paths}, jobs), work, lambda line: None)


def facts(path, kernel):
    """What a process finds: threads that it may use and has, and what is compiled."""
    from fa_lib.double_double import _matmul

    found = os.environ["OMP_NUM_THREADS"], len(os.listdir("/proc/self/task")) - threading.active_count() + 1
    path.with_suffix(".txt").write_text(f"{found} {len(_matmul.signatures)}")


def test_processes_have_their_share_of_the_cores_no_threads_and_what_is_compiled(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    paths = notebooks(tmp_path, {"01_a": "", "02_b": ""})
    assert beside(paths, facts)
    assert [path.with_suffix(".txt").read_text() for path in paths] == ["('2', 1) 1"] * 2
    assert "OMP_NUM_THREADS" not in os.environ


def slowly(at, path, kernel):
    for _ in range(2):
        with open(at, "a") as file:
            file.write(f"{path.stem}\n")
        time.sleep(1)


def test_notebooks_that_share_cells_or_runs_follow_one_another(tmp_path):
    """What the code says counts, and not the text."""
    code = {"01": "sweep(compare, 1)", "02": "sweep(\n    compare, 1)", "03": "import fa_lib.training", "04": "1"}
    assert beside(notebooks(tmp_path, code), partial(slowly, tmp_path / "times"), jobs=4)
    order = (tmp_path / "times").read_text().split()
    assert sorted(order) == sorted([*code] * 2)
    assert [name for name in order if name < "03"] == ["01", "01", "02", "02"]
    assert order.index("03") < 3 and order.index("04") < 3  # beside the first


def ends(path, kernel):
    if path.stem == "02_fails":
        sys.exit(3)
    path.with_suffix(".txt").write_text("done")


def test_one_that_fails_stops_no_other(tmp_path):
    paths = notebooks(tmp_path, {"01_a": "", "02_fails": "", "03_b": ""})
    assert not beside(paths, ends, jobs=1)
    assert [path.with_suffix(".txt").exists() for path in paths] == [True, False, True]


CELL = """import os, sys, matplotlib
from pathlib import Path
Path({out!r}).write_text(f"{{os.getpid()}} {{os.getppid()}} {{os.getcwd()}} {{matplotlib.get_backend()}}")
print({more})"""


def executed(build, path, kernel):
    path.with_suffix(".runner").write_text(f"{os.getpid()}")
    run(path, "paper", build, kernel=kernel)


def test_a_kernel_is_a_fork_that_runs_the_notebook_like_any_other(tmp_path):
    """Its prints and its errors come into the notebook; it draws there, in the notebook's folder."""
    (tmp_path / "scales").mkdir()
    (tmp_path / "scales/paper.yaml").write_text("01_a: {}\n02_b: {}\n")
    sources = {name: CELL.format(out=f"{tmp_path / name}.txt", more=more)
               for name, more in (("01_a", "'printed'"), ("02_b", "1 / 0"))}  # fmt: skip
    paths = notebooks(tmp_path, sources)
    assert not beside(paths, partial(executed, tmp_path / "build"))
    for path in paths:
        pid, parent, folder, backend = path.with_suffix(".txt").read_text().split()
        assert parent == path.with_suffix(".runner").read_text() and pid not in (parent, f"{os.getpid()}")
        assert Path(folder) == tmp_path and backend.endswith("inline")
        assert not Path(f"/proc/{pid}").exists()
    [_, cell] = nbformat.read(tmp_path / "build/01_a.ipynb", as_version=4).cells
    assert cell.outputs[0].text == "printed\n"
    assert "ZeroDivisionError" in (tmp_path / "build/02_b.failed.ipynb").read_text()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_starter_leaves_no_process(tmp_path, number):
    (tmp_path / "scales").mkdir()
    (tmp_path / "scales/paper.yaml").write_text("01_a: {}\n")
    out = tmp_path / "01_a.txt"
    paths = notebooks(tmp_path, {"01_a": CELL.format(out=f"{out}", more="__import__('time').sleep(100)")})
    starter = os.fork()
    if not starter:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            beside(paths, partial(executed, tmp_path / "build"))
        finally:
            os._exit(1)
    while not out.exists() or not out.read_text():
        time.sleep(0.1)
    os.kill(starter, number)
    os.waitpid(starter, 0)
    left = [out.read_text().split()[0], paths[0].with_suffix(".runner").read_text()]
    until = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in left):
        assert time.monotonic() < until, left
        time.sleep(0.1)
