"""The panels of a report's page, and their colours: read on white, on a telephone too."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fa_lib.plots.style import styled

READABLE = {  # a report's: on white 4.5 : 1 and more, so that thin lines and small words are read
    "BF16": ("#b84a00", "o"), "FP16": ("#6b4fa0", "s"), "FP32": ("#0168a8", "^"), "FP64": ("#686868", "D"),
    "other": ("#8a5b00", "v"),
}  # fmt: skip
RUST, PURPLE, BLUE, DIM, BROWN = (color for color, _ in READABLE.values())
LINES: dict[Any, Any] = {  # of a panel: few, and seen; none through the words of a legend
    "grid.color": DIM, "grid.linewidth": 0.4, "grid.linestyle": ":",
    "legend.frameon": True, "legend.framealpha": 1, "legend.edgecolor": "none",
}  # fmt: skip


@dataclass(frozen=True)
class Panel:
    """A picture of a page.

    Attributes:
        title: the question that it answers. shows: how it is read. draw: draws it into axes, without its title.
        size: inches; a telephone shows four fifths of these.
    """

    title: str
    shows: str
    draw: Callable[[Axes], None]
    size: tuple[float, float] = (4.4, 3.5)

    @styled
    def figure(self) -> Figure:
        """The panel as a figure of its own, without its title, which the page has."""
        with plt.rc_context(LINES):
            figure, ax = plt.subplots(figsize=self.size)
            self.draw(ax)
        return figure
