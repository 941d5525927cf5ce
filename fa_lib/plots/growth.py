"""Figure 7b: how the distance between two training runs grows; and figure 8d: what becomes of the loss."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fa_lib.plots.captions import BANDS, captioned
from fa_lib.plots.style import INK, log_ticks, styled
from fa_lib.plots.training import LABELS, PARTING, STYLE, curve
from fa_lib.training.distances import LOW_PRECISION
from fa_lib.training.growth import geometric

SHOWN = (*PARTING, "flash_small_tiles")  # figure 7b, left


@styled
def growth(rates: pd.DataFrame, predicted: pd.DataFrame, long: pd.DataFrame, caption: str) -> Figure:
    """Draw figure 7b: growth of the distance per step; the distance read off the curves of nudges, from the first step
    on, over the measured one; a long run.

    Args:
        rates, predicted: of the functions of these names in `training.growth`.
        long: of `study.study`; may be empty.
    """
    count = 3 if len(long) else 2
    figure, axes = plt.subplots(1, count, figsize=(3.8 * count, 3.7))
    for name in SHOWN:
        curve(axes[0], rates[(rates.pair == name) & (rates.since > 0)], "rate", name)
    axes[0].axhline(0, color=INK, lw=0.9)
    axes[0].set(xscale="symlog", xlim=(0.8, None), title="how fast the runs drift apart")
    axes[0].set_ylabel("growth of the relative L2 distance\n(its logarithm, per step)")
    ratio = predicted.assign(ratio=predicted.predicted / predicted.measured)
    for name, own in ratio.groupby("pair", sort=False):
        curve(axes[1], own, "ratio", name)
        one_rate = (own.one_rate / own.measured).groupby(own.step).apply(lambda x: geometric(x)[0])
        axes[1].plot(one_rate, color=STYLE[name][0], ls=STYLE[name][2], lw=0.8, alpha=0.7)
    axes[1].axhline(1, color=INK, lw=0.9)
    axes[1].set(xscale="symlog", xlim=(0.8, None), yscale="log", title="distance predicted from nudges")
    axes[1].set_ylabel("predicted / measured")
    log_ticks(axes[1].yaxis)
    if len(long):
        for name in ("init", "flash", "flash_small_tiles", "perturb"):
            curve(axes[2], long[(long.pair == name) & (long.step > 0)], "relative_l2", name)
        axes[2].set(xscale="log", yscale="log", ylabel="relative L2 distance")
        axes[2].set_title(f"over {long.step.max():,} steps, {long.seed.nunique()} seeds")
    for ax in axes:
        ax.set_xlabel("training iteration")
    drawn = {label: line for ax in axes for line, label in zip(*ax.get_legend_handles_labels())}
    axes[-1].legend(drawn.values(), drawn.keys(), fontsize=6.5, loc="upper left", bbox_to_anchor=(0, 0.94))
    words = " Middle: from the distance after the first step, by the growth of nudges as far apart at each step; thin "
    words += "lines, geometric means: by one rate throughout, the nearest nudge's mean."
    return captioned(figure, _title(ratio), caption + BANDS + words)


def _title(ratio):
    """Say how near the curve that is read off nudges ends."""
    last = ratio[ratio.step == ratio.step.max()].groupby("pair", sort=False).ratio.apply(lambda x: geometric(x)[0])
    words = [
        f"{' to '.join(dict.fromkeys(_number(end) for end in (values.min(), values.max())))} in {name}"
        for name, values in (("BF16", last[~last.index.str.contains("fp32")]), ("FP32", last.filter(like="fp32")))
        if len(values)
    ]
    ending = f";\npredicted / measured distance at the end: {', '.join(words)}" if words else ""
    return f"Figure 7b. The rate of drift changes{ending}"


def _number(ratio):
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


@styled
def health(losses: pd.Series, caption: str) -> Figure:
    """Draw figure 8d: the loss of each arm over its twin's.

    Args:
        losses: of `training.distances.losses`, by pair and seed.
    """
    figure, ax = plt.subplots(figsize=(7, 3.9))
    names = [name for name in STYLE if name in losses.index.get_level_values("pair")][::-1]
    for y, name in enumerate(names):
        color, marker, _ = STYLE[name]
        ratios = losses[name].dropna()
        ax.plot(100 * (ratios - 1), [y] * len(ratios), marker, color=color, ms=3.5, alpha=0.5, mew=0)
        mean, low, high = (100 * (x - 1) for x in geometric(ratios))
        if np.isfinite(low):
            ax.errorbar(mean, y, xerr=[[mean - low], [high - mean]], fmt=marker, color=color, ms=6.5, capsize=2, lw=1)
    ax.axvline(0, color=INK, lw=0.9)
    ax.set(yticks=range(len(names)), yticklabels=[LABELS[name] for name in names], ylim=(-0.6, len(names) - 0.4))
    ax.set(xlabel="training loss, mean of the last tenth, over the twin's (%)")
    ax.grid(axis="x")
    words = " Small points: seeds; large ones: their geometric mean, its 95 % interval."
    words += " One of 20 such intervals leaves out 0 by chance."
    return captioned(figure, f"Figure 8d. {said(losses)}", caption + words)


@styled
def less_map(by_rate: Mapping[float, pd.DataFrame], caption: str) -> Figure:
    """Draw figure 8e: how many times less than low precision Flash moves the weights, over learning rate and step.

    Args:
        by_rate: learning rate -> table of `distances.less_by_step`.
    """
    rows = {
        (pair, rate): table[table.pair == pair].groupby("step").ratio.apply(lambda x: geometric(x)[0])
        for pair in LOW_PRECISION for rate, table in by_rate.items()
    }  # fmt: skip
    frame = pd.DataFrame(rows).T
    last = frame[frame.columns.max()]
    figure, ax = plt.subplots(figsize=(1.9 + 0.55 * frame.shape[1], 1.6 + 0.42 * len(frame)))
    heatmap = sns.heatmap(
        np.log2(frame), ax=ax, cmap="vlag", center=0, vmin=-4, vmax=4, annot=frame.map("{:.2g}".format), fmt="",
        annot_kws=dict(size=7), cbar_kws=dict(label="low precision / Flash", ticks=[-4, -2, 0, 2, 4]),
    )  # fmt: skip
    heatmap.collections[0].colorbar.set_ticklabels(["1/16", "1/4", "1", "4", "16"])
    inside = (frame >= 2) & (frame <= 5)
    for y, x in zip(*np.where(inside)):
        ax.add_patch(Rectangle((x, y), 1, 1, fill=False, ec=INK, lw=1.4))
    labels = [f"{LABELS[pair]}, lr {rate:g}" for pair, rate in frame.index]
    ax.set_yticklabels(labels, rotation=0)
    ax.grid(False)
    ax.set(xlabel="training iteration", ylabel="")
    title = f"Figure 8e. At the last step low precision moves the weights {last.min():.2g} to {last.max():.2g} times "
    title += f"as far as Flash: 2 to 5 times in {inside[last.name].sum() or 'none'} of {len(last)} rows"
    words = " Framed: 2 to 5. Geometric means over seeds of the ratio of Wasserstein distances per tensor; figure 8 "
    words += "has other measures."
    return captioned(figure, title, caption + words)


def said(losses: pd.Series) -> str:
    """Say in a sentence by how much Flash changes the loss, and by how much a nudge does; losses: as of `health`."""
    words = {}
    for name in ("flash", "perturb"):
        mean, low, high = (100 * (x - 1) for x in geometric(losses[name].dropna()))
        words[name] = f"{mean:+.1f} %" + (f" ({low:+.0f} to {high:+.0f})" if low < high else "")
    return f"Flash changes the loss by {words['flash']}, a nudge by {words['perturb']}"
