"""The page of `fa-lib blame`: the kernel's source, with the share of the error beside each line."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attention_check.commands.blame_words import completeness, headline, percent, place
from attention_check.gpu.blame import Blame, source_text
from attention_check.report.page import rendered
from fa_lib.execution.files import replacing
from fa_lib.execution.machine import date

TEMPLATE = Path(__file__).with_name("blame.html.jinja")
AROUND = 3  # lines of source before and after one that makes an error


def write(out: Path, found: Blame, about: Mapping[str, str], answers: Sequence[str]) -> None:
    """Write the page.

    Args:
        out: the file. found: what is shown. about: name -> value, of the call. answers: sentences on changes.
    """
    page = rendered(
        TEMPLATE, headline=headline(found), completeness=completeness(found), about=dict(about) | dict(date=date()),
        answers=[*answers], sources=[each for file in found.files if (each := source(found, file))["lines"]],
        rows=rows(found), coarse=found.coarse_format.name,
    )  # fmt: skip
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as path:
        path.write_text(page)


def rows(found: Blame) -> list[dict[str, str]]:
    """Write the table's rows in words."""
    return [
        dict(
            share=percent(row["share"]), without=f"{row['without']:.2f}", coarse=f"{row['coarse']:.2f}",
            own=f"{row['own']:.0e}", count=f"{row['count']:,}", place=place(row), text=row["text"], what=row["what"],
        )
        for row in found.table.to_dict("records")
    ]  # fmt: skip


def source(found: Blame, file: str) -> dict[str, Any]:
    """Return the lines of a file around those that make errors: number, text, share in words, heat from 0 to 100, gap
    (whether lines are left out before it)."""
    shares, text = found.by_line(file), source_text(file)
    shown = sorted({near for number in shares for near in range(number - AROUND, number + AROUND + 1) if near in text})
    lines, last = [], None
    for number in shown:
        share = shares.get(number)
        words, heat = ("", 0) if share is None else (percent(share), round(100 * min(abs(share), 1) ** 0.5))
        gap = last is not None and number > last + 1
        lines.append(dict(number=number, text=text[number], gap=gap, share=words, heat=heat))
        last = number
    return dict(name=Path(file).name, lines=lines)
