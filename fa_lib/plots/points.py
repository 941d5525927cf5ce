"""Points by category, drawn by seaborn: a small point for each seed, a large one for their mean."""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd
import seaborn
from matplotlib.axes import Axes


@dataclass(frozen=True)
class Mark:
    """How one kind of points is drawn: its label, colour, and the marker of its means."""

    label: str
    color: str
    marker: str


def points(
    ax: Axes, table: pd.DataFrame, value: str, category: tuple[str, Mapping[str, str]],
    hue: tuple[str, Mapping[str, Mark]], legend: str = "", dodge: bool = True,
) -> None:  # fmt: skip
    """Draw values along x, in a row of the axis for each category, the first at the top.

    The arithmetic mean is drawn, on a logarithmic axis too: set the scale afterwards.

    Args:
        ax: to draw into.
        table: a row for each point; its columns are `value` and those of `category` and `hue`.
        value: the column of numbers.
        category: a column of keys, and key -> label in the order shown.
        hue: a column of keys, and key -> Mark.
        legend: its place, or "" for none.
        dodge: whether the kinds are drawn side by side within a category.
    """
    (column, labels), (kind, marks) = category, hue
    kinds = {key: mark.label for key, mark in marks.items()}
    labelled = table.assign(**{column: table[column].map(labels), kind: table[kind].map(kinds)})
    common = dict(
        data=labelled, x=value, y=column, order=list(labels.values()), hue=kind, hue_order=list(kinds.values()),
        palette=[mark.color for mark in marks.values()], ax=ax, legend=False,
    )  # fmt: skip
    seaborn.stripplot(**common, dodge=dodge, jitter=False, size=2.8, alpha=0.4)
    # stripplot spreads n kinds over 0.8 of a category, pointplot the outer ones over `dodge`
    seaborn.pointplot(
        **common | dict(legend=bool(legend)), dodge=0.8 * (1 - 1 / len(marks)) if dodge else False, errorbar=None,
        linestyle="none", markers=[mark.marker for mark in marks.values()], markersize=5.5, markeredgewidth=0.5,
        markeredgecolor="white",
    )  # fmt: skip
    if legend:
        seaborn.move_legend(ax, legend, title=None)
    ax.set(ylabel="", ylim=(len(labels) - 0.5, -0.5))
    ax.grid(axis="x")
    ax.grid(visible=False, axis="y")
