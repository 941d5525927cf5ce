"""How two training runs part: how fast their distance grows, and what a kernel's first step says of its curve.

Training amplifies any difference between two runs. Where it amplifies all of them alike, the curve of a kernel follows
from two things: how far its first steps move the weights, and what nudges of the initial weights grow to, which need no
kernel at all.
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from fa_lib.check.judge import interval
from fa_lib.training.arm import PAIRS


def rates(table: pd.DataFrame, metric: str = "relative_l2") -> pd.DataFrame:
    """The growth of a distance per step, from each checkpoint to the next: finite-time Lyapunov exponents.

    Args:
        table: of `study.study`.

    Returns:
        table: pair, seed, since, step, rate: log(distance(step) / distance(since)) / (step - since). Where a distance
        is 0 there is no row.
    """
    rows = []
    for (pair, seed), group in table[table[metric] > 0].groupby(["pair", "seed"], sort=False):
        steps, logs = group.step.to_numpy(), np.log(group[metric].to_numpy())
        each = np.diff(logs) / np.diff(steps)
        rows += [dict(pair=pair, seed=seed, since=s, step=t, rate=r) for s, t, r in zip(steps, steps[1:], each)]
    return pd.DataFrame(rows, columns=["pair", "seed", "since", "step", "rate"])


def late(table: pd.DataFrame, metric: str) -> pd.Series:
    """The growth of a distance per step over the second half of training: a Series by pair and seed. It is 0 where the
    runs part no further."""
    steps = np.sort(table.step.unique())
    middle, last = steps[np.abs(steps - steps[-1] / 2).argmin()], steps[-1]
    wide = table.pivot_table(index=["pair", "seed"], columns="step", values=metric)
    return np.log(wide[last] / wide[middle]) / (last - middle)


def predicted(table: pd.DataFrame, pairs: Iterable[str], at: int = 1, metric: str = "relative_l2") -> pd.DataFrame:
    """The curves of some pairs, from nothing but their distances after `at` steps.

    Nudges of the same twin's initial weights, by 1e-8 to 1e-3, say what a distance after `at` steps has become later.
    It is read off between them, in logarithms; below the smallest nudge it is taken to be proportional, above the
    largest it is the largest's.

    Args:
        table: of `study.study`, with nudges of the twins of `pairs` (keys of PAIRS that begin with "perturb").

    Returns:
        table: pair, seed, step, measured, predicted; of the seeds that have all nudges that any has.
    """
    curves = table.pivot_table(index=["seed", "pair"], columns="step", values=metric)
    rows = []
    for seed, own in curves.groupby("seed"):
        own = own.droplevel("seed")
        for pair in own.index.intersection(list(pairs)):
            known = curves.index.unique("pair").intersection(nudges_of(pair))
            first = own.loc[pair, at]
            if known.empty or not known.isin(own.index).all() or not first > 0:
                continue
            nudges = own.loc[known].sort_values(at)
            below = min(1.0, first / nudges[at].iloc[0])
            for step in [step for step in own.columns if step >= at]:
                read = np.interp(np.log(first), np.log(nudges[at]), np.log(nudges[step]))
                rows.append(dict(
                    pair=pair, seed=seed, step=step, measured=own.loc[pair, step], predicted=below * np.exp(read),
                ))  # fmt: skip
    return pd.DataFrame(rows, columns=["pair", "seed", "step", "measured", "predicted"])


def nudges_of(pair: str) -> list[str]:
    """The pairs that nudge the initial weights of a pair's twin."""
    twin = PAIRS[pair].twin
    return [key for key, other in PAIRS.items() if key.startswith("perturb") and other.twin == twin and key != pair]


def geometric(ratios: pd.Series) -> tuple[float, float, float]:
    """Geometric mean of ratios, one a seed, and its 95 % interval (Student's, of the logarithms)."""
    mean, low, high = interval(np.log(ratios))
    return float(np.exp(mean)), float(np.exp(low)), float(np.exp(high))
