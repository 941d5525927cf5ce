"""What the theory says of errors must be what is measured, and its bounds must hold."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from attention_check.tolerance import repeated
from fa_lib import kernels, theory
from fa_lib.experiments.ablation import carried
from fa_lib.experiments.law import carried_in, only_sums
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import BF16, FP16, FP64
from fa_lib.numerics.metrics import deviation
from fa_lib.theory import drift, recurrence, rounding_counts, simulation
from fa_lib.theory.extremes import RMS, largest
from fa_lib.theory.law import VALUES_OF
from fa_lib.theory.rounding_counts import BACK


def log_uniform(count, seed=0):
    """Values spread evenly in log over a binade, to more bits than BF16 has."""
    return torch.from_numpy(2 ** np.random.default_rng(seed).uniform(0, 1, count))


def test_one_rounding_has_the_error_that_was_derived():
    x = log_uniform(10**6)
    found = ((BF16(x) - x) / x).square().mean().sqrt().item() / BF16.unit_roundoff
    assert found == pytest.approx(RMS, rel=3e-3) and pytest.approx(0.42466, abs=1e-5) == RMS


def test_a_sum_of_two_numbers_of_a_grid_has_ties():
    x, y = (BF16(log_uniform(10**6, seed)) for seed in (0, 1))  # of one binade: their sum is in the next
    found = ((BF16(x + y) - x - y) / BF16.ulp(x + y)).square().mean().item()
    assert found == pytest.approx(3 / 2 / 12, rel=0.01)
    two = np.tile(np.linspace(1.2, 1.8, 50), (2, 1))
    scatter = drift.summed(two, np.full(50, 0.02), 8, np.zeros((2, 50)), np.zeros(2)).variance
    assert scatter * (2 * two[0]) ** 2 / 2.0**-12 == pytest.approx(3 / 2 / 12, rel=1e-3)


@pytest.mark.parametrize("spread", [0.01, 0.1, 0.3, 0.69, 2.0])
def test_one_addition_has_the_distribution_of_round(spread):
    """docs/law/theory.md, drift and scatter: by its series and by integration, and where the sum stands still."""
    x = np.array([0.1, 0.4, 0.7, 3.2])
    z = np.linspace(-6, 6, 200_001)
    weight = np.exp(-(z**2) / 2)
    error = np.round(x[:, None] + spread * z) - x[:, None] - spread * z
    mean, square = ((error**power * weight).sum(1) / weight.sum() for power in (1, 2))
    found = drift.one_addition(x, np.full(4, spread))
    assert found[0] == pytest.approx(mean, abs=2e-3) and found[1] == pytest.approx(square, abs=2e-3)
    if spread == 0.01:
        assert found[0][1] == pytest.approx(-0.4, abs=2e-3)


def test_errors_of_o_and_l_cancel_where_their_significands_agree():
    """docs/law/theory.md: in BF16 at 128 tiles of uniform inputs each alone has more error than both together."""

    def error(tiles, **formats):
        of = simulation.drawn("one_sign", tiles, 8192)
        o = recurrence.carried(of, replace(Precision.uniform(FP64), **formats), "fa2")
        return ((o / of.golden - 1) / BF16.unit_roundoff).square().mean().sqrt().item()

    alone = error(128, row_sum=BF16), error(128, accumulator=BF16), error(128, row_sum=BF16, accumulator=BF16)
    assert alone == pytest.approx((14, 9.2, 5.5), rel=0.02)
    allowance = [repeated(BF16, t, 0.021) / BF16.unit_roundoff for t in (32, 64, 128)]
    assert all(1.1 < a / error(t, row_sum=BF16) < 1.6 for a, t in zip(allowance, (32, 64, 128)))
    assert repeated(FP16, 64, 0.02) < 0.1 * theory.expected(Precision.uniform(FP16), tiles=64)  # terms dither it


def test_the_program_carries_as_the_emulator_does():
    """One score and one value a tile, which the emulator can be given as they are: the same bits."""
    of = simulation.drawn("one_sign", 8, 16, block_kv=1)
    for algorithm in ("fa1", "fa2"):
        for row in range(16):
            S, v = of.highest[:, row], of.O[:, row]
            q, k = torch.ones(1, 1, 1, 1, dtype=torch.float64), S[None, None, :, None]
            precision, tiling = only_sums(BF16), Tiling(1, 1)
            how = dict(scale=1.0, tiling=tiling, precision=precision, algorithm=algorithm)
            o = kernels.tiled(q, k, v[None, None, :, None], **how)
            assert o.item() == recurrence.carried(of, precision, algorithm)[row].item()


@pytest.mark.slow
@pytest.mark.parametrize("distribution", ["uniform", "normal"])
def test_parts_of_the_keys_with_a_row_sum_in_fp32(distribution):
    """With values of mean zero the parts' outputs are independent, too, and their errors are not averaged down."""
    precision = replace(only_sums(carried_in(12)), row_sum=FP64)
    for splits in (1, 2, 4, 8):
        ratios = []
        for seed in range(3):
            q, k, v = (BF16(x) for x in draw(distribution, seed, (1, 1, 64, 64), (1, 1, 512, 64)))
            algorithm = kernels.Algorithm(splits=splits)
            o = kernels.tiled(q, k, v, tiling=Tiling(64, 16), precision=precision, algorithm=algorithm)
            found = deviation(o, kernels.golden(q, k, v, inputs=FP64)).relative
            values = "zero_mean" if distribution == "normal" else "one_sign"
            predicted = theory.expected(
                precision, tiles=32, algorithm="fa2", splits=splits, values=values, block_kv=16)  # fmt: skip
            ratios.append(predicted / found)
        assert 0.8 < np.mean(ratios) < 1.25, (splits, ratios)


