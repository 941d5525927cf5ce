"""A row of the gallery in words and numbers, for its tables, figures and terminal lines."""

import math
from collections.abc import Mapping
from typing import TypeGuard, TypeVar

T = TypeVar("T")

SUMS = {"accumulator": "O", "row_sum": "l"}
CAUSES = {  # of gallery_rows.row's cause, the gravest first -> a few words
    "coarse": "computes a format in a coarser one",
    "rounded_splits": "rounds partial results",
    "answer": "answers some calls wrongly",
    "scale": "is off by one factor",
    "noise": "gives other results on each call",
    "problem": "breaks on some inputs",
    "wrong_gradient": "wrong gradients",
    "error": "error beyond the rule",
    "relation": "breaks a relation: see its page",
    "outputs": "error beyond the rule at some shapes",
}


def found(row: Mapping) -> str:
    """Say in a few words what was found in a kernel; "" where it passes.

    Args:
        row: of `judge_gallery.rows`.
    """
    if given(row.get("over_bits")) and row["verdict"] == "passes":
        return f"as good as its bits: at most {times(row['over_bits'])} x what they cost"
    if given(row.get("carries")):
        sums = " and ".join(SUMS[each] for each in row["carries"].split())
        tile = row.get("tile")
        where = "" if not given(tile) else ", key by key" if tile == 1 else f", in tiles of {int(tile)}"
        return f"carries {sums} in {' and '.join(row['carried_in'].split())}{where}"
    if given(row.get("problem")):
        return row["problem"]
    causes = str(row.get("cause") or "").split()
    return next((words for cause, words in CAUSES.items() if cause in causes), "")


def given(value: T | None) -> TypeGuard[T]:
    """Say whether a table's cell has a value: it is no NaN, None or empty text."""
    return value is not None and value != "" and not (isinstance(value, float) and math.isnan(value))


def times(value: float | None) -> str:
    """Write a number of times for a table: two digits, ∞, or a dash where there is none."""
    if value is None or math.isnan(value):
        return "–"
    return "∞" if math.isinf(value) else f"{value:.2g}" if value < 10 else f"{value:.0f}"


def power(value: float | None) -> str:
    """Write a relative error for a table: two digits, ∞, or a dash where there is none."""
    return "–" if not given(value) else "∞" if math.isinf(value) else f"{value:.1e}"
