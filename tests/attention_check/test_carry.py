"""What a kernel carries from tile to tile, seen from outside: emulated kernels whose sums and tiles are known."""

from functools import partial

import pandas as pd
import pytest
import torch
from own_kernels import emulated

from attention_check.checks.carry import ALL, LOST, QUERIES, carried, carry
from attention_check.judge.findings import Finding, Judgement, Severity
from attention_check.report.sentences import sentences_of
from fa_lib import BF16, FP16, Precision, Tiling, kernels
from fa_lib.kernels import Algorithm

pytestmark = pytest.mark.slow


def found(fn, fmt, queries=16):
    """sum -> what `carried` says of it."""
    table = pd.DataFrame(carry(fn, f"{fmt}", queries)).assign(fmt=f"{fmt}", queries=queries)
    return {one["sum"]: one for one in carried(table)}


STEPS = [(), ("accumulator",), ("row_sum",), ("accumulator", "row_sum")]
TILED = [
    dict(), dict(algorithm=Algorithm("fa1")), dict(algorithm=Algorithm(reverse=True)), dict(block_kv=16),
    dict(block_kv=256),
]  # fmt: skip


@pytest.mark.parametrize(
    "fmt, steps, given",
    [(BF16, steps, given) for steps in STEPS for given in TILED]
    + [(FP16, STEPS[i % 4], given) for i, given in enumerate(TILED)],  # FP16 with each of both
)
def test_what_a_kernel_carries_is_seen_from_outside(fmt, steps, given):
    """Which of its sums, and in tiles of how many keys."""
    seen = found(partial(emulated, steps=steps, **given), fmt)
    low = {what: one["low"] for what, one in seen.items()}
    due = {"accumulator": "accumulator" in steps, "row_sum": "row_sum" in steps}
    if given.get("algorithm") == Algorithm("fa1") and "accumulator" in steps:
        assert low.pop("row_sum") in (True, False)  # it divides O, kept in the format, by l at every tile
        due.pop("row_sum")
    assert low == due
    assert {one["tile"] for what, one in seen.items() if due.get(what)} <= {given.get("block_kv", 64)}
    assert all(one["lost"] < 1 for what, one in seen.items() if what in due and not one["low"])


def test_real_kernels_carry_no_low_precision():
    for name in ("flash", "unfused", "baseline"):
        for fmt in ("BF16", "FP16"):
            for queries in QUERIES:
                assert {one["low"] for one in found(name, fmt, queries).values()} == {False}, name


def test_splits_do_not_hide_a_carry():
    kernel = partial(emulated, steps=("accumulator", "row_sum"), algorithm=Algorithm(splits=8))
    assert {one["low"] for one in found(kernel, BF16).values()} == {True}


def test_low_precision_elsewhere_is_not_called_a_carry():
    def scaled_first(q, k, v):
        S = (q * (q.shape[-1] ** -0.5 * 1.4427)).to(q.dtype).float() @ k.float().mT * 0.6931
        return torch.softmax(S, -1).to(q.dtype) @ v

    seen = found(scaled_first, BF16)
    assert {one["low"] for one in seen.values()} == {False} and seen["row_sum"]["lost"] > 0.25  # the output's rounding


def test_a_sum_inside_a_tile_is_told_from_one_from_tile_to_tile():
    """SageAttention's kernel adds up P V of a tile in FP16, and O in FP32."""
    for all_lost, words in ((57.0, "A part of a tile is summed"), (4.5, "It keeps its accumulator O in low precision")):
        where = dict(sum="accumulator", fmt="FP16", tile=None, terms=1024, all=all_lost, queries=[16], queries_of=1)
        judgement = Judgement("kernel", "f", (Finding("carry", Severity.FAILS, where, 3.5, 2.0),))
        (sentence,) = sentences_of(judgement)[Severity.FAILS]
        assert sentence.line.startswith(words)


@pytest.mark.parametrize("fmt", [BF16, FP16])
@pytest.mark.parametrize("block_kv", [1, 2, 4, 8, 16, 64])
def test_small_tiles_are_named(fmt, block_kv, monkeypatch):
    """Every step in the format: both sums lose all in tiles of up to their own size, and no more."""
    asked = [b for b in (block_kv // 2, block_kv, 2 * block_kv) if b]  # the others take minutes in tiles of one key
    monkeypatch.setattr("attention_check.checks.carry.TERMS", ((1024, asked),))
    uniform = partial(kernels.tiled, tiling=Tiling(64, block_kv), precision=Precision.uniform(fmt), algorithm="fa2")
    assert {what: (one["low"], one["tile"]) for what, one in found(uniform, fmt).items()} == {
        "accumulator": (True, block_kv), "row_sum": (True, block_kv)
    }  # fmt: skip


def in_8_bits(x, largest):
    """x to 127 steps of its largest value, the step in FP16, as caches of keys and values hold it."""
    step = (largest / 127).half().double()
    return torch.where(step > 0, (x.double() / step.where(step > 0, 1.0)).round() * step, 0.0)


def cached(dims, size=1.0):
    """A kernel that carries FP32, and whose V is held in 8 bits with one step for `dims`."""

    def kernel(q, k, v):
        v = in_8_bits(v.double() * size, v.double().abs().amax(dims, keepdim=True) * size) / size
        return emulated(q, k, v.to(q.dtype))

    return kernel


@pytest.mark.parametrize("kernel", [cached((-2, -1)), cached(-1, 2**-12)], ids=["a step a head", "steps below FP16's"])
@pytest.mark.parametrize("fmt", [BF16, FP16])
def test_a_quantised_cache_is_not_called_a_carry(kernel, fmt):
    """It loses small terms without a large one, too: the control says so. Without it, this is a carry."""
    table = pd.DataFrame(carry(kernel, f"{fmt}"))
    own = table[table.what == "accumulator"]
    assert ((own.lost > LOST) & (own.lost >= ALL * own["all"])).any() and own.control.max() > 0.99
    seen = found(kernel, fmt)
    assert seen["accumulator"]["low"] is None and seen["accumulator"]["blind"] and seen["row_sum"]["low"] is False


def test_a_quantised_cache_as_it_is_used_carries_nothing():
    """One step for each key: all terms are held to 8 bits, and the sums show what that costs, and no more."""
    for fmt in (BF16, FP16):
        assert {one["low"] for one in found(cached(-1), fmt).values()} == {False}
