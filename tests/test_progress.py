"""What a run of notebooks says of how far it is."""

import pytest

from fa_lib.execution import manifest
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
    assert manifest.seconds(path) is None
    manifest.write(path, "x", [], tmp_path, seconds=12.345, cpu_seconds=20)
    assert manifest.seconds(path) == 12.3
    path.write_text('{"made_from": "x", "files": {}}')  # of before it was kept
    assert manifest.seconds(path) is None and manifest.fresh(path, "x", tmp_path)
    path.write_text('{"made_from": "x", "files": {}, "seconds": "long"}')
    assert manifest.seconds(path) is None
