"""How often a call is drawn, and which of its draws counts.

The rule divides two largest errors, the kernel's and Baseline's, and each is the error of one output, most often of a
large one. A kernel that rounds its scores to 16 bits, as Baseline does, is right, and yet single draws of normal inputs
take it beyond twice Baseline's error. What is beyond the rule in one draw is therefore drawn again, and counts if a
second draw is beyond it, too. One draw beyond AT_ONCE times the rule counts as it is."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from attention_check.isolation.worker import Outcome

MORE = 8  # draws of a call of which one is beyond the rule
AT_ONCE = 2  # times what is allowed
SIDE = 0.05  # ulp: outputs that are rounded once scatter by 0.29, so that a smaller mean shows over 33 outputs or more


@dataclass(frozen=True)
class Columns:
    """Of a table with a row a draw, which has seed and outcome, too.

    Attributes:
        call: columns that tell one call from another. times: the largest error over Baseline's.
    """

    call: tuple[str, ...]
    times: str


OF_LENGTHS = Columns(("fmt", "distribution", "n", "queries"), "times_max")  # rows of `tables.measure`
OF_SHAPES = Columns(("shape", "head_dim", "fmt", "tensor"), "ratio")  # rows of `tables.measure_shapes`


def worst_draws(rows: pd.DataFrame, columns: Columns, allowed: float) -> pd.DataFrame:
    """One row a call, that of its worst draw.

    Returns:
        The row, with alone: its error over Baseline's; draws: of the call that were answered; and in the column of that
        error what counts (`score`). An answer that is not finite is infinitely far off; NaN: no draw was answered.
    """
    found = []
    for draws, times in _calls(rows, columns):
        worst = draws[np.fmax(times, -1).argmax()]  # the first, where none was answered
        times = times[~np.isnan(times)]
        about = dict(alone=max(times, default=math.nan), draws=len(times))
        found.append({**rows.iloc[worst], columns.times: score(times, allowed)} | about)
    return pd.DataFrame(found)


def score(times: np.ndarray, allowed: float) -> float:
    """Of the errors over Baseline's in all draws of a call the one that counts: the largest; the second largest, where
    the largest alone is beyond what is allowed and is no more than AT_ONCE times that, and the call was drawn again."""
    largest = max(times, default=math.nan)
    second = np.sort(times)[-2] if len(times) > MORE else largest
    return float(second if second <= allowed < largest <= AT_ONCE * allowed else largest)


def surely_broken(rows: pd.DataFrame, columns: Columns, allowed: float) -> bool:
    """Whether some call breaks the rule in two draws, or in one by AT_ONCE times what is allowed: the kernel fails."""
    broken = ((times > allowed).sum() > 1 or (times > AT_ONCE * allowed).any() for _, times in _calls(rows, columns))
    return any(broken)


def redraw_failures(
    rows: pd.DataFrame, columns: Columns, allowed: float, again: Callable[[pd.Series, range], pd.DataFrame]
) -> pd.DataFrame:
    """A table with MORE draws of each call of which a single draw is beyond the rule, the worst first, until a call
    surely breaks it, which decides, or there is none left. A call is drawn again once.

    Args:
        rows: of one kernel. again: of the row of a call and seeds -> rows of these draws.
    """
    done: set[tuple] = set()
    while len(rows):
        calls = worst_draws(rows, columns, allowed)
        left = [tuple(call) not in done for call in calls[[*columns.call]].to_numpy()]
        broken = calls[left & (calls[columns.times] > allowed).to_numpy()]
        if not len(broken):
            break
        worst = broken.loc[broken[columns.times].idxmax()]
        own = rows[(rows[[*columns.call]] == worst[[*columns.call]]).all(axis=1)]
        if surely_broken(own, columns, allowed):
            break
        done.add(tuple(worst[[*columns.call]]))
        first = int(own.seed.max()) + 1
        rows = pd.concat([rows, again(worst, range(first, first + MORE))], ignore_index=True)
    return rows


def _calls(rows, columns):
    """Yield of each call the places of its draws in a table, and their errors over Baseline's: NaN where a draw was not
    answered."""
    if not len(rows):
        return
    answered = rows.outcome == Outcome.ANSWERED
    times = rows[columns.times].astype(float).fillna(np.inf).where(answered).to_numpy()
    calls = rows.groupby([*columns.call], sort=False).ngroup().to_numpy()
    for call in range(calls.max() + 1):
        draws = np.flatnonzero(calls == call)
        yield draws, times[draws]
