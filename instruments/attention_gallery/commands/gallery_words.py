"""A row of the gallery in words and numbers, for its tables, figures and terminal lines."""

import math
from collections.abc import Mapping
from typing import TypeGuard, TypeVar

T = TypeVar("T")

CAUSES = {  # findings of gallery_rows.row's cause, the gravest first -> a few words, where nobody has read the source
    "carry": "keeps a running sum in 16 bits",
    "coarse": "computes a format in a coarser one",
    "answer": "answers some calls wrongly",
    "scale": "is off by one factor",
    "noise": "gives other results on each call",
    "problem": "NaN or an error on some inputs",
    "wrong_gradient": "wrong gradients",
    "error": "error beyond the rule",
    "relation": "breaks a relation",
    "outputs": "error beyond the rule at some shapes",
}


def found(row: Mapping) -> str:
    """Say in a few words why a kernel fails or differs, or that it is as good as its bits; "" where it passes.

    Args:
        row: of `causes.explained`, or of `judge_gallery.rows`.
    """
    if given(row.get("found")):
        return row["found"]
    if given(row.get("over_bits")) and row["verdict"] == "passes":
        return f"{times(row['over_bits'])} times the error that its 4 or 8 bits cost"
    if given(row.get("problem")):
        return row["problem"]
    findings = str(row.get("cause") or "").split() if row["verdict"] == "fails" else []
    return next((words for finding, words in CAUSES.items() if finding in findings), "")


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
