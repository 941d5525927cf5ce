"""Our figure 9: why ten times, by step of the kernel, by bits and tiles, and by what it is compared with."""

from typing import Any

import numpy as np
import pandas as pd
import seaborn
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from fa_lib.experiments.ablation import REFERENCES, STARTS, STEPS
from fa_lib.numerics.formats import BF16
from fa_lib.numerics.metrics import over_baseline
from fa_lib.plots.captions import POINTS, captioned
from fa_lib.plots.points import Mark, points
from fa_lib.plots.style import BASELINE, FLASH, INK, INPUTS, log_ticks, panels, styled
from fa_lib.theory.carried_bits import bits_for
from fa_lib.theory.law import VALUES_OF

_COLORS = {"shipped": FLASH, "all_bf16": BASELINE}
_MARKERS = {"fa1": "o", "fa2": "s"}
_CARRIED = ("row_sum", "accumulator")  # from tile to tile


@styled
def ladder(table: pd.DataFrame, caption: str) -> Figure:
    """Draw how many times Baseline's error a kernel makes with one step changed at a time.

    Args:
        table: of `experiments.ablation.ladder`.
    """
    table = table.assign(kernel=table.start + " " + table.algorithm)
    figure, axes, parts = panels(table, 4.4, 5.0)
    marks = {
        f"{start} {algorithm}": Mark(f"{label}; {algorithm.upper()}", _COLORS[start], marker)
        for start, (label, *_) in STARTS.items()
        for algorithm, marker in _MARKERS.items()
    }
    for ax, distribution, rows in parts:
        points(ax, rows, "times_max", ("step", STEPS), ("kernel", marks), "best" if ax is axes[-1] else "")
        ax.axvline(1, color=INK, lw=0.9)
        ax.set(xscale="log", xlabel="max error to golden / Baseline's", title=INPUTS[distribution])
        log_ticks(ax.xaxis)
        for step in _CARRIED:
            y = list(STEPS).index(step)
            ax.axhspan(y - 0.42, y + 0.42, color="#f2e3d8", zorder=0, lw=0)
    seaborn.move_legend(axes[-1], "lower left", bbox_to_anchor=(0, 0.1), title=None, fontsize=6.5)
    alone = table[table.start == "shipped"].groupby(["distribution", "algorithm", "step"]).times_max.mean()
    beyond = [label for step, label in STEPS.items() if (alone.xs(step, level="step") > 1).any()]
    title = f"Steps that in BF16 take a shipped kernel past Baseline's error: {', '.join(beyond) or 'none'}"
    return captioned(figure, title, caption + POINTS)


MARKED = {  # bits -> the kernels that carry so many
    24: "FA1, FA2, FA3, torch: FP32",
    14: "Hopper's FP8 products: about 14 bits",
    11: "FP16's and TF32's significand",
    8: "BF16; the paper's has its scores in it too",
}


@styled
def bits_and_tiles(table: pd.DataFrame, caption: str) -> Figure:
    """Draw Flash / Baseline over the bits of O and l and the number of tiles, a map for each kind of inputs.

    Args:
        table: of `experiments.ablation.carried`.
    """
    figure, axes, parts = panels(table, 4.4, 3.4, margin=1.2)
    for ax, distribution, rows in parts:
        grid = rows.pivot_table(index="bits", columns="tiles", values="times_max").sort_index(ascending=False)
        x, bits = np.log2(grid.columns.to_numpy(float)), grid.index.to_numpy(float)
        ax.pcolormesh(_edges(x), _edges(bits), np.log2(grid), cmap="RdBu_r", vmin=-4, vmax=4)
        for (i, j), value in np.ndenumerate(grid):
            color = "white" if value > 5 else INK
            words = f"{value:.2g}" if value < 10 else f"{value:.0f}"
            ax.text(x[j], bits[i], words, color=color, fontsize=7, ha="center", va="center")
        ax.plot(x, [_twice(tiles, VALUES_OF[distribution]) for tiles in grid.columns], color=INK, lw=1.2)
        ax.set(xlabel="tiles of 64 keys", title=INPUTS[distribution])
        ax.set_xticks(x, labels=[str(tiles) for tiles in grid.columns])
        ax.set_yticks(bits, labels=[str(count) for count in grid.index])
        ax.set_xlim(_edges(x)[0], _edges(x)[-1])
        ax.tick_params(length=0)
        ax.grid(False)
    axes[0].set_ylabel("significant bits of O and l (to scale)")
    for count, words in MARKED.items():
        if count in grid.index:
            style = dict(textcoords="offset points", va="center", fontsize=7, annotation_clip=False)
            axes[-1].annotate(words, (_edges(x)[-1], count), (6, 0), **style)
    bar: dict[str, Any] = dict(location="left", label="max error, Flash / Baseline", pad=0.16)
    figure.colorbar(axes[0].collections[0], ax=axes[0], format=FuncFormatter(lambda x, _: f"{2.0**x:g}"), **bar)
    seeds = table.groupby(["distribution", "bits", "tiles"]).times_max
    spread = ((seeds.max() - seeds.min()) / seeds.mean()).median()
    title = "Four times the tiles need one bit more of O and l (line: twice Baseline's error, by the law)"
    return captioned(figure, title, f"{caption} Range over seeds: {spread:.0%} of the mean (median over the map).")


def _edges(centres):
    """Return the edges of cells around centres, halfway between them."""
    between = (centres[1:] + centres[:-1]) / 2
    return np.array([2 * centres[0] - between[0], *between, 2 * centres[-1] - between[-1]])


def _twice(tiles, values):
    """Compute the bits of O and l with which the law expects twice Baseline's largest error."""
    return bits_for(2.0, BF16, tiles=tiles, values=values, count=128 * 64)


_MEASURES = {  # of `experiments.ablation.references`: column -> mark
    "max": Mark("largest error", FLASH, "o"),
    "rmse": Mark("root mean square", BASELINE, "s"),
}


@styled
def references(table: pd.DataFrame, caption: str) -> Figure:
    """Draw how many times Baseline's error a kernel's is, by the reference of both.

    Baseline in the kernel's own format is no reference for itself: there the kernel's difference from it is divided by
    Baseline's error to the golden value.

    Args:
        table: of `experiments.ablation.references`.
    """
    by = ["distribution", "seed"]
    baseline = table[table.kernel == "baseline_fp16"].set_index([*by, "against"])[list(_MEASURES)]
    own = baseline.xs("golden_rounded", level="against")
    flash = table[table.kernel == "flash_fp16"].set_index([*by, "against"])[list(_MEASURES)]
    yardstick = baseline.where(baseline > 0, own.reindex(baseline.index.droplevel("against")).to_numpy())
    times = over_baseline(flash, yardstick).reset_index().melt([*by, "against"], var_name="measure", value_name="times")
    figure, axes, parts = panels(times, 3.2, 5.0)
    for ax, distribution, rows in parts:
        legend = "lower right" if ax is axes[0] else ""
        points(ax, rows, "times", ("against", REFERENCES), ("measure", _MEASURES), legend)
        ax.axvline(1, color=INK, lw=0.9)
        words = "nearer than Baseline  <  error / Baseline's  >  further"
        ax.set(xscale="log", xlabel=words, title=INPUTS[distribution])
        log_ticks(ax.xaxis)
    title = "One kernel (torch's flash in FP16): nearer or further than Baseline depends on the reference"
    return captioned(figure, title, caption + POINTS)
