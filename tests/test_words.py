"""Words and turns that no reader should meet: on pages, in notebooks, and in what commands print. `make lint` runs
this."""

import re

import pytest

from fa_lib.execution.paths import ROOT

BANNED = (
    r"\bcomes? of\b", r"\bis the worse\b", r"\bhangs? on\b", r"\bgoes on where it was\b", r"\bwhat kernels cost\b",
    r"\binnocent\b", r"\bfor want of\b", r"\bwho then\b", r"\bcondemn", r"\b(is|are) told\b", r"\btold of\b",
    r"\bparts two runs\b", r"\ba process of its own\b", r"\bruns? parts?\b", r"\bparts from\b", r"\bonly tells?\b",
    r"\bonly told\b", r"\bgoes on from\b", r"\bbut for\b", r"\bprocess apart\b", r"\bof the field\b",
)  # fmt: skip
READ = sorted(
    path
    for pattern in (
        "*.md",
        "Makefile",
        "docs/**/*.md",
        "notebooks/*.ipynb",
        "data/published.csv",
        "instruments/attention_check/report/*",
        "fa_lib/commands/*.py",
        "fa_lib/plots/*.py",
        "examples/*.py",
        "benchmarks/*.md",
    )  # fmt: skip
    for path in ROOT.glob(pattern)
    if path.is_file() and "_build" not in path.parts and path.name != "CHANGELOG.md"
)


@pytest.mark.parametrize("path", READ, ids=lambda path: str(path.relative_to(ROOT)))
def test_it_is_written_plainly(path):
    text = " ".join(path.read_text(errors="ignore").split())
    matches = [match for word in BANNED for match in re.finditer(word, text, re.I)]
    assert not [text[max(0, match.start() - 40) : match.end() + 40] for match in matches]
