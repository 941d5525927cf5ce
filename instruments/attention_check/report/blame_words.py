"""What each source line of a GPU kernel adds to its error, in words."""

from collections.abc import Mapping
from pathlib import Path

from attention_check.gpu.blame import Blame

SMALL = 5e-3  # shares below are not worth a line of their own
NO_LINE = "instructions without a line"
WIDTH = 76  # characters of a source line


def percent(share: float) -> str:
    """Write a share: 62 %, or "< 0.5 %"."""
    return "< 0.5 %" if abs(share) < SMALL else f"{100 * share:.0f} %"


def place(row: Mapping) -> str:
    """Write where a line is: file:number, and the line that calls it."""
    called = f", called in {Path(row['within']).name}" if row["within"] else ""
    return f"{row['line'].name}{called}" if row["line"].name else "no source line"


def shortened(text: str) -> str:
    """A source line of at most WIDTH characters."""
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 3]}..."


def headline(found: Blame) -> str:
    """Say how large the error is, and which line adds most of it."""
    table, size = found.table, f"The error of the output is {found.relative:.1e} of its size"
    if not len(table):
        return f"{size}: no line makes a rounding error."
    first = table.iloc[0]
    return f"{size}; {place(first)} adds {percent(first.share)} of its square."


def completeness(found: Blame) -> str:
    """Say whether the shadows followed every step."""
    if found.complete:
        return f"Without rounding errors the kernel computes attention, to {found.distance:.0e}: no step is missing."
    lost = sorted(found.lost.items(), key=lambda item: -sum(item[1].values()))[:3]
    where = "; ".join(f"{', '.join(words)} in {line.name or NO_LINE}" for line, words in lost)
    ends = f" Numbers could not be followed through {where}." if where else ""
    part = percent((found.distance / found.relative) ** 2)
    rest = f"the kernel is still {found.distance:.0e} from attention ({part} of the square)"
    return f"Without the errors listed here {rest}: that part of its error has no line.{ends}"


def lines(found: Blame) -> list[str]:
    """The lines that are printed: a headline, a table of the lines that matter, and how complete it is."""
    table, fmt = found.table, found.coarse_format.name
    shown = table[(table.share.abs() >= SMALL) | (table.coarse >= 1.25)]
    head = f"{'share':>8} {'exact':>7} {f'in {fmt}':>8}  line"
    rows = [f"{percent(row['share']):>8} {row['without']:>7.2f} {row['coarse']:>8.2f}  {place(row)}\n{'':27}"
            f"{shortened(row['text'])}" for row in shown.to_dict("records")]  # fmt: skip
    rest = len(table) - len(shown)
    others = [f"{rest} other lines add less than 0.5 % each, and would at most add a quarter in {fmt}."] if rest else []
    legend = (f"share: of the squared error. exact, in {fmt}: the error, relative to now, if this line alone computed "
              f"exactly, or rounded to {fmt}.")  # fmt: skip
    return [headline(found), "", head, *rows, *others, "", legend, completeness(found)]
