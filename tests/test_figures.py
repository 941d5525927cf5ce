"""What the figures must show, at their own scale: N = 2048, d = 64, B_c = 64, one head, five seeds."""

import matplotlib.pyplot as plt
import pytest

from fa_lib import plots, sweep
from fa_lib.experiments.microbenchmark import compare, exponent, shapes, wide
from fa_lib.inputs import DISTRIBUTIONS
from fa_lib.plots.captions import settings

SCALE = dict(n=2048, head_dim=64, heads=1, block_kv=64, distribution="uniform", fmt="BF16", seed=range(5))


@pytest.fixture(scope="module")
def formats(tmp_path_factory):
    grid = SCALE | dict(fmt=["BF16", "FP16", "FP32", "FP64"], distribution=["uniform", "normal"])
    return sweep(compare, grid, cache=tmp_path_factory.mktemp("cache"))


def test_figure_3_falls_with_mantissa_bits(formats):
    for against in ("baseline", "baseline, softmax in format"):
        d = wide(formats, "max", "fmt", kernel="flash", against=against)
        assert (d.BF16 > d.FP16).all() and (d.FP16 > d.FP32).all() and (d.FP32 > d.FP64).all()


def test_figure_4_ten_times(formats):
    d = wide(formats, "max", "kernel", against="golden", fmt="BF16").loc["uniform"]
    ratio, in_format = d["flash"] / d["baseline"], d["flash"] / d["baseline, softmax in format"]
    assert ratio.between(9, 14).all()
    assert 6 < in_format.mean() < 8  # a prototype: 6.6
    assert (wide(formats, "max", "kernel", against="golden", fmt="FP64")["baseline"] == 0).all()


def test_figure_4_golden_inputs_hardly_matter_there(formats):
    exact = sweep(compare, SCALE | dict(golden_inputs="exact"))
    d = wide(exact, "max", "kernel", against="golden")
    assert (d["flash"] / d["baseline"]).between(9, 14).all()


def test_figure_5_grows_at_every_doubling():
    lengths = [128, 256, 512, 1024, 2048, 4096, 8192]
    table = sweep(compare, SCALE | dict(n=lengths))
    for column in ("max", "mean", "std"):
        d = wide(table, column, "n", kernel="flash", against="baseline")
        assert (d.mean().diff().dropna() > 0).all() and (exponent(d) > 0.25).all()
    counts = table.drop_duplicates(["n", "seed"]).groupby("n")[["tiles", "rescales"]].mean()
    assert counts.tiles.tolist() == [n // 64 for n in lengths]
    assert counts.rescales.is_monotonic_increasing and counts.rescales.max() < 6  # like log N, unlike the tiles


def test_figure_6_is_about_b_c():
    tiles = shapes([4 * 64 * b for b in (16, 64, 256, 1024)], 64)
    table = tiles.merge(sweep(compare, SCALE | dict(block_kv=sorted(set(tiles.block_kv)))), on="block_kv")
    given, swapped, square = (
        wide(table, "max", "area", kernel="flash", against="baseline", variant=v)
        for v in ("as given", "swapped", "square")
    )
    assert (given.mean().diff().dropna() < 0).all()  # c
    large = [16384, 65536]  # M > 4 d^2: swapping and squaring change the tile
    assert (swapped[large] > given[large]).all(axis=None)  # a
    assert (square[large].mean() > given[large].mean()).all()  # not b: more tiles
    assert (square[large].mean() < swapped[large].mean()).all()


def test_as_many_tiles_are_not_yet_the_same_difference():
    """Two tiles each: the larger the first, the smaller the difference."""
    table = sweep(compare, SCALE | dict(block_kv=[1024, 2047]))
    assert set(table.tiles) == {2}
    d = wide(table, "max", "block_kv", kernel="flash", against="baseline")
    assert (d[1024] > 1.5 * d[2047]).all()


def test_figure_6_does_not_hold_in_fp64():
    """There the sums inside dot products round as well, and outweigh the rescales."""
    table = sweep(compare, SCALE | dict(block_kv=[16, 64, 256, 1024], fmt="FP64"))
    assert exponent(wide(table, "max", "block_kv", kernel="flash", against="baseline")).abs().max() < 0.1


def test_any_registered_kernel_takes_flashs_place():
    table = sweep(compare, SCALE | dict(n=256, flash="flash"))
    d = wide(table, "max", "kernel", against="golden")
    assert (d["flash"] < 2 * d["baseline"]).all()


def test_every_deviation_figure_takes_inputs_that_make_trouble():
    grid = SCALE | dict(n=128, seed=range(2), distribution=[*DISTRIBUTIONS], fmt=["BF16", "FP16"])
    grid |= dict(flash="tiled", algorithm="fa1", golden_inputs="rounded")
    table = sweep(compare, grid)
    assert set(table.distribution) == set(DISTRIBUTIONS) and (table.nonfinite == 0).all()
    for draw in (plots.precision, plots.golden_value, plots.sequence_length):
        figure = draw(table, settings(table))
        titles = [ax.get_title(loc="left") for ax in figure.axes]
        assert len(set(titles) - {""}) == len(DISTRIBUTIONS)
        plt.close(figure)
