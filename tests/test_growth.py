"""What a run's first step predicts of its curve, from nudges of the initial weights."""

import numpy as np
import pandas as pd
import pytest

from fa_lib.training.growth import geometric, late, predicted, rates

NUDGES = {"perturb": 1e-7, "perturb_1e-5": 1e-5, "perturb_1e-3": 1e-3}


def study(distances, factors):
    """A table of a study in which every distance after the first step grows by the same factors."""
    steps = {1: 1.0} | factors
    rows = [
        dict(pair=pair, seed=seed, step=step, relative_l2=first * times, wasserstein=3 * step * first * times)
        for (pair, seed), first in distances.items()
        for step, times in steps.items()
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize("metric", ["relative_l2", "wasserstein"])
def test_where_all_differences_are_amplified_alike_the_first_step_predicts_the_curve(metric):
    first = {(pair, seed): size for pair, size in NUDGES.items() for seed in (0, 1)}
    first |= {("flash", 0): 3e-6, ("flash", 1): 1e-7}  # between two nudges, and as far as the smallest
    found = predicted(study(first, {10: 20.0, 100: 300.0}), ["flash"], metric)
    assert set(found.seed) == {0, 1} and set(found.step) == {1, 10, 100}
    np.testing.assert_allclose(found.predicted, found.measured)


@pytest.mark.parametrize("growth", [1.0, 1.01])
def test_below_the_nudges_every_step_adds_the_first_ones_distance_once_more(growth):
    """Two runs, of which each step of one adds independent errors of size d, and multiplies all by the growth."""
    d, N = 1e-12, 1e-7
    steps = (1, 2, 4, 10, 25, 100)
    of_kernel = {t: d * np.sqrt(sum(growth ** (2 * (t - s)) for s in range(1, t + 1))) for t in steps}
    of_nudge = {t: np.hypot(N * growth ** (t - 1), of_kernel[t]) for t in steps}
    pairs = dict(flash=of_kernel, perturb=of_nudge)
    rows = [dict(pair=k, seed=0, step=t, relative_l2=x) for k, curve in pairs.items() for t, x in curve.items()]
    found = predicted(pd.DataFrame(rows), ["flash"])
    np.testing.assert_allclose(found.predicted, found.measured, rtol=1e-6)


def test_what_a_nudges_own_rounding_adds_is_not_added_again():
    """A nudge far below what rounding adds has the kernel's own curve."""
    d, steps = 1e-6, (1, 2, 5, 20)
    curve = {t: d * np.sqrt(t) for t in steps}
    rows = [dict(pair=k, seed=0, step=t, relative_l2=x) for k in ("flash", "perturb") for t, x in curve.items()]
    found = predicted(pd.DataFrame(rows), ["flash"])
    np.testing.assert_allclose(found.predicted, found.measured)


def test_a_seed_without_all_nudges_is_left_out():
    first = {(pair, seed): size for pair, size in NUDGES.items() for seed in (0, 1)} | {
        ("flash", 0): 3e-6,
        ("flash", 1): 3e-6,
    }
    del first["perturb_1e-5", 1]
    assert set(predicted(study(first, {10: 20.0}), ["flash"]).seed) == {0}
    assert predicted(study({("flash", 0): 1e-6}, {10: 20.0}), ["flash"]).empty


def test_rates_are_of_the_logarithm_per_step():
    table = study({("flash", 0): 1e-6}, {3: np.e**2, 7: np.e**2})
    assert rates(table).rate.tolist() == pytest.approx([1.0, 0.0])
    assert late(table, "relative_l2").item() == pytest.approx(0)
    mean, low, high = geometric(pd.Series([1.0, 4.0]))
    assert mean == pytest.approx(2) and low < 1 and high > 4
