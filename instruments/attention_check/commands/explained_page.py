"""The files of an explanation: a page, and a paragraph for an issue."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from attention_check.conventions.attention import Dialect
from attention_check.conventions.conventions import what
from attention_check.conventions.reading import CapturedCall, Unfit
from attention_check.explain.distance import Distance, Scan
from attention_check.explain.explain_words import MEANINGS, gravest, groups, lines
from attention_check.explain.verdict import Explanation
from attention_check.plots.wrong_rows import wrong_rows
from attention_check.report.page import picture, rendered
from fa_lib.execution.files import replacing
from fa_lib.execution.machine import date
from fa_lib.execution.results import versions

TEMPLATE = Path(__file__).parents[1] / "explain" / "explanation.html.jinja"


def issue(call: CapturedCall, gravest: str, lines: list[str]) -> str:
    """The paragraph, in Markdown. gravest: the line that comes first. lines: of `explain_words.lines`."""
    tensors = ", ".join(f"{name} {tuple(getattr(call, name).shape)}" for name in "qkvo")
    inputs = f"{tensors}, inputs in {call.fmt.name}, o in {_dtype(call.o)}"
    options = f"Called with {options_in_words(call.options)}." if call.options else "Called without options."
    evidence = "\n".join(f"- {line.strip()}" for line in lines if line != gravest)
    return f"**{gravest}**\n\n{inputs}. {options}\n\n{evidence}\n"


def options_in_words(options: Mapping[str, Any]) -> str:
    """Options of a call, "" where there are none: "causal=True, mask=bool (256, 256)"."""
    return ", ".join(
        f"{name}={_dtype(x)} {tuple(x.shape)}" if isinstance(x, Tensor) else f"{name}={x}"
        for name, x in options.items()
    )


def _dtype(x):
    return str(x.dtype).removeprefix("torch.")


def write_explained(page: Path, call: CapturedCall, found: Explanation, name: str, source: str) -> None:
    """Write a paragraph for an issue (.md), and the page, beside which it lies, by its stem.

    Args:
        page: the HTML file. name: of the output, "o" or "o_ref". source: of the tensors, in words.
    """
    scans, issue_file = _scans(call, found), page.with_name(f"{page.stem}_issue.md")
    page.unlink(missing_ok=True)
    text = groups(found, name)
    verdict, headline = gravest(text)
    paragraph = issue(call, f"{verdict.name}: {headline}", lines(found, name))
    with replacing(issue_file) as path:
        path.write_text(paragraph, encoding="utf-8")
    readings = {
        f"read as {what(dialect.changes())}" if dialect.changes() else "read as you believe it": (
            each.residual_by_row, each.places[2]) for dialect, each in scans.items()
    }  # fmt: skip
    html = rendered(
        TEMPLATE, verdict=verdict.value, headline=headline,
        meaning=MEANINGS[verdict] if verdict == found.verdict else "",
        groups=[(each or "", [line for line in group if line != headline]) for each, group in text],
        about=dict(File=source, Output=name) | _about(call), output=name,
        picture=picture(wrong_rows(readings, call.rounding([*scans][-1]))),
        picture_alt=f"{text[0][1][0]} Relative error by head and row.",
        tried=[(what(one) if one else "as believed", f"{off:.2g}") for one, off in found.tried],
        issue=paragraph.splitlines(),
    )  # fmt: skip
    with replacing(page) as path:
        path.write_text(html, encoding="utf-8")


def _scans(call: CapturedCall, found: Explanation) -> dict[Dialect, Scan]:
    """All rows beside the believed dialect, where its shapes make a call, and beside the one that was found."""
    scans = {}
    for dialect in dict.fromkeys((Dialect(), Dialect(**found.dialect))):
        try:
            scans[dialect] = Distance.of(call, dialect).scan
        except Unfit:
            continue
    return scans


def _about(call: CapturedCall) -> dict[str, str]:
    tensors: dict[str, list[str]] = {}  # shape -> the tensors that have it
    for name, x in [*((name, getattr(call, name)) for name in "qkvo"), *call.others.items()]:
        tensors.setdefault(f"{tuple(x.shape)}", []).append(name)
    shapes = {", ".join(names): shape for shape, names in tensors.items()}
    by = {"Explained by": f"fa_lib, torch {versions()['torch']}", "Date": date()}
    return shapes | {"Inputs": call.fmt.name, "Options": options_in_words(call.options) or "none"} | by
