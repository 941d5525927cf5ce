"""What newer kernels change: FlashAttention-3's row and the options, at notebook 09's own scale."""

import pytest

from fa_lib import sweep
from fa_lib.experiments.newer_kernels import CARRIED, FP8, OPTIONS, options, outliers

pytestmark = pytest.mark.slow


def mean(table, by, value):
    return table.groupby(by)[value].mean()


def test_flashattention_3s_row_comes_out_where_its_own_tests_baseline_is_taken():
    table = sweep(outliers, dict(n=8192, head_dim=128, seed=range(4), rows=256))
    times = mean(table, "golden_inputs", ["times", "times_scaled_first"])
    assert 1.4 < times.times_scaled_first["exact"] < 2  # published: 1.7
    assert times.times["rounded"] > 3 > times.times["exact"]


def test_options_cost_nothing_but_fp8_and_splits_help():
    names = ["fa2", "fa4", "reversed", "splits_8", "fp8_tensor"]
    table = sweep(options, dict(distribution="uniform", seed=range(2), n=1024), fixed=dict(names=names))
    times = mean(table, ["carry", "name"], "times_rmse")
    assert times["FP32"].drop("fp8_tensor").between(0.9, 1.1).all()
    assert times["BF16", "splits_8"] < 0.6 * times["BF16", "fa2"]
    names = ["fp8_tensor", "fp8_head", "fp8_block_rotated"]
    grid = dict(distribution="outliers", seed=range(2), n=1024)
    table = sweep(options, grid, fixed=dict(names=names, carries=["FP32"]))
    one, head, rotated = (table[table.name == name].times_rmse.to_numpy() for name in names)
    assert (one > 5).all() and (one != head).all() and (rotated < one).all()


def test_one_cell_tries_every_option_on_one_draw():
    rows = options("normal", 0, 128)
    assert [(r["carry"], r["name"]) for r in rows] == [(c, n) for c in CARRIED for n in (*OPTIONS, *FP8)]
    assert options("normal", 0, 128, carries=["BF16"], names=["fp8_block"]) == [rows[-2]]
    for wrong, words in (
        (dict(names=["fp4"]), "name: got 'fp4'; accepted are fa2, fa1"),
        (dict(carries=["FP16"]), "carry: got 'FP16'; accepted are FP32, BF16"),
    ):
        with pytest.raises(ValueError, match=words):
            options("normal", 0, 64, **wrong)
