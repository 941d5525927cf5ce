"""Figure 9: why ten times, by step of the kernel, by bits and tiles, and by what it is compared with."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from fa_lib.experiments.ablation import KERNELS, REFERENCES, STARTS, STEPS
from fa_lib.plots.captions import POINTS, captioned
from fa_lib.plots.points import Mark, points
from fa_lib.plots.style import BASELINE, FLASH, INK, INPUTS, log_ticks, styled

_COLORS = {"shipped": FLASH, "all_bf16": BASELINE}
_MARKERS = {"fa1": "o", "fa2": "s"}
_CARRIED = ("stats", "accumulator")  # from tile to tile


@styled
def ladder(table: pd.DataFrame, caption: str) -> Figure:
    """One step of a kernel changed at a time: how many times Baseline's error it then makes.

    Args:
        table: of `experiments.ablation.ladder`.
    """
    distributions = list(dict.fromkeys(table.distribution))
    size = (5.0 * len(distributions), 4.4)
    figure, axes = plt.subplots(1, len(distributions), figsize=size, sharey=True, squeeze=False)
    table = table.assign(kernel=table.start + " " + table.algorithm)
    marks = {
        f"{start.key} {algorithm}": Mark(f"{start.label}; {algorithm}", _COLORS[start.key], marker)
        for start in STARTS.values()
        for algorithm, marker in _MARKERS.items()
    }
    for ax, distribution in zip(axes[0], distributions):
        rows = table[table.distribution == distribution]
        points(ax, rows, "times_max", ("step", STEPS), ("kernel", marks), "best" if ax is axes[0][0] else "")
        ax.axvline(1, color=INK, lw=0.9)
        ax.set(xscale="log", xlabel="max error to golden / Baseline's", title=INPUTS[distribution])
        log_ticks(ax.xaxis)
        for step in _CARRIED:
            y = list(STEPS).index(step)
            ax.axhspan(y - 0.42, y + 0.42, color="#f2e3d8", zorder=0, lw=0)
    seaborn.move_legend(axes[0][0], "upper center", title=None, fontsize=6.5)
    title = "The ten times is what a kernel carries from tile to tile: O, m and l in BF16"
    return captioned(figure, title, caption + POINTS)


MARKED = {  # bits -> who carries so many
    24: "FA1, FA2, FA3, torch: FP32",
    14: "Hopper's FP8 products: about 14 bits",
    11: "FP16's and TF32's significand",
    8: "BF16; the paper's has its scores in it too",
}


@styled
def bits_and_tiles(table: pd.DataFrame, caption: str) -> Figure:
    """Flash / Baseline over the bits of what is carried, and the number of tiles, for each kind of inputs.

    Args:
        table: of `experiments.ablation.carried`.
    """
    distributions = list(dict.fromkeys(table.distribution))
    size = (3.9 * len(distributions) + 1.2, 3.9)
    figure, axes = plt.subplots(1, len(distributions), figsize=size, sharey=True, squeeze=False)
    for ax, distribution in zip(axes[0], distributions):
        rows = table[table.distribution == distribution]
        grid = rows.pivot_table(index="bits", columns="tiles", values="times_max").sort_index(ascending=False)
        numbers = grid.map(lambda value: f"{value:.2g}" if value < 10 else f"{value:.0f}")
        look = dict(cmap="RdBu_r", vmin=-4, vmax=4, cbar=False, annot=numbers, fmt="", annot_kws=dict(size=7))
        seaborn.heatmap(np.log2(grid), ax=ax, **look)
        ax.set(xlabel="tiles of 64 keys", ylabel="", title=INPUTS[distribution])
        ax.tick_params(rotation=0, length=0)
        ax.grid(False)
    axes[0][0].set_ylabel("significant bits of O, m and l")
    for bits, words in MARKED.items():
        if bits in grid.index:
            at = (len(grid.columns), list(grid.index).index(bits) + 0.5)
            style = dict(textcoords="offset points", va="center", fontsize=7, annotation_clip=False)
            axes[0][-1].annotate(words, at, (6, 0), **style)
    bar = dict(location="left", label="max error, Flash / Baseline", pad=0.22)
    figure.colorbar(axes[0][0].collections[0], ax=axes[0][0], format=FuncFormatter(lambda x, _: f"{2.0**x:g}"), **bar)
    seeds = table.groupby(["distribution", "bits", "tiles"]).times_max
    spread = ((seeds.max() - seeds.min()) / seeds.mean()).median()
    title = "What decides: how many bits are carried, over how many tiles, of which inputs"
    return captioned(figure, title, f"{caption} Range over seeds: {spread:.0%} of the mean (median over the map).")


_MEASURES = {"max": "max |difference|", "rmse": "root mean square", "bias": "|bias|"}


@styled
def references(table: pd.DataFrame, caption: str) -> Figure:
    """One kernel and Baseline, held against what people compare with, by three measures.

    Args:
        table: of `experiments.ablation.references`.
    """
    distributions = list(dict.fromkeys(table.distribution))
    size = (10.5, 2.1 * len(distributions) + 1)
    figure, axes = plt.subplots(len(distributions), len(_MEASURES), figsize=size, sharey=True, squeeze=False)
    styles = {"flash_fp16": (FLASH, "o"), "baseline_fp16": (BASELINE, "s")}
    marks = {key: Mark(label, *styles[key]) for key, label in KERNELS.items()}
    for row, distribution in zip(axes, distributions):
        rows = table[table.distribution == distribution]
        for ax, (metric, words) in zip(row, _MEASURES.items()):
            size = rows[metric].abs() * 1e6
            shown = rows.assign(**{metric: size.where(size > 0)})  # Baseline against itself is not on the axis
            legend = "upper right" if ax is axes[0][1] else ""
            points(ax, shown, metric, ("against", REFERENCES), ("kernel", marks), legend)
            ax.set(xscale="log", xlabel=f"{words} (1e-6)")
            log_ticks(ax.xaxis)
            ax.xaxis.set_major_locator(LogLocator(subs=(1,) if metric == "bias" else (1, 2, 5), numticks=6))
        row[0].set_title(INPUTS[distribution])
    title = "One kernel, opposite verdicts: it turns on what it is compared with"
    return captioned(figure, title, caption + POINTS)
