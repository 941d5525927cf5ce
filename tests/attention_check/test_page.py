"""The page of a judgement: what stands first, and what is folded."""

import re
from dataclasses import replace
from html import unescape

import pytest

from attention_check.judge.findings import Finding, Judgement, Severity
from attention_check.report import sentences
from attention_check.report.page import page
from attention_check.report.page_files import PageFiles
from attention_check.report.sentences import folded
from fa_lib.execution.paths import ROOT

FAILS, NOTES, PASSES = Severity.FAILS, Severity.REPORTED, Severity.PASSES
AT = dict(distribution="normal", fmt="BF16", n=8, queries=None)
ERROR = Finding("error", FAILS, AT, 9.3, 2)
GRADIENTS = Finding("gradients", NOTES, dict(failed=2, of=9, tensor="dv", shape="97", fmt="BF16"), 4.0, 3)
REPEATS = Finding("repeats", NOTES, dict(of="outputs", runs=3), 1)


def answers(count):
    where = dict(head_dim=None, outcome="wrong", note="other", problem="")
    return [Finding("answer", FAILS, dict(asked=f"case {i}", dim=0, **where)) for i in range(count)]


def test_what_counts_stands_apart_from_what_is_told_and_no_failure_stands_below_passes():
    holds = replace(ERROR, severity=PASSES, number=1.0)
    orders = [
        ((ERROR, GRADIENTS, holds), [FAILS, NOTES, PASSES]),
        ((GRADIENTS, holds), [PASSES, NOTES]),
        ((GRADIENTS,), [NOTES]),
    ]
    for findings, order in orders:
        judgement = Judgement("kernel", "mine", findings)
        assert [*sentences.sentences_of(judgement)] == order
        text = unescape(re.sub(r"(?s)<style.*?</style>|<.*?>", "\n", page(judgement, [])))
        places = [text.index(f"\n{sentences.HEADINGS[severity]}\n") for severity in order]
        assert places == sorted(places) and "4.0 × Baseline's" in text and "limit 3 ×" in text
        assert sentences.HEADINGS[FAILS] not in text or not judgement.passed


def test_like_findings_are_folded_the_gravest_first():
    many = [replace(ERROR, number=number) for number in (3.0, 30.0, 5.0, None, 4.0)]
    said = sentences.sentences_of(Judgement("kernel", "mine", (*many, *answers(4))))[FAILS]
    numbers = [one.number for one in said if one.what == "error"]
    assert numbers == [f"{each} × Baseline's" if each != "not finite" else each
                       for each in ("not finite", "30.0", "5.0", "4.0", "3.0")]  # fmt: skip
    (errors, more), (seen, rest) = folded(said)
    assert (len(errors), len(more), len(seen), len(rest)) == (3, 2, 4, 0)  # one alone is not folded
    html = page(Judgement("kernel", "mine", (*many, *answers(9))), [])
    assert html.count("<details>") == 3 and "and 6 more like these" in html and "case 8" in html


def test_a_folder_is_not_named_as_a_page():
    with pytest.raises(ValueError, match="out: got page.html; accepted is a folder"):
        PageFiles.of("page.html", "flash")


def test_without_a_folder_pages_lie_below_the_current_one_or_the_checkout_around_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert PageFiles.of("", "flash").page == tmp_path.resolve() / "build" / "reports" / "flash.html"
    monkeypatch.chdir(ROOT / "docs")
    assert PageFiles.of("", "flash").page == ROOT / "build" / "reports" / "flash.html"