@pytest.mark.slow
def test_gradients_follow_it_too():
    q, k, v = (BF16(x) for x in draw("normal", 0, (1, 1, 512, 64)))
    precision = replace(Precision.uniform(FP64), grad_sums=carried_in(12), output=carried_in(12))
    dO = draw("normal", 1, (1, 1, 512, 64))[0]
    grads = []
    for p in (precision, Precision.uniform(FP64)):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        kernels.tiled(*leaves, tiling=Tiling(16, 16), precision=p).backward(dO)
        grads.append([x.grad for x in leaves])
    predicted = theory.expected_gradients(precision, tiles=32)
    for got, exact in zip(*grads):
        assert 0.75 < predicted / deviation(got, exact).relative < 1.25


def test_baselines_error_is_storing_where_v_has_one_sign():
    u, given = BF16.unit_roundoff, dict(tiles=32, algorithm="baseline")
    assert theory.expected(Precision.materialized(BF16), **given) == pytest.approx(RMS * u, rel=1e-3)
    both = theory.expected(Precision.materialized(BF16), **given, values="zero_mean")
    assert both / u == pytest.approx(1.12, abs=0.01)
    assert theory.expected(Precision.kernel(BF16), tiles=32) == pytest.approx(RMS * u, rel=1e-3)


@pytest.mark.parametrize("distribution", VALUES_OF)
def test_the_map_of_bits_is_within_a_bit_of_the_frontier(distribution):
    for tiles in (1, 4, 16, 128):
        given = dict(tiles=tiles, bits=[5, 6, 7, 8, 9, 10, 11, 12, 14])
        rows = pd.DataFrame(row for seed in (0, 1, 2) for row in carried(distribution, seed, **given))
        times = rows.groupby("bits").times_max.mean()
        found = np.interp(-1.0, -np.log2(times), times.index)
        predicted = theory.bits_for(2.0, BF16, tiles=tiles, values=VALUES_OF[distribution], count=128 * 64)
        assert abs(found - predicted) <= 1, (distribution, tiles)


