"""Figures 3 to 6: this code gives their committed tables. What the tables show, the ledger and the notebooks say."""

from functools import cache

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from fa_lib import sweep
from fa_lib.execution.paths import RESULTS
from fa_lib.experiments.microbenchmark import BenchmarkSettings, compare, grid, pivot
from fa_lib.experiments.tile_shapes import tiles_of_sram
from fa_lib.plots.style import band, dots

pytestmark = pytest.mark.slow


@cache
def committed(name):
    return pd.read_csv(RESULTS / f"{name}.csv")


SAMPLES = [  # of a table: the cells that are computed again
    *[("04_sequence_length", dict(n=n, fmt=fmt, seed=0)) for n in (128, 512) for fmt in ("BF16", "FP16", "FP32")],
    ("04_sequence_length", dict(n=256, fmt="BF16", seed=4)),
    ("02_precision", dict(distribution="normal", fmt="FP16", seed=9)),
    ("04_sequence_length", dict(n=256, fmt="FP64", seed=3)),
    ("03_golden_value", dict(distribution="uniform", fmt="BF16", seed=0)),
    ("05_algorithm_changes", dict(distribution="normal", fmt="BF16", seed=1, variant="square")),
]


@pytest.mark.parametrize("name, where", SAMPLES)
def test_the_committed_numbers_are_what_the_code_gives(name, where):
    table = committed(name)
    for column, wanted in where.items():
        table = table[table[column] == wanted]
    assert len(table)
    first = table.iloc[0]
    setup = BenchmarkSettings(*(first[field] for field in BenchmarkSettings.__dataclass_fields__))
    for (n, distribution, fmt, seed), rows in table.groupby(["n", "distribution", "fmt", "seed"]):
        found = pd.DataFrame(compare(n, sorted(set(rows.block_kv)), distribution, fmt, seed, setup))
        both = rows.merge(found, on=["block_kv", "kernel", "against"], suffixes=("", "_now"))
        assert len(both) == len(rows)
        # where one score in millions falls on the other side of a tie, FP32's numbers change in their last digits
        tolerance = dict(rtol=1e-4, atol=1e-13) if fmt == "FP32" else dict(rtol=0, atol=0)
        for column in set(found) - {"block_kv", "kernel", "against"}:
            now = [float(f"{value:.7g}") for value in both[f"{column}_now"]]
            np.testing.assert_allclose(now, both[column], **tolerance, err_msg=column)


def test_any_registered_kernel_takes_flashs_place():
    table = sweep(compare, **grid(256, 64, "uniform", "BF16", 5, BenchmarkSettings(flash="flash")))
    d = pivot(table, "max", "kernel", against="golden")
    assert (d["flash"] < 2 * d["baseline"]).all()


def test_tiles_of_several_sizes_share_a_cell():
    given = dict(n=96, distribution="normal", fmt="BF16", seed=0, setup=BenchmarkSettings(head_dim=16, heads=2))
    each = [row for keys in (16, 64) for row in compare(block_kv=[keys], **given)]
    assert compare(block_kv=[16, 64], **given) == each


def test_tiles_follow_the_papers_formula():
    table = tiles_of_sram([4 * 64 * 16, 4 * 64 * 256], 64)
    assert table[["block_q", "block_kv"]].to_numpy().tolist() == [
        [16, 16], [16, 16], [16, 16], [64, 256], [256, 64], [128, 128],
    ]  # fmt: skip
    assert table.area.tolist() == [256] * 3 + [64 * 256] * 3


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_a_mean_is_of_all_seeds_or_is_not_drawn(scale):
    """On logarithmic axes too it is the arithmetic one."""
    values = pd.DataFrame({0: [1.0, 1.0, 1.0], 1: [3.0, np.nan, 100.0]}, index=[1, 2, 4])
    for mark in (lambda ax: dots(ax, values.index, values, "C0", "o", ""), lambda ax: band(ax, values, "C0", "o", "")):
        figure, ax = plt.subplots()
        ax.set_yscale(scale)
        mark(ax)
        np.testing.assert_array_equal(ax.lines[-1].get_ydata(), [2.0, np.nan, 50.5])
        plt.close(figure)
