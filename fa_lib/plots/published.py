"""Our figures 17 to 17d, of notebook 17: P in E4M3 beside a sink, its gradient, FP16 overflow, 2^x by polynomials."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from fa_lib.experiments.fp8_probs import lost_share
from fa_lib.numerics.formats import BF16, FP32
from fa_lib.plots.captions import BANDS, POINTS, captioned
from fa_lib.plots.style import (
    BASELINE,
    FLASH,
    GREEN,
    GREY,
    INK,
    SOFTMAX,
    band,
    by_seed,
    log_ticks,
    no_minor_ticks,
    styled,
)

_CASTS = {  # cast -> label, colour, marker, the scale of the paper's prediction
    "forward": ("first tile first", FLASH, "o", 1),
    "reversed": ("last tile first", BASELINE, "s", None),
    "forward_256": ("first tile first, P raised by 256", SOFTMAX, "^", 256),
}
_HEADS = {"keys": "a sink of four keys", "logit": "a learned sink"}
_DELTA = {"keys": 1.0, "logit": 0.0}


@styled
def sinks(table: pd.DataFrame, caption: str) -> Figure:
    """Draw how many of P are 0 in E4M3 beside a sink, and how much either cure helps.

    Args:
        table: of `experiments.fp8_probs.sink_cast`.
    """
    kinds = [kind for kind in _HEADS if kind in set(table.kind)]
    size = 4.6 * len(kinds), 5.6
    figure, axes = plt.subplots(2, len(kinds), figsize=size, squeeze=False, sharex=True, sharey="row")
    for (above, below), kind in zip(axes.T, kinds):
        rows = table[table.kind == kind]
        fine = np.linspace(rows.strength.min(), rows.strength.max(), 101)
        errors = {cast: by_seed(rows[rows.cast == cast], "strength", "mse") for cast in _CASTS}
        for cast, (label, color, marker, scale) in _CASTS.items():
            band(above, by_seed(rows[rows.cast == cast], "strength", "lost"), color, marker, label)
            if scale is not None:
                above.plot(fine, [lost_share(x, scale, _DELTA[kind]) for x in fine], ":", color=INK, lw=1)
            if cast != "forward":
                band(below, errors["forward"] / errors[cast], color, marker, None)
        above.plot([], [], ":", color=INK, lw=1, label="predicted")
        above.set(title=_HEADS[kind], ylabel="P that are 0 in E4M3" if above is axes[0, 0] else "")
        above.yaxis.set_major_formatter(PercentFormatter(1))
        if kind == "logit":
            above.annotate("in either order", (0.56, 0.72), xycoords="axes fraction", fontsize=7, color=BASELINE)
        below.set(xlabel="by how much the sink's score exceeds the others' mean", yscale="log")
        below.axhline(1, color=GREY, lw=0.9)
        log_ticks(below.yaxis)
    axes[1, 0].axhspan(3, 10, color=SOFTMAX, alpha=0.15, lw=0)
    axes[1, 0].annotate("published", (0.02, 10), xycoords=("axes fraction", "data"), va="bottom", fontsize=7)
    axes[1, 0].set(ylabel="mean square error of O:\nfirst tile first / with the change")
    axes[0, 0].legend(loc="upper left", fontsize=6.5)
    title = "With an attention sink P underflows in E4M3; P raised by 256 does so at stronger sinks"
    return captioned(figure, title, caption + BANDS)


@styled
def overflow(table: pd.DataFrame, caption: str) -> Figure:
    """Draw where Q Kᵀ, unscaled, exceeds FP16's largest number, and how many rows are lost.

    Args:
        table: of `experiments.overflow.overflow`.
    """
    cells = table.groupby(["amplitude", "mean"])
    largest = cells.largest.mean().unstack().iloc[::-1]
    low, high = cells.unscaled.min(), cells.unscaled.max()
    figure, ax = plt.subplots(figsize=(5.6, 3.7))
    image = ax.imshow(largest, cmap="RdBu_r", vmin=0, vmax=2, aspect="auto", alpha=0.55)
    for i, amplitude in enumerate(largest.index):
        for j, mean in enumerate(largest.columns):
            words, ends = f"{largest.loc[amplitude, mean]:.2f}", (low[amplitude, mean], high[amplitude, mean])
            if ends[1]:
                shares = f"{ends[1]:.0%}" if ends[0] == ends[1] else f"{ends[0]:.0%} to {ends[1]:.0%}"
                words += f"\n{shares}\nof rows NaN"
            ax.text(j, i, words, ha="center", va="center", fontsize=7, fontweight="bold" if ends[1] else None)
    ax.set(xticks=range(largest.shape[1]), xticklabels=[f"{x:g}" for x in largest.columns])
    ax.set(yticks=range(largest.shape[0]), yticklabels=[f"{x:g}" for x in largest.index])
    ax.set(xlabel="mean of Q, K and V", ylabel="amplitude about the mean")
    ax.grid(False)
    figure.colorbar(image, label="largest |Q Kᵀ| / 65,504")
    words = " Numbers: the largest, mean over seeds; shares: least and largest seed."
    words += "" if cells.scaled.max().any() else " Scores that are scaled before they are rounded: no row is NaN."
    return captioned(figure, "A large mean of Q and K makes scores in FP16 overflow", caption + words)


_ROUNDED = {  # -> label, colour, marker
    "terms": ("each term rounded", FLASH, "o"),
    "rows": ("each row's sum rounded", SOFTMAX, "^"),
    "sum": ("only the sum rounded", BASELINE, "s"),
}


@styled
def sink_gradients(table: pd.DataFrame, caption: str) -> Figure:
    """Draw the error of a sink's gradient against how far its terms cancel, to two exact sums.

    Args:
        table: of `experiments.sink_gradients.sink_gradient`.
    """
    figure, axes = plt.subplots(1, 2, figsize=(8.8, 3.6), sharex=True, sharey=True)
    against = {"stored": "to the sum of the stored O", "golden": "to the gradient of the exact O"}
    for ax, (column, words) in zip(axes, against.items()):
        for rounded, (label, color, marker) in _ROUNDED.items():
            rows = table[table.rounded == rounded]
            ax.plot(rows.left, rows[column], marker, color=color, ms=3.2, alpha=0.35, mew=0)
            mean = rows.groupby("kept")[["left", column]].mean()
            ax.plot(mean.left, mean[column], color=color, marker=marker, ms=6, label=label)
        ax.set(xscale="log", yscale="log", title=words, xlabel="|sum| / sum of |terms|: the terms cancel to the left")
        ax.axhline(BF16.unit_roundoff, color=GREY, lw=0.9, ls=":")
        no_minor_ticks(ax.xaxis)
    look = dict(xycoords=("axes fraction", "data"), va="bottom", fontsize=7, color=GREY)
    axes[0].annotate("BF16's unit roundoff", (0.01, BF16.unit_roundoff), **look)
    axes[0].set_ylabel("rms error over heads / rms of the gradient")
    axes[0].legend(loc="upper right")
    title = "A sink's gradient: rounding only the sum helps, but not where O was stored in BF16 before"
    return captioned(figure, title, caption + POINTS)


@styled
def polynomials(table: pd.DataFrame, caption: str) -> Figure:
    """Draw the relative error of polynomials for 2^x.

    Args:
        table: of `experiments.polynomials.polynomial_curve`, with the column degree.
    """
    figure, ax = plt.subplots(figsize=(5.6, 3.7))
    for (degree, rows), color in zip(table.groupby("degree"), (FLASH, BASELINE, GREEN)):
        ax.plot(rows.x, rows.error, color=color, lw=1.3, label=f"degree {degree}: at most {rows.error.max():.2g}")
    for fmt, name in ((BF16, "BF16"), (FP32, "FP32")):
        ax.axhline(fmt.unit_roundoff, color=GREY, lw=0.9, ls=":")
        place: dict[str, Any] = dict(xytext=(0, -2), textcoords="offset points", va="top")
        ax.annotate(f"{name}'s unit roundoff", (0.01, fmt.unit_roundoff), fontsize=7, color=GREY, **place)
    ax.set(yscale="log", xlabel="x, the fraction of the exponent", ylabel="relative error of 2^x", ylim=(1e-8, 2e-2))
    ax.legend(loc="upper right", bbox_to_anchor=(1, 0.9))
    times = BF16.unit_roundoff / table.error.max()
    return captioned(figure, f"BF16's rounding of P is at least {times:.0f} times a polynomial's error", caption)
