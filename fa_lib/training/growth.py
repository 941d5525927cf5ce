"""How two training runs move apart: how fast their distance grows, and what a kernel's first step says of its curve.

Training amplifies any difference between two runs. Where it amplifies all of them alike, the curve of a kernel follows
from two things: how far its first step moves the weights, and what nudges of the initial weights grow to, which need no
kernel at all. Where the first step moves them less than the smallest nudge does, the second says it alone.
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from fa_lib.numerics.confidence import interval
from fa_lib.training.arm import PAIRS


def rates(table: pd.DataFrame) -> pd.DataFrame:
    """Compute how fast the relative L2 distance grows per step, from each checkpoint to the next: finite-time Lyapunov
    exponents.

    Args:
        table: of `study.study`.

    Returns:
        DataFrame: pair, seed, since, step, rate: log(distance(step) / distance(since)) / (step - since). Where a
        distance is 0 there is no row.
    """
    rows = []
    for (pair, seed), group in table[table.relative_l2 > 0].groupby(["pair", "seed"], sort=False):
        steps, logs = group.step.to_numpy(), np.log(group.relative_l2.to_numpy())
        slopes = np.diff(logs) / np.diff(steps)
        rows += [dict(pair=pair, seed=seed, since=s, step=t, rate=r) for s, t, r in zip(steps, steps[1:], slopes)]
    return pd.DataFrame(rows, columns=["pair", "seed", "since", "step", "rate"])


def late(table: pd.DataFrame, metric: str) -> pd.Series:
    """Compute how fast a distance grows per step over the second half of training.

    Args:
        table: of `study.study`.
        metric: the column of the distance.

    Returns:
        Series by pair and seed; 0 where the distance no longer grows.
    """
    steps = np.sort(table.step.unique())
    middle, last = steps[np.abs(steps - steps[-1] / 2).argmin()], steps[-1]
    wide = table.pivot_table(index=["pair", "seed"], columns="step", values=metric)
    return np.log(wide[last] / wide[middle]) / (last - middle)


def predicted(table: pd.DataFrame, pairs: Iterable[str], metric: str = "relative_l2") -> pd.DataFrame:
    """Predict the curves of pairs from nothing but their relative L2 distance after the first step.

    The same twin's initial weights were also nudged, by 1e-8 to 1e-3. The nudges' curves give the distance at the next
    checkpoint for each distance at this one: it is interpolated between them, in logarithms. A distance above the
    largest nudge's becomes the largest nudge's next distance, and one below the smallest nudge's becomes the smallest
    nudge's: two runs that differ so little round at every step as two kernels do, and are as far apart soon after.

    Args:
        table: of `study.study`, with nudges of the twins of `pairs` (keys of PAIRS that begin with "perturb").
        pairs: keys of PAIRS to predict.
        metric: what is predicted. Another metric than the L2 distance is read off the same nudges, at the predicted L2
            distance.

    Returns:
        DataFrame: pair, seed, step, measured, predicted, one_rate; of the seeds that have all nudges that any has.
        one_rate is a prediction from two numbers: the distance after the first step, and for all of training the mean
        rate of growth of the nudge whose distance after the first step is nearest.
    """
    curves, metric_curves = (
        table.pivot_table(index=["seed", "pair"], columns="step", values=name) for name in ("relative_l2", metric)
    )
    rows = []
    for seed in curves.index.unique("seed"):
        own, metrics = curves.loc[seed], metric_curves.loc[seed]
        for pair in own.index.intersection(list(pairs)):
            nudges = curves.index.unique("pair").intersection(nudges_of(pair))
            if nudges.empty or not nudges.isin(own.index).all() or not own.loc[pair, 1] > 0:
                continue
            nearest = metrics.loc[np.log(own.loc[nudges, 1] / own.loc[pair, 1]).abs().idxmin()]
            last = nearest.index[-1]
            rate = np.log(nearest[last] / nearest[1]) / max(last - 1, 1)  # of one step alone, 0
            for step, distance in _grown(own.loc[pair, 1], own.loc[nudges]).items():
                value = distance if metric == "relative_l2" else _read(distance, own.loc[nudges, step], metrics[step])
                row = dict(pair=pair, seed=seed, step=step, measured=metrics.loc[pair, step], predicted=value)
                rows.append(row | dict(one_rate=metrics.loc[pair, 1] * np.exp(rate * (step - 1))))
    return pd.DataFrame(rows, columns=["pair", "seed", "step", "measured", "predicted", "one_rate"])


def _grown(first: float, nudges: pd.DataFrame) -> dict[int, float]:
    """What a distance after the first step becomes at each later one. nudges: (pair, step)."""
    steps = [step for step in nudges.columns if step >= 1]
    curve = {1: first}
    for since, step in zip(steps, steps[1:]):
        curve[step] = _read(curve[since], nudges[since], nudges[step])
    return curve


def _read(distance: float, nudges: pd.Series, become: pd.Series) -> float:
    """What a distance becomes, read off what nudges do, in logarithms between them."""
    nudges = nudges.sort_values()
    return float(np.exp(np.interp(np.log(distance), np.log(nudges), np.log(become[nudges.index]))))


def nudges_of(pair: str) -> list[str]:
    """List the pairs, keys of PAIRS, that nudge the initial weights of the twin of `pair`."""
    twin = PAIRS[pair].twin
    return [key for key, other in PAIRS.items() if key.startswith("perturb") and other.twin == twin and key != pair]


def geometric(ratios: pd.Series) -> tuple[float, float, float]:
    """Compute the geometric mean of ratios, one for each seed, and its 95 % interval (Student's, of the logarithms).

    Returns:
        (mean, low, high).
    """
    mean, low, high = interval(np.log(ratios))
    return float(np.exp(mean)), float(np.exp(low)), float(np.exp(high))
