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


def test_beyond_the_nudges_the_curve_is_the_nearest_ones():
    first = {("perturb", 0): 1e-7, ("perturb_1e-3", 0): 1e-3, ("flash", 0): 1e-9, ("flash_emulated", 0): 1e-2}
    found = predicted(study(first, {10: 20.0}), ["flash", "flash_emulated"])
    assert found[found.step == 10].predicted.tolist() == pytest.approx([20e-7, 20e-3])


@pytest.mark.parametrize("metric", ["relative_l2", "wasserstein"])
def test_two_numbers_are_the_first_step_and_the_rate_of_the_nearest_nudge(metric):
    nudges = {("perturb", 0): 1e-7, ("perturb_1e-3", 0): 1e-3}
    table = pd.concat([study(nudges, {11: 7.0, 21: np.e**2}), study({("flash", 0): 1e-6}, {11: 20.0, 21: 30.0})])
    found = predicted(table, ["flash"], metric).set_index("step").one_rate
    first, nudge = (table[(table.pair == pair) & (table.step == 1)][metric].item() for pair in ("flash", "perturb"))
    end = table[(table.pair == "perturb") & (table.step == 21)][metric].item()
    assert found[[1, 21]].tolist() == pytest.approx([first, first * end / nudge])
    assert found[11] == pytest.approx((found[1] * found[21]) ** 0.5)  # a straight line, in logarithms
    assert predicted(table[table.step == 1], ["flash"], metric).one_rate.item() == first


def test_a_seed_without_all_nudges_is_left_out():
    first = {(pair, seed): size for pair, size in (NUDGES | dict(flash=3e-6)).items() for seed in (0, 1)}
    del first["perturb_1e-5", 1]
    assert set(predicted(study(first, {10: 20.0}), ["flash"]).seed) == {0}
    assert predicted(study({("flash", 0): 1e-6}, {10: 20.0}), ["flash"]).empty


def test_rates_are_of_the_logarithm_per_step():
    table = study({("flash", 0): 1e-6}, {3: np.e**2, 7: np.e**2})
    assert rates(table).rate.tolist() == pytest.approx([1.0, 0.0])
    assert late(table, "relative_l2").item() == pytest.approx(0)
    mean, low, high = geometric(pd.Series([1.0, 4.0]))
    assert mean == pytest.approx(2) and low < 1 and high > 4