def test_the_largest_of_few_roundings_is_bounded_and_of_many_is_normal():
    assert largest(10**6, 0.0, [1.0]) == pytest.approx(1.0, abs=0.03)  # half an ulp, just above a power of two
    assert largest(10**6, 0.0, [1.0, 1.0]) < 2.0
    assert largest(10**4, 0.0, np.ones(2000)) == pytest.approx(largest(10**4) * RMS * 2000**0.5, rel=0.01)
    rng, count = np.random.default_rng(0), 1000
    errors = (rng.uniform(-1, 1, (2000, count, 3)) / 2 ** rng.uniform(0, 1, (2000, count, 3))).sum(-1)
    assert largest(count, 0.0, [1.0] * 3) == pytest.approx(np.median(np.abs(errors).max(-1)), rel=0.01)


def test_a_sum_key_by_key_breaks_the_probabilistic_bound_and_not_the_other():
    """1,024 equal terms in BF16 stop at 256: their roundings are anything but independent."""
    q, k, v = torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1024, 1), torch.ones(1, 1, 1024, 1)
    precision = replace(Precision.uniform(FP64), row_sum=BF16)
    o = kernels.tiled(q.double(), k.double(), v.double(), tiling=Tiling(1, 1), precision=precision)
    assert o.item() == 4.0  # instead of 1
    found, given = abs(o.item() - 1), dict(tiles=1024, rise=0.0)
    assert found > theory.bound(precision, **given, keys=1024, failure=0.01)
    assert theory.bound(precision, **given) == math.inf


@pytest.mark.parametrize(
    "given, message",
    [
        (dict(tiles=0), r"^tiles: got 0; .* from 1\b"),
        (dict(tiles="8"), r"^tiles: got '8'; "),
        (dict(tiles=4, splits="2"), r"^splits: got '2'; .*\b4 tiles"),
        (dict(tiles=4, splits=5), r"^splits: got 5; .*\b4 tiles"),
        (dict(tiles=4, algorithm="fa3"), "algorithm: got 'fa3'; accepted are fa1, fa2, baseline"),
        (dict(tiles=4, values="positive"), "values: got 'positive'; accepted are one_sign, one_sign_peaked, zero_mean"),
    ],
)
def test_what_it_does_not_know_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        theory.expected(Precision.uniform(BF16), **given)


def test_what_dividing_and_multiplying_back_costs_depends_on_where_o_lies():
    """docs/law/theory.md: 0.81 of one rounding's square where O is log-uniform, more near 1/2, less at 0.75."""
    random, count = np.random.default_rng(0), 500_000
    l = BF16(torch.from_numpy(2.0 ** random.uniform(0, 6, count)))
    near = torch.from_numpy(0.03 * random.normal(size=count))
    places = {1.13: 0.5 + near, 0.39: 0.75 + near, BACK: torch.from_numpy(2.0 ** random.uniform(-1, 0, count))}
    one = ((BF16(places[BACK]) / places[BACK] - 1) ** 2).mean()
    for cost, O in places.items():
        x = BF16(O * l)
        assert (((BF16(BF16(x / l) * l) / x - 1) ** 2).mean() / one).item() == pytest.approx(cost, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("mean", [0.45, 0.75])
def test_the_law_follows_fa1_wherever_o_lies(mean, monkeypatch):
    """docs/law/theory.md: FA1 in BF16, 128 and 256 tiles of 64 keys, for several means of V."""
    monkeypatch.setitem(rounding_counts.VALUES, "one_sign", replace(rounding_counts.VALUES["one_sign"], mean=mean))
    most, ratios = simulation.drawn("one_sign", 256, 2048), []
    for tiles in (128, 256):
        drift.of_output.cache_clear(), drift.normal_tiles.cache_clear()
        of = most.first(tiles)
        of = replace(of, O=of.O * 2 * mean)
        error = recurrence.carried(of, only_sums(BF16), "fa1") - of.golden
        simulated = (error.square().mean() / of.golden.square().mean()).sqrt().item()
        ratios.append(theory.expected(only_sums(BF16), tiles=tiles) / simulated)
    drift.of_output.cache_clear(), drift.normal_tiles.cache_clear()
    assert all(0.9 < ratio < 1.1 for ratio in ratios)
