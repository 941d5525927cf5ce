"""The colours and figures of a report's page: read on white, on a telephone too."""

from collections.abc import Callable, Mapping
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

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


def panels_of(drawn: Mapping[str, Callable[[Axes], None]], sizes: Mapping[str, tuple[float, float]] | None = None):
    """Draw each of several functions into its own figure.

    Args:
        drawn: key -> function that draws into axes.
        sizes: key -> size in inches, where it is not PANEL.

    Returns:
        dict of key -> figure.
    """
    figures = {}
    with plt.rc_context(LINES):
        for key, draw in drawn.items():
            figures[key], ax = plt.subplots(figsize=(sizes or {}).get(key, PANEL))
            draw(ax)
    return figures
