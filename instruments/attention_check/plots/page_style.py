"""The colours and figures of a report's page: read on white, on a telephone too."""

from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

READABLE = {  # a report's: on white 4.5 : 1 and more, so that thin lines and small words are read
    "BF16": ("#b84a00", "o"), "FP16": ("#6b4fa0", "s"), "FP32": ("#0168a8", "^"), "FP64": ("#686868", "D"),
    "other": ("#8a5b00", "v"),
}  # fmt: skip
RUST, PURPLE, BLUE, DIM, BROWN = (color for color, _ in READABLE.values())
PANEL = (4.4, 3.5)  # inches: of a page's panel, which a telephone shows at four fifths of that
LINES: dict[Any, Any] = {  # of a panel: few, and seen; none through the words of a legend
    "grid.color": DIM, "grid.linewidth": 0.4, "grid.linestyle": ":",
    "legend.frameon": True, "legend.framealpha": 1, "legend.edgecolor": "none",
}  # fmt: skip


def panel(draw: Callable[[Axes], None], size: tuple[float, float] = PANEL) -> Figure:
    """A figure of its own, of so many inches, that a function draws into."""
    with plt.rc_context(LINES):
        figure, ax = plt.subplots(figsize=size)
        draw(ax)
    return figure
