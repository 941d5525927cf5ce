"""Our figure 19: which steps of GPU kernels make their error, and what it would be with the coarse ones in FP32."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from fa_lib.plots.captions import captioned
from fa_lib.plots.style import BASELINE, FLASH, GREEN, GREY, INK, ORANGE, SOFTMAX, styled

NECESSARY = ("O to 16 bits, at the end", "P to 16 bits")  # every kernel with 16-bit inputs has these
COLORS = (FLASH, "#a33f00", ORANGE, "#7b5800", GREEN, "#00664a", "#b07aa1")  # of steps that a kernel need not have
OTHER = "other"
LEAST = 0.03  # a smaller share has no number


@styled
def shares(table: pd.DataFrame, caption: str) -> Figure:
    """Draw, for each kernel, a bar of its steps' shares of the squared error, on normal and on uniform inputs; at its
    end the largest error over Baseline's, as it is and with its coarse steps in FP32.

    Args:
        table: of `benchmarks.blamed.blamed`: call, distribution, seed, step, share, times, times_fixed.
    """
    calls, distributions = [*dict.fromkeys(table.call)], [*dict.fromkeys(table.distribution)]
    steps = [step for step in dict.fromkeys(table.step) if step not in (*NECESSARY, OTHER)]
    colors = dict(zip(steps, COLORS)) | dict(zip(NECESSARY, (BASELINE, SOFTMAX))) | {OTHER: GREY}
    figure, axes = plt.subplots(1, len(distributions), figsize=(11.8, 0.55 * len(calls) + 2.2), sharey=True)
    for ax, distribution in zip(axes, distributions):
        rows = table[table.distribution == distribution]
        _bars(ax, rows, calls, colors)
        ax.set(title=f"{distribution} inputs", xlim=(0, 1), xlabel="share of the squared error, mean over seeds")
    axes[0].set_yticks(range(len(calls)), calls[::-1])
    handles = [Patch(color=colors[step]) for step in (*NECESSARY, *steps)]
    axes[-1].legend(handles, [*NECESSARY, *steps], loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8)
    return captioned(figure, "Every 16-bit kernel has the blue steps; the other steps could be in FP32", caption)


def _bars(ax, rows: pd.DataFrame, calls: Sequence[str], colors: Mapping[str, str]) -> None:
    for y, call in enumerate(reversed(calls)):
        own = rows[rows.call == call]
        mean, left = own.groupby("step").share.mean().clip(lower=0), 0.0
        for step in colors:
            width = mean.get(step, 0.0)
            ax.barh(y, width, 0.62, left, color=colors[step])
            if width >= LEAST:
                ax.text(left + width / 2, y, f"{100 * width:.0f} %", ha="center", va="center", fontsize=7.5,
                        color="white" if step != NECESSARY[1] else INK)  # fmt: skip
            left += width
        each = own.groupby("seed")[["times", "times_fixed"]].first()
        words = _span(each.times)
        if not (each.times == each.times_fixed).all():
            words += f" → {_span(each.times_fixed)} in FP32"
        ax.text(0.01, y + 0.42, f"largest error: {words} × Baseline's", fontsize=7, color=INK, va="center")
    ax.set_ylim(-0.5, len(calls) - 0.3)
    ax.grid(visible=False)


def _span(values: pd.Series) -> str:
    """Write the least and the largest of values, or one where both are written the same."""
    low, high = f"{values.min():.2g}", f"{values.max():.2g}"
    return low if low == high else f"{low} to {high}"
