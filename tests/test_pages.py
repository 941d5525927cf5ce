"""README and docs: numbers between marks are those of the data, no page names a machine, and the reference has every
command, option and column that there is."""

import contextlib
import io
import re
from itertools import product

import pandas as pd
import pytest
import typer

from benchmarks.numbers import MARK, NUMBERS, differences, pages, with_numbers
from fa_lib.commands.cli import app
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


REFERENCE = ROOT / "docs" / "reference"
TABLES = sorted(path for folder in ("results", "gallery", "gpu", "heads", "blame", "recorded") for path in
                (ROOT / "data" / folder).rglob("*.csv"))  # fmt: skip


def commands(group, words):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{words} {name}")
        else:
            yield f"{words} {name}", command


COMMANDS = dict(commands(typer.main.get_command(app), "fa-lib"))


def test_every_command_has_a_section_and_no_other():
    assert {*re.findall(r"^## `(fa-lib [^`]+)`", (REFERENCE / "command_line.md").read_text(), re.M)} == {*COMMANDS}


@pytest.mark.parametrize("words", COMMANDS)
def test_the_site_inserts_every_option_with_its_meaning(words):
    section = (REFERENCE / "command_line.md").read_text().split(f"\n## `{words}`\n")[1].split("\n## ")[0]
    options = [each for each in COMMANDS[words].params if "--help" not in each.opts]
    assert (f"<!-- the site inserts: options {words} -->" in section) == bool(options)
    assert all(each.help for each in options)


def test_every_column_of_every_table_is_explained():
    explained = pd.read_csv(ROOT / "data" / "columns.csv", keep_default_na=False)
    known = {*re.findall(r"`([^`]+)`", " ".join(explained.column))}
    columns = {column for path in (*TABLES, ROOT / "data" / "published.csv") for column in pd.read_csv(path, nrows=0)}
    assert len(TABLES) > 90 and columns - known == set()
