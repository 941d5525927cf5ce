"""The figures' style: colours, markers, axes, and the marks that every figure draws its numbers with.

A function that draws a figure is `@styled`: importing this file changes no setting of matplotlib's.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from fa_lib.execution.paths import STYLE
from fa_lib.numerics.formats import Format

# of seaborn's palette "colorblind"; to import seaborn takes two seconds, of every report and panel
BASELINE, ORANGE, GREEN, FLASH, SOFTMAX = "#0173b2", "#de8f05", "#029e73", "#d55e00", "#56b4e9"  # markers tell, too
GREY, INK = "#777777", "#333333"
FORMATS = {"BF16": (FLASH, "o"), "FP16": (ORANGE, "s"), "FP32": (BASELINE, "^"), "FP64": (GREEN, "D")}
INPUTS = {
    "uniform": "uniform inputs on [0, 1)",
    "normal": "normal inputs, N(0, 1)",
    "outliers": "normal inputs with outliers",
    "sink": "an attention sink",
    "repeated maxima": "repeated maxima",
    "one-signed V": "normal inputs, V ≥ 0",
    "peaked": "peaked logits",
    "flat": "flat logits",
    "off by one": "one key past a tile",
}


def styled(draw: Callable) -> Callable:
    """Decorate a function that draws a figure: it draws in the style of `paper.mplstyle`."""

    @wraps(draw)
    def in_style(*args, **kwargs):
        with plt.style.context(STYLE):
            return draw(*args, **kwargs)

    return in_style


def plain_ticks(axis: Axis) -> None:
    """Label ticks with plain numbers: 0.01, 1, 1000."""
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))


def decades(axis: Axis) -> None:
    """Label a logarithmic axis at 0.1, 1, 10."""
    plain_ticks(axis)
    axis.set_minor_formatter(NullFormatter())


def log_ticks(axis: Axis) -> None:
    """Label a logarithmic axis at 1, 2, 5, 10."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    decades(axis)


def panels(table: pd.DataFrame, height: float, width: float = 4.6, margin: float = 0.0):
    """Make a figure with a panel for each value of a table's column distribution.

    Args:
        height, width, margin: inches: of the figure, of a panel, and beside the panels.

    Returns:
        (figure, axes, [(ax, distribution, its rows) of each panel]).
    """
    parts = list(table.groupby("distribution", sort=False))
    size = (width * len(parts) + margin, height)
    figure, axes = plt.subplots(1, len(parts), figsize=size, squeeze=False, sharey=True)
    return figure, axes[0], [(ax, *part) for ax, part in zip(axes[0], parts)]


def by_seed(rows: pd.DataFrame, index: str, value: str) -> pd.DataFrame:
    """Pivot rows to a DataFrame, index x seeds, of the column `value`; rows has index, seed and value."""
    return rows.pivot(index=index, columns="seed", values=value)


def in_roundoff(rows: pd.DataFrame, index: str, value: str) -> pd.DataFrame:
    """Pivot rows as `by_seed` does, with `value` in units of the unit roundoff of each row's format, its column fmt."""
    quotients = rows[value] / rows.fmt.map(lambda fmt: Format.of(fmt).unit_roundoff).astype(float)  # also of no rows
    return by_seed(rows.assign(**{value: quotients}), index, value)


# Not seaborn's pointplot and lineplot: they leave a seed that is NaN or infinite out of the mean, and on an axis that
# is logarithmic already (the second panel of a shared one) their mean is geometric. They also take 20 to 50 times as
# long.


def dots(ax: Axes, x: Any, values: pd.DataFrame, color: str, marker: str, label: str | None, **style) -> None:
    """Draw a small point for each seed at the places x, and a large one for their mean.

    Args:
        ax: to draw into.
        x: places.
        values: DataFrame, places x seeds, of `by_seed`. A mean that is not finite is not drawn.
        color, marker, label: of the points, and of their entry in the legend.
        style: further arguments of matplotlib's `plot`, for the means.
    """
    ax.plot(x, values.to_numpy(), marker, color=color, ms=3.2, alpha=0.35, mew=0)
    mean = values.mean(axis=1, skipna=False)
    ax.plot(x, mean, color=color, marker=marker, label=label, **{"ms": 6, "ls": ""} | style)


def band(ax: Axes, values: pd.DataFrame, color: str, marker: str, label: str | None, **style) -> None:
    """Draw a line of means over seeds, and a band from their least to their largest value.

    Args:
        ax: to draw into.
        values: DataFrame, x x seeds, of `by_seed`; x are numbers. A mean that is not finite leaves a gap.
        color, marker, label: of the line, and of its entry in the legend.
        style: further arguments of matplotlib's `plot`, for the line.
    """
    values = values.sort_index()
    low, high, mean = (getattr(values, name)(axis=1, skipna=False) for name in ("min", "max", "mean"))
    ax.fill_between(values.index, low, high, color=color, alpha=0.15, lw=0)
    look: dict[str, Any] = dict(lw=1.3) | style
    ax.plot(values.index, mean, color=color, marker=marker, ms=3.5, label=label, **look)


def format_axis(ax: Axes, formats: list[str], distribution: str) -> None:
    """Label the x axis with number formats and their unit roundoff."""
    labels = [f"{fmt}\n$2^{{-{Format.of(fmt).precision}}}$" for fmt in formats]
    ax.set(xticks=range(len(formats)), xticklabels=labels, xlim=(-0.5, len(formats) - 0.3))
    ax.set(title=INPUTS[distribution], xlabel="number format (unit roundoff u)")


def tile_axis(ax: Axes, tiles: list) -> None:
    """Make both axes logarithmic, and label x with numbers of tiles."""
    ax.set(xscale="log", yscale="log")
    ax.set_xticks(tiles, labels=[str(count) for count in tiles])
    ax.minorticks_off()
    log_ticks(ax.yaxis)


def no_minor_ticks(axis: Axis) -> None:
    """Remove the minor ticks of a logarithmic axis."""
    axis.set_minor_locator(NullLocator())
