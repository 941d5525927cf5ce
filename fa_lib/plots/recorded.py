"""Tables recorded on other devices, drawn beside this machine's: hollow marks, of one shape for each device."""

from collections.abc import Mapping
from itertools import cycle
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from fa_lib.plots.captions import span
from fa_lib.plots.style import INK

NONE: Mapping[str, pd.DataFrame] = {}
SHAPES = ("*", "P", "X")  # of devices; no figure that they are drawn into has these for anything else


def by_device(recorded: Mapping[str, pd.DataFrame]) -> list[tuple[str, pd.DataFrame]]:
    """List (shape, table) of each device.

    Args:
        recorded: device -> table, of `execution.results.recorded`.
    """
    return list(zip(cycle(SHAPES), recorded.values()))


def hollow(
    ax: Axes, at: Any, values: pd.DataFrame, color: str, shape: str, label: str | None = None,
    horizontal: bool = False, **style,
) -> None:  # fmt: skip
    """Draw a hollow mark for each mean over seeds, with a line from the least to the largest seed.

    Args:
        ax: to draw into.
        at: places along x, or along y where `horizontal`.
        values: DataFrame, places x seeds, of `style.by_seed`.
        color: of marks and lines.
        shape: of the marks, one of SHAPES.
        label: for the legend.
        horizontal: whether values run along x.
        style: further arguments of matplotlib's `plot`, for the means.
    """
    low, high, mean = (getattr(values, name)(axis=1, skipna=False) for name in ("min", "max", "mean"))
    look: dict[str, Any] = dict(color=color, marker=shape, label=label, mfc="none", ms=8, mew=0.8, zorder=4)
    look |= dict(lw=0.7, ls="") | style
    ax.plot(*((mean, at) if horizontal else (at, mean)), **look)
    (ax.hlines if horizontal else ax.vlines)(at, low, high, color=color, lw=0.7)


def name_devices(ax: Axes, recorded: Mapping[str, pd.DataFrame]) -> list[Line2D]:
    """Add an entry for each device to a legend that is made afterwards; recorded: device -> table."""
    look: dict[str, Any] = dict(ls="", color=INK, mfc="none", ms=8, mew=0.8)
    return [ax.plot([], [], marker=shape, label=name, **look)[0] for name, shape in zip(recorded, cycle(SHAPES))]


def caption_of(recorded: Mapping[str, pd.DataFrame]) -> str:
    """Write the caption's words: which devices, at which N, with how many seeds; "" without devices."""
    devices = [f"{name} (N = {span(rows.n.unique())}, {rows.seed.nunique()} seeds)" for name, rows in recorded.items()]
    words = f" Hollow marks: recorded on {'; '.join(devices)}: mean over seeds; min to max as a line or inside it."
    return words if devices else ""
