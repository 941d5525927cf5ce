"""How often a call is drawn: until its verdict is certain.

The rule divides two largest errors, the kernel's and Baseline's, and each is the error of one output, most often of a
large one. A kernel that rounds its scores to 16 bits, as Baseline does, is right, and yet single draws of normal inputs
take it beyond twice Baseline's error. What is beyond the rule in one draw is therefore drawn again, and counts if a
second draw is beyond it, too. One draw beyond AT_ONCE times the rule counts as it is.

**A call within the rule is drawn until that is certain**, by Wald's sequential probability ratio test (1945). Let x be
the logarithm of a draw's error over Baseline's. From draw to draw it is close to normal, with a standard deviation s of
at most SPREAD (measured: docs/reference/checks.md). Two hypotheses name its mean: ln(USUAL), of kernels that carry
FP32, and ln(allowed), where every second draw breaks the rule. With g = ln(allowed / USUAL), a draw's logarithm of the
likelihood ratio is

    g (x - ln(allowed) + g / 2) / s^2,

and the call needs no further draw once its sum over the draws is below ln(UNSURE). The inverse of the ratio is a
martingale of mean 1 under the second hypothesis, so that by Ville's inequality a call of which every second draw breaks
the rule is ever stopped so with probability UNSURE at most. With a larger mean it is less; x need not be normal, but
sub-Gaussian with s^2.

**A bias** is reported from SIDE ulp on, if its interval over draws leaves 0 out. The mean of thousands of outputs has a
standard deviation of BIAS_SPREAD from draw to draw, or what is seen where that is more, so that the mean of n draws of
a kernel with a bias of SIDE is below SIDE - z BIAS_SPREAD / sqrt(n) with probability UNSURE, z its quantile of the
normal distribution. Outputs that are nearer to 0 after BIAS_DRAWS draws are drawn no further."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import pandas as pd

from attention_check.isolation.worker import Outcome

MORE = 8  # draws of a call of which one is beyond the rule
AT_ONCE = 2  # times what is allowed
UNSURE = 1e-6  # the probability that a kernel which breaks the rule in every second draw is drawn no further
SPREAD = {"uniform": 0.15, "normal": 0.45}  # standard deviation of ln(error over Baseline's), from draw to draw
USUAL = {"uniform": 1.0, "normal": 0.5}  # error over Baseline's of a kernel that carries FP32

SIDE = 0.05  # ulp: outputs that are rounded once scatter by 0.29, so that a smaller mean shows over 33 outputs or more
BIAS_SPREAD = 0.01  # ulp: standard deviation of the mean error away from zero, from draw to draw
BIAS_DRAWS = 3  # after which that is looked at


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


def certainly_within(times: np.ndarray, allowed: float, distribution: str) -> bool:
    """Whether the errors over Baseline's in all draws of a call, of inputs in SPREAD, need no further draw."""
    gap = math.log(allowed / USUAL[distribution])
    steps = gap * (np.log(np.maximum(times, 1e-9) / allowed) + gap / 2) / SPREAD[distribution] ** 2
    return bool(steps.sum() <= math.log(UNSURE))


def surely_broken(rows: pd.DataFrame, columns: Columns, allowed: float) -> bool:
    """Whether some call breaks the rule in two draws, or in one by AT_ONCE times what is allowed: the kernel fails."""
    broken = ((times > allowed).sum() > 1 or (times > AT_ONCE * allowed).any() for _, times in _calls(rows, columns))
    return any(broken)


def undecided(rows: pd.DataFrame, allowed: float) -> pd.DataFrame:
    """The last row of each call of `tables.measure` that is neither certainly within the rule nor beyond it in some
    draw, and was answered in all. None where the kernel fails."""
    if surely_broken(rows, OF_LENGTHS, allowed):
        return rows[:0]
    last = []
    for draws, times in _calls(rows, OF_LENGTHS):
        certain = certainly_within(times, allowed, rows.distribution.iloc[draws[0]])
        if not (times > allowed).any() and not np.isnan(times).any() and not certain:
            last.append(draws[-1])
    return rows.iloc[last]


def certainly_unbiased(outwards: pd.Series) -> bool:
    """Whether mean errors away from zero, one a draw, leave no doubt that a kernel's is below SIDE; NaN does."""
    z, spread = -NormalDist().inv_cdf(UNSURE / 2), np.nanmax([outwards.std(), BIAS_SPREAD])
    return bool(abs(outwards.mean(skipna=False)) + z * spread / math.sqrt(len(outwards)) < SIDE)


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
