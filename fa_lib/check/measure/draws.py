"""Is an error that breaks the rule the kernel's, or one draw's? More draws of the same call tell.

The rule divides two largest errors, the kernel's and Baseline's, and each is the error of one output, most often of a
large one. A kernel that rounds its scores to 16 bits, as Baseline does, is right; on normal inputs one draw in a
thousand takes it beyond twice Baseline's error (8 of 8,148 calls over shapes, 1 of 4,104 over lengths; the furthest was
2.8). So what breaks the rule in one draw is drawn again, and counts if a second draw breaks it, too."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

MORE = 8  # draws of a call in which one breaks the rule
FAR = 2  # times what is allowed: an error beyond that counts at once


@dataclass(frozen=True)
class Columns:
    """Of a table with a row a draw.

    Attributes:
        call: columns that tell one call from another. times: the largest error over Baseline's.
    """

    call: tuple[str, ...]
    times: str


OF_LENGTHS = Columns(("fmt", "distribution", "n", "queries"), "times_max")  # rows of `examine.measure`
OF_SHAPES = Columns(("shape", "head_dim", "fmt", "tensor"), "ratio")  # rows of `examine.measure_shapes`


def counted(times: pd.Series, allowed: float) -> float:
    """Of the errors over Baseline's in all draws of a call the one that counts: the largest; the second largest, where
    the largest alone is beyond what is allowed, is not FAR beyond, and more than MORE draws were made."""
    largest = times.nlargest(2)
    lone = len(times) > MORE and not _sure(largest, allowed)
    return float(largest.iloc[-1] if lone else times.max())


def _sure(largest, allowed):
    """Of the two largest errors: the rule is broken, or kept, and not by one draw alone."""
    again = len(largest) == 2 and largest.min() > allowed
    return again or not allowed < largest.max() <= FAR * allowed


def worst_draws(rows: pd.DataFrame, columns: Columns, allowed: float) -> pd.DataFrame:
    """One row a call, that of its worst draw.

    Returns:
        The row, with alone: its error over Baseline's; draws: of the call; and in the column of that error what counts.
    """
    found = []
    for _, draws in rows.groupby([*columns.call], sort=False):
        times = draws[columns.times]
        worst = draws.loc[times.idxmax()] if times.notna().any() else draws.iloc[0]
        about = dict(alone=worst[columns.times], draws=len(draws))
        found.append({**worst, columns.times: counted(times, allowed)} | about)
    return pd.DataFrame(found)


def drawn_again(
    rows: pd.DataFrame, columns: Columns, allowed: float, again: Callable[[pd.Series, range], pd.DataFrame]
) -> pd.DataFrame:
    """A table with MORE draws of each call that breaks the rule in one draw, the worst first, until one surely breaks
    it, which decides, or none does.

    Args:
        rows: of one kernel. again: of the row of a call and seeds -> rows of these draws.
    """
    while True:
        calls = worst_draws(rows, columns, allowed) if len(rows) else rows
        broken = calls[calls[columns.times] > allowed] if len(calls) else calls
        if not len(broken):
            return rows
        worst = broken.loc[broken[columns.times].idxmax()]
        own = rows[(rows[[*columns.call]] == worst[[*columns.call]]).all(axis=1)]
        if _sure(own[columns.times].nlargest(2), allowed):
            return rows
        first = int(own.seed.max()) + 1
        rows = pd.concat([rows, again(worst, range(first, first + MORE))], ignore_index=True)
