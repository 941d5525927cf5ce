"""How far each row of an output is from attention: heads by rows, as believed and as read in the end."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from torch import Tensor

from attention_check.conventions.attention import Dialect
from attention_check.conventions.conventions import what
from attention_check.conventions.reading import CapturedCall, Unfit
from attention_check.explain.distance import Distance
from attention_check.explain.verdict import Explanation
from fa_lib.plots.style import styled

MOST = 1.0  # of the colours: what is above is drawn as it is
RIGHT, UNSEEN = "#d3ecdf", "#d9d9d9"  # rounding; rows that do not count
COLUMNS = 512  # of the picture, at most: each shows the worst of its rows


def explained_rows(call: CapturedCall, found: Explanation) -> Figure:
    """Draw `wrong_rows` of a call as believed, where its shapes make a call so, and as read in the end."""
    readings, dialect = {}, Dialect()
    for dialect in dict.fromkeys((Dialect(), Dialect(**found.dialect))):
        try:
            scan = Distance.of(call, dialect).scan
        except Unfit:
            continue
        name = f"read as {what(dialect.changes())}" if dialect.changes() else "read as you believe it"
        readings[name] = scan.residual_by_row, scan.places[2]
    return wrong_rows(readings, call.rounding(dialect))


@styled
def wrong_rows(readings: Mapping[str, tuple[Tensor, Tensor]], rounding: float) -> Figure:
    """Draw a map for each reading.

    Args:
        readings: name -> relative residuals (batch, heads, rows), NaN where a row does not count, infinite where it is
            not finite and should be; and the indices of the rows.
        rounding: the residual up to which an error is rounding: there the colours begin.
    """
    lines = max(residuals.shape[0] * residuals.shape[1] for residuals, _ in readings.values())
    figure, axes = plt.subplots(
        len(readings), 1, figsize=(7.6, len(readings) * (1.0 + min(0.11 * lines, 3.2)) + 0.4), squeeze=False,
        layout="constrained",
    )  # fmt: skip
    least = min(max(rounding, 1e-15), MOST / 2)
    colors = plt.get_cmap("YlOrRd").with_extremes(bad=UNSEEN, under=RIGHT)
    for ax, (name, (residuals, rows_at)) in zip(axes[:, 0], readings.items()):
        batch, heads, n = residuals.shape
        first, last = int(rows_at[0]), int(rows_at[-1])
        image = ax.imshow(
            _worst(residuals.reshape(batch * heads, n).numpy()), norm=LogNorm(least, MOST), cmap=colors, aspect="auto",
            interpolation="nearest", extent=(first - 0.5, last + 0.5, batch * heads - 0.5, -0.5),
        )  # fmt: skip
        ax.grid(visible=False)
        ax.set(xlabel="row", ylabel="head" if batch == 1 else "entry and head", title=name)
        step = -(-batch * heads // 16)
        ticks = range(0, batch * heads, step)
        ax.set_yticks(ticks, [f"{i % heads}" if batch == 1 else f"{i // heads}, {i % heads}" for i in ticks])
    bar = figure.colorbar(image, ax=axes[:, 0].tolist(), label="error of the row, over its size", pad=0.01,
                          extend="min")  # fmt: skip
    bar.ax.set_ylabel(f"{bar.ax.get_ylabel()}\n(green: rounding, below {least:.1g})")
    return figure


def _worst(residuals: np.ndarray) -> np.ndarray:
    """(heads, columns): the worst of the rows that each column shows."""
    parts = np.array_split(residuals, min(COLUMNS, residuals.shape[1]), axis=1)
    found = [np.fmax.reduce(part, axis=1) for part in parts]
    return np.clip(np.stack(found, 1), 1e-300, 1e300)
