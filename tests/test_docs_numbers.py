"""README and docs: numbers between marks are those of the data, and no page names a machine."""

import contextlib
import io
import re
from itertools import product

import pandas as pd
import pytest

from benchmarks.numbers import MARK, NUMBERS, differences, pages, with_numbers
from fa_lib.execution import claims
from fa_lib.execution.paths import ROOT
from fa_lib.training import campaign
from fa_lib.training.distances import LOW_PRECISION, MEASURES, by_measure

BACKWARD = ROOT / "docs" / "paper" / "backward.md"


@pytest.mark.slow
@pytest.mark.parametrize("path", pages(), ids=lambda path: path.stem)
def test_the_numbers_of_a_page_are_those_of_the_data(path):
    assert with_numbers(path.read_text()) == path.read_text(), "stale: run `python -m benchmarks.numbers`"


def test_every_number_is_on_a_page_and_another_one_is_renewed():
    marks = {(name, int(at)) for path in pages() for name, at, _ in MARK.findall(path.read_text())}
    assert {name for name, _ in marks} == NUMBERS.keys()
    right = f"a <!--the_weights.0-->{NUMBERS['the_weights']()[0]}<!--/--> b"
    assert with_numbers(right) == right == with_numbers(right.replace("0.9", "0.8"))


def test_low_precision_is_reproduced_in_two_of_six_measures():
    ratios, published = by_measure(differences()), claims.published().loc["fig8-low-precision"]
    limits = published[["low", "high", "average", "open"]]
    verdicts = {at: claims.verdict(ratios.loc[at].dropna(), *limits) for at in product(MEASURES, LOW_PRECISION)}
    reproduced = [at for at, verdict in verdicts.items() if verdict == "reproduced"]
    assert reproduced == [("wasserstein_by_size", "fp16"), ("max", "fp16")]
    assert campaign.recorded_tables()["runs"].status.eq("done").all()  # "no run diverged"


def test_the_script_on_the_backward_pass_prints_what_the_page_says():
    script, printed = re.findall(r"```(?:python|text)\n(.*?)```", BACKWARD.read_text(), re.S)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(script, {})
    number = r"\d\.\de-\d\d"
    ours, theirs = (re.findall(number, text) for text in (out.getvalue(), printed))
    assert re.sub(number, "", out.getvalue()) == re.sub(number, "", printed)
    assert [float(x) for x in ours] == pytest.approx([float(x) for x in theirs], rel=0.1)  # another machine's sums


def test_no_page_names_a_machine():
    """Where somebody's checkout lies, or who he is on that machine."""
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("notebooks/**/*.ipynb")]:
        if "_build" not in path.parts:
            assert not re.findall(r"/(?:home|Users|root|work)/\w+", path.read_text()), path


def test_the_gallerys_page_lists_each_verdict():
    """docs/gallery/index.md: behind "passes", "*differs*" and "**fails**" stand the keys that have this verdict."""
    table = pd.read_csv(ROOT / "data" / "results" / "14_gallery.csv").set_index("key").verdict
    judged = table[table != "cannot_run"].to_dict()
    page = (ROOT / "docs" / "gallery" / "index.md").read_text()
    projects = page.split("On a CPU:")[1].split("`llama_cuda_decode`")[0]
    listed, verdict = {}, ""
    for word in re.findall(r"\w+", re.sub(r"\(.*?\)", "", projects, flags=re.DOTALL)):  # without links and remarks
        if word in ("passes", "differs", "fails"):
            verdict = word
        elif "_" in word:
            listed[word] = verdict
    assert listed == judged
