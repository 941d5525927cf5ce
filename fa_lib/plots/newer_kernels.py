"""Our figure 9e: what newer kernels change."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from fa_lib.experiments.newer_kernels import FP8, FP8_KERNELS, OPTIONS
from fa_lib.plots.captions import BANDS, POINTS, captioned
from fa_lib.plots.points import Mark, points
from fa_lib.plots.style import BASELINE, FLASH, INK, INPUTS, band, by_seed, log_ticks, styled


@styled
def options(table: pd.DataFrame, caption: str) -> Figure:
    """Draw how newer kernels' options change the error, where O and l are carried in FP32 and in BF16.

    Args:
        table: of `experiments.newer_kernels.options`.
    """
    distributions = list(dict.fromkeys(table.distribution))
    size = (4.1 * len(distributions) + 3.4, 4.6)
    figure, axes = plt.subplots(1, 2 * len(distributions), figsize=size, sharey=True)
    names = set(table.name)
    labels = {key: variant.label for key, variant in (OPTIONS | FP8).items() if key in names}
    styles = {"FP32": (FLASH, "o"), "BF16": (BASELINE, "s")}
    marks = {fmt: Mark(f"O, l in {fmt}", *style) for fmt, style in styles.items()}
    for pair, distribution in zip(axes.reshape(-1, 2), distributions):
        rows = table[table.distribution == distribution]
        for ax, metric in zip(pair, ("times_rmse", "bias")):
            points(ax, rows, metric, ("name", labels), ("carry", marks), "best" if ax is axes[0] else "")
            at = [list(labels).index(key) for key in labels if key in FP8]
            if at:
                ax.axhspan(min(at) - 0.5, max(at) + 0.5, color="#f4f4f4", zorder=0, lw=0)
        pair[0].set(xscale="log", xlabel="rms error / Baseline's in BF16", title=INPUTS[distribution])
        log_ticks(pair[0].xaxis)
        pair[1].set(xlabel="bias (ulp of BF16 at 1)")
        pair[1].axvline(0, color=INK, lw=0.9)
    handles, words = axes[0].get_legend_handles_labels()
    axes[0].get_legend().remove()
    figure.legend(handles, words, loc="upper right", ncols=2)
    wide = table[table.carry == "FP32"].groupby(["distribution", "name"]).times_rmse.mean().unstack()
    changed, in_fp8 = (wide[[key for key in each if key in wide]] for each in (OPTIONS, FP8))
    most = (changed.div(wide["fa2"], axis=0) - 1).abs().max().max()
    title = f"With O and l in FP32 newer options change FA2's error by at most {100 * most:.0f} %"
    if in_fp8.size:
        worst = in_fp8.max(axis=1)
        title += f";\nin FP8 it has up to {worst.max():.0f} times Baseline's error ({INPUTS[worst.idxmax()]})"
    shaded = " Shaded: Q, K, V and P in E4M3; compared, like their Baseline, with exact attention on unrounded inputs."
    return captioned(figure, title, f"{caption}{POINTS}{shaded} Each panel of biases has its own scale.")


_OFFSETS = {8: (FLASH, "o"), 4: (BASELINE, "s")}


@styled
def fp8(offsets: pd.DataFrame, table: pd.DataFrame, published: dict, caption: str) -> Figure:
    """Draw errors of FP8 as published and as emulated: FlashAttention-4's offset of P, and FlashAttention-3's table.

    Args:
        offsets: of `experiments.newer_kernels.fp8_offset`.
        table: of `experiments.newer_kernels.fp8_table`.
        published: offset -> {spread: relative error}, and key of FP8_KERNELS -> error.
    """
    figure, axes = plt.subplots(1, 2, figsize=(10.2, 3.4), width_ratios=(1, 1.15))
    for offset, (color, marker) in _OFFSETS.items():
        values = by_seed(offsets[offsets.offset == offset], "spread", "relative")
        band(axes[0], values, color, marker, f"P raised by 2^{offset}")
        label = "published" if offset == 4 else None
        axes[0].plot(*zip(*published[offset].items()), "x", color=INK, ms=7, label=label)
    axes[0].set(yscale="log", xlabel="standard deviation of the scores", ylabel="rms error / rms of O")
    axes[0].set_title("FlashAttention-4, P in E4M3")
    axes[0].set_xticks(sorted(offsets.spread.unique()))
    log_ticks(axes[0].yaxis)
    axes[0].legend(loc="upper left")
    labels = {key: variant.label for key, variant in FP8_KERNELS.items()}
    rows = table.melt(["n", "seed"], list(labels), "kernel", "rmse")
    lengths = sorted(rows.n.unique())
    marks = {n: Mark(f"N = {n}", color, marker) for n, color, marker in zip(lengths, (BASELINE, FLASH), "so")}
    points(axes[1], rows, "rmse", ("kernel", labels), ("n", marks), "center right")
    errors = [published[key] for key in labels]
    axes[1].plot(errors, range(len(errors)), "x", color=INK, ms=7, label="published")
    axes[1].set(xscale="log", xlabel="rms error")
    axes[1].set_title("FlashAttention-3 in FP8, inputs with outliers")
    axes[1].legend(loc="center right")
    log_ticks(axes[1].xaxis)
    title = "FP8: too large an offset of P cuts its largest values; rotation is what helps against outliers"
    return captioned(figure, title, caption + BANDS)
