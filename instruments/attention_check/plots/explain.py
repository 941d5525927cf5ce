"""What `explain` makes of public reports: how far each output is from attention, as believed and as read in the end."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fa_lib.plots.captions import captioned
from fa_lib.plots.style import BASELINE, FLASH, GREEN, INK, ORANGE, styled

COLORS = {"rounding": GREEN, "convention": BASELINE, "precision": ORANGE, "bug": FLASH}
MARKERS = {"rounding": "o", "convention": "s", "precision": "D", "bug": "X"}
LEAST, MOST = 1e-8, 3.0  # of the axis: a residual of 0, and one of numbers that are no attention


@styled
def explained_reports(table: pd.DataFrame, caption: str) -> Figure:
    """Draw a line for each report, from its residual as believed to the one as read. table: of
    `benchmarks.reports.judged`, with a column due."""
    order = {verdict: i for i, verdict in enumerate(COLORS)}
    rows = table.assign(order=table.verdict.map(order)).sort_values(["order", "thread"], kind="stable")
    figure, ax = plt.subplots(figsize=(7.6, 0.26 * len(rows) + 1.2))
    for y, row in enumerate(rows.itertuples()):
        believed, read = np.clip([row.believed, row.residual], LEAST, MOST)
        ax.plot([believed, read], [y, y], color=COLORS[row.verdict], lw=1.2, alpha=0.6, zorder=1)
        ax.plot(believed, y, "o", mfc="white", mec=INK, ms=5, zorder=2)
        ax.plot(read, y, MARKERS[row.verdict], color=COLORS[row.verdict], ms=5.5, zorder=3)
    for verdict, marker in MARKERS.items():
        ax.plot([], [], marker, color=COLORS[verdict], label=verdict.upper())
    ax.plot([], [], "o", mfc="white", mec=INK, label="as its author read it")
    ax.set(xscale="log", xlim=(LEAST / 2, MOST * 2), ylabel="report",
           xlabel="root mean square of (output - attention), over attention's", yticks=range(len(rows)),
           yticklabels=rows.thread)  # fmt: skip
    ax.invert_yaxis()
    ax.legend(loc="upper left", fontsize="small")
    right = int((table.verdict == table.due).sum())
    message = f"Read in the right convention, an error shows its cause: {right} of {len(table)} reports"
    return captioned(figure, f"{message},\nall of them used while `explain` was written", caption)
