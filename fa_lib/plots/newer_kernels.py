"""Figure 9e: what newer kernels change."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from fa_lib.experiments.newer_kernels import FP8, OPTIONS
from fa_lib.plots.captions import POINTS, captioned
from fa_lib.plots.points import Mark, points
from fa_lib.plots.style import BASELINE, FLASH, INK, INPUTS, log_ticks, styled


@styled
def options(table: pd.DataFrame, caption: str) -> Figure:
    """What newer kernels' options cost or buy, where O, m and l are carried in FP32 and in BF16.

    Args:
        table: of `experiments.newer_kernels.options`.
    """
    distributions = list(dict.fromkeys(table.distribution))
    size = (4.1 * len(distributions) + 3.4, 4.4)
    figure, axes = plt.subplots(1, 2 * len(distributions), figsize=size, sharey=True)
    names = set(table.name)
    labels = {key: variant.label for key, variant in (OPTIONS | FP8).items() if key in names}
    styles = {"FP32": (FLASH, "o"), "BF16": (BASELINE, "s")}
    marks = {fmt: Mark(f"O, m, l in {fmt}", *style) for fmt, style in styles.items()}
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
    title = "What newer kernels change costs nothing but in FP8; splits help what carries BF16"
    return captioned(figure, title, caption + POINTS + " Shaded: Q, K, V and P in E4M3.")
