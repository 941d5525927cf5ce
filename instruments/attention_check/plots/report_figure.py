"""The panels of a report's page in one figure, as notebooks save them."""

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from attention_check.judge.findings import Judgement
from attention_check.plots.page_style import Panel
from attention_check.report import sentences
from fa_lib.plots.captions import captioned
from fa_lib.plots.style import styled


@styled
def report_figure(judgement: Judgement, panels: Sequence[Panel], caption: str, rows: int = 1, **layout: Any) -> Figure:
    """Draw panels in so many rows, under the judgement's headline. layout: of `plt.subplots`."""
    figure, axes = plt.subplots(rows, len(panels) // rows, **layout)
    for ax, panel in zip(axes.flat, panels):
        panel.draw(ax)
        ax.set_title(panel.title)
    return captioned(figure, sentences.headline(judgement).removesuffix("."), caption)
