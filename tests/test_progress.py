"""What a run of notebooks says of how far it is."""

import os
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from fa_lib.execution import outcome
from fa_lib.execution.notebook import run_beside
from fa_lib.execution.progress import Progress, in_words


def test_time_left_is_that_of_earlier_runs():
    progress = Progress({"01_a": 60, "02_b": 0, "03_c": 240})
    assert progress.at("01_a") == "notebook 1 of 3, about 5 min left"
    progress.done("01_a", 55)
    progress.done("02_b", 0.1)
    assert progress.at("03_c") == "notebook 3 of 3, about 4 min left"
    assert progress.ended() == "2 of 3 notebooks are done, about 4 min left"
    progress.done("03_c", 200)
    assert progress.ended() == "3 of 3 notebooks are done"


def test_where_no_run_was_before_it_is_guessed_from_those_done_here():
    progress = Progress(dict.fromkeys(["01_a", "02_b", "03_c", "04_d"]) | {"01_a": 0})
    assert progress.left() is None and progress.at("02_b") == "notebook 2 of 4"
    progress.done("01_a", 0.1)  # it was up to date: that says nothing of the others
    assert progress.left() is None
    progress.done("02_b", 100)
    assert progress.left() == 200 and progress.at("03_c") == "notebook 3 of 4, about 3 min left"


def test_several_at_a_time_take_less():
    assert Progress({"01_a": 600, "02_b": 600}, jobs=2).left() == 600


@pytest.mark.parametrize(
    "seconds, words",
    [
        (3, "less than 1 min"),
        (60, "about 1 min"),
        (7190, "about 120 min"),
        (7200, "about 2.0 h"),
        (9000, "about 2.5 h"),
    ],
)
def test_a_time_is_told_as_roughly_as_it_is_known(seconds, words):
    assert in_words(seconds) == words


def test_an_outcome_tells_how_long_its_run_took(tmp_path):
    path = tmp_path / "01_a.outcome.json"
    assert outcome.seconds(path) is None
    outcome.write(path, "x", [], tmp_path, seconds=12.345, cpu_seconds=20)
    assert outcome.seconds(path) == 12.3
    path.write_text('{"made_from": "x", "files": {}}')  # of before it was kept
    assert outcome.seconds(path) is None and outcome.fresh(path, "x", tmp_path)
    path.write_text('{"made_from": "x", "files": {}, "seconds": "long"}')
    assert outcome.seconds(path) is None


def test_notebooks_side_by_side_share_the_cores(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    notebooks = [tmp_path / f"{name}.ipynb" for name in ("01_a", "02_b")]
    for path in notebooks:
        nbformat.write(new_notebook(), path)

    def command(path):
        write = f"import os; open({str(path.with_suffix('.txt'))!r}, 'w').write(os.environ['OMP_NUM_THREADS'])"
        return [sys.executable, "-c", write]

    assert run_beside(notebooks, Progress({"01_a": 1, "02_b": 1}, jobs=2), command, lambda line: None)
    assert [path.with_suffix(".txt").read_text() for path in notebooks] == ["2", "2"]


def test_notebooks_that_share_cells_or_runs_follow_one_another(tmp_path):
    """What the code says counts, and not the text."""
    code = {"01": "sweep(compare, 1)", "02": "sweep(\n    compare, 1)", "03": "import fa_lib.training", "04": "1"}
    notebooks, at = [tmp_path / f"{name}.ipynb" for name in code], tmp_path / "times"
    for path, source in zip(notebooks, code.values()):
        cells = [new_markdown_cell("sweep(compare, fa_lib.training"), new_code_cell(source)]
        nbformat.write(new_notebook(cells=cells), path)

    def command(path):
        write = f"print({path.stem!r}, file=open({str(at)!r}, 'a'), flush=True)"
        return [sys.executable, "-c", f"import time; {write}; time.sleep(1); {write}"]

    assert run_beside(notebooks, Progress(dict.fromkeys(code, 1), jobs=4), command, lambda line: None)
    order = at.read_text().split()
    assert sorted(order) == sorted([*code] * 2)
    assert [name for name in order if name < "03"] == ["01", "01", "02", "02"]
    assert order.index("03") < 3 and order.index("04") < 3  # beside the first
