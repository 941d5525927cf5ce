"""Figures 2, 9 and 10: what they say is what their tables hold, under the labels of the tables of names."""

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from fa_lib.experiments.ablation import KERNELS, REFERENCES, STARTS, STEPS
from fa_lib.experiments.biased_rounding import CURES, SIGNS
from fa_lib.experiments.newer_kernels import CARRIED, FP8, OPTIONS
from fa_lib.experiments.rescaling import MAXIMA, ORDERS
from fa_lib.experiments.validation import CHOICES
from fa_lib.kernels.rule import ALLOWED, REFERENCE_KERNELS
from fa_lib.plots import ablation, biased_rounding, newer_kernels, rescaling, rule, validation
from fa_lib.plots.points import Mark, points

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
INPUTS = ["uniform", "normal"]


def table(numbers, **axes):
    """A table of random numbers: every combination of the axes, by three seeds."""
    cells = pd.MultiIndex.from_product([*axes.values(), range(3)], names=[*axes, "seed"]).to_frame(index=False)
    return cells.assign(**{name: RNG.uniform(0.5, 2, len(cells)) for name in numbers})


def labels(ax):
    return [text.get_text() for text in ax.get_yticklabels()]


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


@pytest.fixture(autouse=True)
def style_is_left_alone():
    before = dict(matplotlib.rcParams)
    yield
    plt.close("all")
    assert dict(matplotlib.rcParams) == before


def test_points_are_the_seeds_and_their_arithmetic_means_on_a_log_axis_too():
    marks = {"a": Mark("kind A", "#ff0000", "o"), "b": Mark("kind B", "#0000ff", "s")}
    rows = pd.DataFrame(
        [("x", "a", 1.0), ("x", "a", 100.0), ("x", "b", 3.0), ("y", "b", 5.0), ("z", "a", 9.0)],
        columns=["key", "kind", "number"],
    )
    _, ax = plt.subplots()
    points(ax, rows, "number", ("key", {"y": "the second", "x": "the first"}), ("kind", marks), "upper left")
    ax.set_xscale("log")
    assert labels(ax) == ["the second", "the first"] and legend(ax) == ["kind A", "kind B"]
    means = [x for line in ax.lines for x in np.atleast_1d(line.get_xdata()) if np.isfinite(x)]
    assert sorted(means) == [3, 5, 50.5]  # z is not asked for
    seeds = [x for dots in ax.collections for x in dots.get_offsets()[:, 0]]
    assert sorted(seeds) == [1, 3, 5, 100]


def test_figure_2_counts_its_bits_rounded_down():
    rows = table(["identical"], n=[1024, 4096], fmt=["BF16", "FP16"], distribution=INPUTS, choice=[*CHOICES])
    rows = rows.assign(identical=0.5).assign(identical=lambda t: t.identical.where(t.choice != "model", 0.99699))
    x = np.linspace(-4, -0.1, 5)
    figure = validation.validation((x, x / 1e4, x / 1e4), rows, "")
    assert "99.6 % of BF16" in figure.get_suptitle() and "N = 4096" in figure.axes[1].get_title("left")
    assert labels(figure.axes[1]) == [choice.label for choice in CHOICES.values()]


def test_the_rule_is_a_line_for_each_tensor():
    rows = table(["ratio"], distribution=INPUTS, tensor=[*ALLOWED], kernel=["my:kernel", *REFERENCE_KERNELS])
    state = np.random.get_state()[1].copy()
    figure = rule.ruled(rows, "")
    assert (np.random.get_state()[1] == state).all()
    assert legend(figure.axes[1]) == ["my:kernel", "as shipped", "every step"]
    lines = [path.vertices[0, 1] for dots in figure.axes[0].collections for path in dots.get_paths()
             if len(path.vertices) == 2]  # fmt: skip
    assert lines == list(ALLOWED.values())


def test_figure_9_shows_every_step_order_reference_and_option():
    rows = table(["times_max"], distribution=INPUTS, start=[*STARTS], algorithm=["fa1", "fa2"], step=[*STEPS])
    ax = ablation.ladder(rows, "").axes[0]
    assert labels(ax) == list(STEPS.values()) and legend(ax)[-1] == f"{STARTS['all_bf16'].label}; fa2"

    rows = table(["max", "rmse", "bias"], distribution=INPUTS, kernel=[*KERNELS], against=[*REFERENCES])
    rows.loc[(rows.kernel == "baseline_fp16") & (rows.against == "baseline_fp16"), ["max", "rmse", "bias"]] = 0
    figure = ablation.references(rows, "")
    assert labels(figure.axes[0]) == list(REFERENCES.values())
    assert legend(figure.axes[0]) == ["largest error", "root mean square"]

    axes = dict(algorithm=["fa1", "fa2"], order=[*ORDERS], maximum=[*MAXIMA], tiles=[2, 8])
    rows = table(["relative"], distribution=INPUTS, **axes)
    figure = rescaling.rescaling(rows, "")
    lines = {f"{order}; {maximum}" for order in ORDERS.values() for maximum in MAXIMA.values()}
    assert set(legend(figure.axes[0])) == lines

    rows = table(["times_rmse", "bias"], distribution=INPUTS, carry=[*CARRIED], name=[*OPTIONS, *FP8])
    figure = newer_kernels.options(rows, "")
    assert labels(figure.axes[0]) == [variant.label for variant in (OPTIONS | FP8).values()]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["O, l in FP32", "O, l in BF16"]


def test_the_map_writes_the_mean_of_each_cell_with_the_most_bits_at_the_top():
    rows = table(["times_max"], distribution=INPUTS, tiles=[1, 16], bits=[8, 24])
    ax = ablation.bits_and_tiles(rows, "").axes[0]
    means = rows[rows.distribution == "uniform"].groupby(["bits", "tiles"]).times_max.mean()
    assert labels(ax) == ["24", "8"]
    assert [text.get_text() for text in ax.texts] == [f"{means[at]:.2g}" for at in ((24, 1), (24, 16), (8, 1), (8, 16))]


def test_figure_10_shows_every_sign_cure_and_pair():
    by_repeats = table(["error"], sign=[*SIGNS], repeats=[1, 2])
    steps = table(["delta", "delta_rmse"], cure=[*CURES], run=[0, 1], step=[0, 1]).query("seed == 0")
    by_gap = table(["error"], repeats=[1, 2, 4], gap=[8, 16])
    figure = biased_rounding.mechanism(by_repeats, by_gap, steps, "")
    assert legend(figure.axes[1]) == ["1 key", "2 keys at the maximum", "4 keys at the maximum"]
    assert legend(figure.axes[0]) == [sign.label for sign in SIGNS.values()]
    assert set(legend(figure.axes[3])) == {cure.label for cure in CURES.values()}
    assert len(figure.axes[2].lines) == len(CURES) - 1  # that of dynamic_8 is too far off

    pairs = {"perturb": "a nudge", "flash": "Flash vs Baseline"}
    rows = table(["score"], pair=[*pairs]).assign(steps=4)
    figure = biased_rounding.directions(rows, pairs, "")
    assert labels(figure.axes[0]) == list(pairs.values())
