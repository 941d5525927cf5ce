"""The files of an explanation: a page, the worst rows with a script that reads them, and a paragraph for an issue."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch

from fa_lib.check.dialect.attention import Dialect
from fa_lib.check.dialect.conventions import what
from fa_lib.check.dialect.evidence import Evidence
from fa_lib.check.dialect.reading import Reader, Unfit
from fa_lib.check.dialect.search import rounding_of
from fa_lib.check.explain.explain_words import MEANINGS, lines
from fa_lib.check.explain.issue import issue
from fa_lib.check.explain.reproduction import Reproduction, reproduction
from fa_lib.check.explain.scan import Scan, scan
from fa_lib.check.explain.verdict import Explanation
from fa_lib.check.report.page import png, rendered
from fa_lib.check.report.page_files import PageFiles
from fa_lib.execution.files import replacing
from fa_lib.execution.machine import date
from fa_lib.execution.results import versions
from fa_lib.plots.wrong_rows import wrong_rows

TEMPLATE = Path(__file__).parents[1] / "check" / "explain" / "explanation.html.jinja"


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
            name: of the output, "o" or "o2". source: of the tensors, in words.
        """
        for old in (self.page, self.rows, self.script, self.issue):
            old.unlink(missing_ok=True)
        scans = _scans(call, found)
        part: dict[Dialect, None] = dict.fromkeys([Dialect(**found.part)]) if found.part else {}
        worst = reproduction(call, scans | part, self.rows.name)
        printed = self._run(worst) if worst else ""
        headline, *evidence = lines(found, name)
        text = issue(call, [headline, *evidence], self.rows.name, worst.script if worst else "", printed)
        with replacing(self.issue) as path:
            path.write_text(text, encoding="utf-8")
        page = _page(call, found, [headline, *evidence], scans, text, dict(File=source, Output=name), self)
        with replacing(self.page) as path:
            path.write_text(page, encoding="utf-8")

    def _run(self, worst: Reproduction) -> str:
        """Write a reproduction, and what it prints."""
        arrays: dict[str, Any] = {**worst.arrays}
        with replacing(self.rows) as path, path.open("wb") as file:
            np.savez_compressed(file, **arrays)
        with replacing(self.script) as path:
            path.write_text(worst.script)
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


def _page(call, found, said, scans, text, about, files):
    headline, *evidence = said
    cut = next((i for i, line in enumerate(evidence) if not line.startswith("  ")), len(evidence))
    readings = {
        f"read as {what(dialect.changes())}" if dialect.changes() else "read as you believe it": (
            each.of_rows, each.places[2]) for dialect, each in scans.items()
    }  # fmt: skip
    dialect = next(reversed(scans))
    figure = wrong_rows(readings, rounding_of(call, dialect))
    picture = png(figure)
    plt.close(figure)
    tensors: dict[str, list[str]] = {}  # shape -> the tensors that have it
    for name, x in [*((name, getattr(call, name)) for name in "qkvo"), *call.others.items()]:
        tensors.setdefault(f"{tuple(x.shape)}", []).append(name)
    options = ", ".join(
        f"{name} {tuple(x.shape)}" if isinstance(x, torch.Tensor) else f"{name} {x}" for name, x in call.options.items()
    )
    about = about | {", ".join(names): shape for shape, names in tensors.items()}
    about |= {"Inputs": call.fmt.name, "Options": options or "none"}
    about |= {"Explained by": f"fa_lib, torch {versions()['torch']}", "Date": date()}
    return rendered(
        TEMPLATE, verdict=found.verdict.value, headline=headline.partition(": ")[2], meaning=MEANINGS[found.verdict],
        evidence=[line.strip() for line in evidence[:cut]], others=_grouped(evidence[cut:]), about=about,
        picture=picture, picture_alt=f"{headline}; relative error by head and row",
        picture_words="Each line is a head, each column a row or the worst of several. Green is rounding. Grey rows "
        "see no key, or what they see is not finite.",
        tried=[(what(one) if one else "as believed", f"{off:.2g}") for one, off in found.tried],
        issue=text.splitlines(),
        issue_words=f"Paste this, and attach {files.rows.name}." if files.rows.exists() else "Paste this.",
    )  # fmt: skip


def _grouped(said):
    """(verdict, lines) of what came with the output."""
    groups: dict[str, list[str]] = {}
    for line in said:
        kind, _, rest = line.partition(": ")
        if line.startswith("  "):
            groups[next(reversed(groups))].append(line.strip())
        else:
            groups.setdefault(kind.lower(), []).append(rest)
    return [(kind, each) for kind, each in groups.items() if kind in MEANINGS] + [
        ("precision", each) for kind, each in groups.items() if kind not in MEANINGS
    ]
