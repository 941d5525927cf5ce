"""The files of an explanation: a page, the worst rows with a script that reads them, and a paragraph for an issue."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from attention_check.conventions.attention import Dialect
from attention_check.conventions.conventions import what
from attention_check.conventions.evidence import Evidence
from attention_check.conventions.reading import Reader, Unfit
from attention_check.conventions.search import rounding_of
from attention_check.explain.explain_words import MEANINGS, Worded, lines, worded
from attention_check.explain.issue import issue, options_in_words
from attention_check.explain.reproduction import Reproduction, reproduction
from attention_check.explain.scan import Scan, scan
from attention_check.explain.verdict import Explanation
from attention_check.plots.wrong_rows import wrong_rows
from attention_check.report.page import png, rendered
from attention_check.report.page_files import PageFiles
from fa_lib.execution.files import replacing
from fa_lib.execution.machine import date
from fa_lib.execution.results import versions

TEMPLATE = Path(__file__).parents[1] / "explain" / "explanation.html.jinja"


@dataclass(frozen=True)
class ExplainedFiles:
    """Attributes:
    page: the HTML file. The others are beside it, by the same stem: rows, the worst rows (.npz); script, a program
        that reads them (.py); issue, a paragraph (.md).
    """

    page: Path

    @classmethod
    def of(cls, out: str, name: str) -> "ExplainedFiles":
        """Files of a `name`, whatever characters it has, in the folder `out`.

        Raises:
            ValueError: out is named as a page is.
        """
        return cls(PageFiles.of(out, name).page)

    @property
    def rows(self) -> Path:
        return self.page.with_name(f"{self.page.stem}_rows.npz")

    @property
    def script(self) -> Path:
        return self.page.with_name(f"{self.page.stem}_rows.py")

    @property
    def issue(self) -> Path:
        return self.page.with_name(f"{self.page.stem}_issue.md")

    def write(self, call: Evidence, found: Explanation, name: str, source: str) -> None:
        """Write them all, the page last.

        Args:
            name: of the output, "o" or "o_ref". source: of the tensors, in words.
        """
        for old in (self.page, self.rows, self.script, self.issue):
            old.unlink(missing_ok=True)
        scans = _scans(call, found)
        names = ("as_believed", "as_read") if Dialect() in scans else ("as_read",)
        readings: dict[str, Dialect] = {name: dialect for name, dialect in zip(names, scans)}
        if found.part is not None:
            readings["wrong_part"] = Dialect(**found.part)
        worst = reproduction(call, readings, scans, self.rows.name)
        if worst:
            self._write_rows(worst)
        words = worded(found, name)
        verdict, first = words.gravest
        shown = (worst.script, self._printed()) if worst else ("", "")
        text = issue(call, f"{verdict.name}: {first}", lines(found, name), self.rows.name, *shown)
        with replacing(self.issue) as path:
            path.write_text(text, encoding="utf-8")
        about = dict(File=source, Output=name) | _about(call)
        page = _page(found, words, scans, rounding_of(call, [*scans][-1]), about, text, self.rows)
        with replacing(self.page) as path:
            path.write_text(page, encoding="utf-8")

    def _write_rows(self, worst: Reproduction) -> None:
        arrays: dict[str, Any] = {**worst.arrays}
        with replacing(self.rows) as path, path.open("wb") as file:
            np.savez_compressed(file, **arrays)
        with replacing(self.script) as path:
            path.write_text(worst.script)

    def _printed(self) -> str:
        """What the script prints when it is run."""
        ran = [sys.executable, self.script.name]
        return subprocess.run(ran, cwd=self.page.parent, capture_output=True, text=True, check=True).stdout


def _scans(call: Evidence, found: Explanation) -> dict[Dialect, Scan]:
    """All rows beside the believed dialect, where its shapes make a call, and beside the one that was found."""
    scans = {}
    for dialect in dict.fromkeys((Dialect(), Dialect(**found.dialect))):
        try:
            scans[dialect] = scan(call, Reader(call).rows(dialect))
        except Unfit:
            continue
    return scans


def _about(call: Evidence) -> dict[str, str]:
    tensors: dict[str, list[str]] = {}  # shape -> the tensors that have it
    for name, x in [*((name, getattr(call, name)) for name in "qkvo"), *call.others.items()]:
        tensors.setdefault(f"{tuple(x.shape)}", []).append(name)
    shapes = {", ".join(names): shape for shape, names in tensors.items()}
    by = {"Explained by": f"fa_lib, torch {versions()['torch']}", "Date": date()}
    return shapes | {"Inputs": call.fmt.name, "Options": options_in_words(call.options) or "none"} | by


def _page(
    found: Explanation, words: Worded, scans: dict[Dialect, Scan], rounding: float, about: dict[str, str], text: str,
    rows: Path,
) -> str:  # fmt: skip
    readings = {
        f"read as {what(dialect.changes())}" if dialect.changes() else "read as you believe it": (
            each.of_rows, each.places[2]) for dialect, each in scans.items()
    }  # fmt: skip
    figure = wrong_rows(readings, rounding)
    picture = png(figure)
    plt.close(figure)
    verdict, headline = words.gravest
    groups = [(words.verdict, [words.headline, *words.reasons]), *words.beside]
    return rendered(
        TEMPLATE, verdict=verdict.value, headline=headline,
        meaning=MEANINGS[verdict] if verdict == words.verdict else "",
        groups=[(each.value if each else "", [line for line in group if line != headline]) for each, group in groups],
        about=about, output=about["Output"],
        picture=picture, picture_alt=f"{words.headline} Relative error by head and row.",
        tried=[(what(one) if one else "as believed", f"{off:.2g}") for one, off in found.tried],
        issue=text.splitlines(), attachment=rows.name if rows.exists() else "",
    )  # fmt: skip
