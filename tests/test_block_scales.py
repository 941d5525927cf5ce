"""What block scales lose: the experiment against its definition, and the claims of notebook 16 at their sharpest."""

import pandas as pd
import pytest
import torch

from fa_lib import BF16, FP64, deviation, kernels
from fa_lib.experiments.block_scales import (  # fmt: skip
    EVERY,
    KINDS,
    ON_B200,
    RECIPES,
    SHIFT,
    TILING,
    block_scales,
    losses,
    problem,
    sums_of_b200,
)
from fa_lib.kernels.quantized_attention import OPERANDS, Quantization, attention
from fa_lib.plots.block_scales import bits

SIZE = dict(rows=32, head_dim=64, heads=2)


def test_a_row_is_a_recipe_s_error_over_the_kernel_s_in_bf16():
    q, k, v = problem("outliers", 3, 128, **SIZE)
    golden = kernels.golden(q, k, v, inputs=FP64)
    table = pd.DataFrame(block_scales("outliers", 3, 128, {"mxfp8": ["all", "cache", "k"]}, **SIZE))
    assert table[["recipe", "part"]].values.tolist() == [
        ["bf16", "all"], ["mxfp8", "all"], ["mxfp8", "cache"], ["mxfp8", "k"],
    ]  # fmt: skip
    made = (Quantization(), Quantization.of("MXFP8"), Quantization.cache("MXFP8"), Quantization(k="MXFP8"))
    theirs = [deviation(attention(q, k, v, how, tiling=TILING), golden, BF16) for how in made]
    assert table["max"].tolist() == [d.max for d in theirs]
    assert table.relative.tolist() == [d.relative for d in theirs]
    assert table.times_rmse.tolist() == [d.rmse / theirs[0].rmse for d in theirs]
    assert table.times_max.tolist() == [d.max / theirs[0].max for d in theirs]


def test_captured_tensors_come_with_their_options():
    q, k, v = (x.bfloat16() for x in problem("normal", 3, 128, **SIZE))
    causal, whole = (losses(q, k, v, {"nvfp4": ["all"]}, causal=causal) for causal in (True, False))
    assert causal[1]["relative"] != whole[1]["relative"] > 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_are_in_bf16_and_shifted_k_is_normal_but_for_some_channels(kind):
    q, k, v = problem(kind, 0, 256, **SIZE)
    assert q.shape == (1, 2, 32, 64) and k.shape == v.shape == (1, 2, 256, 64)
    assert all(torch.equal(BF16(x), x) for x in (q, k, v))
    means = k.mean((0, 1, 2))
    assert len(k[0, 0, 0].unique()) > 30  # of a sink, too: no key of equal values
    far = means.abs() > SHIFT / 2
    assert far.nonzero().flatten().tolist() == (list(range(0, 64, EVERY)) if kind == "shifted K" else [])


def test_parts_and_names():
    for recipe in RECIPES.values():
        assert list(recipe.parts) == ["all", "cache", *OPERANDS] and recipe.parts["cache"].cached
    assert {key: bits(key) for key in ("fp8_token", "mxfp8_e5m2", "mxfp4", "nvfp4")} == {
        "fp8_token": 8, "mxfp8_e5m2": 8, "mxfp4": 4, "nvfp4": 4,
    }  # fmt: skip
    q, k, v = problem("normal", 0, 64, **SIZE)
    with pytest.raises(ValueError, match="recipe: got 'int8'; accepted are fp8_tensor"):
        losses(q, k, v, {"int8": ["all"]})
    with pytest.raises(ValueError, match="part: got 'o'; accepted are all, cache, q, k, v, p"):
        losses(q, k, v, {"nvfp4": ["o"]})


def test_where_each_loss_comes_from():
    """A sink makes P tiny beside 1, below E4M3's scales: a second level has them. Smoothing has K's channels."""
    parts = {name: ["p"] for name in ("nvfp4", "nvfp4_two_level")}
    sink = {row["recipe"]: row["relative"] for row in block_scales("sink", 0, 256, parts, **SIZE)}
    assert sink["nvfp4"] > 5 * sink["nvfp4_two_level"]
    parts = {name: ["k"] for name in ("nvfp4_two_level", "nvfp4_smoothed")}
    shifted = {row["recipe"]: row["relative"] for row in block_scales("shifted K", 0, 256, parts, **SIZE)}
    normal = {row["recipe"]: row["relative"] for row in block_scales("normal", 0, 256, parts, **SIZE)}
    assert shifted["nvfp4_two_level"] > 1.6 * normal["nvfp4_two_level"]
    assert shifted["nvfp4_smoothed"] < 1.1 * normal["nvfp4_smoothed"]


def test_the_sums_of_a_b200_change_few_bits_and_no_error():
    """MXFP8's; what a tile adds up in four bits fits FP32."""
    rows = pd.DataFrame(sums_of_b200("normal", 0, 512, rows=64)).set_index("recipe")
    assert list(rows.index) == list(ON_B200)
    assert 0 < rows.bits["mxfp8"] < 0.01 and (rows.times_rmse - 1).abs().max() < 1e-3
