"""The figure of a probe: each kernel's error at every layer of a model."""

from functools import partial

import numpy as np
import pandas as pd

from attention_check.plots.page_style import BLUE, DIM, RUST, Panel
from attention_check.probe.probe import summary
from fa_lib.kernels.kernel_ref import label_of
from fa_lib.kernels.rule import ALLOWED
from fa_lib.plots.style import INK, log_ticks

DRAWN = {  # kernel: label, colour, marker
    "ran": ("what the model ran", INK, "P"),
    "as_shipped": ("Flash as shipped", RUST, "o"),
    "every_step": ("Flash, every step in the format", BLUE, "s"),
}


def model_panels(table: pd.DataFrame) -> list[Panel]:
    """The panel of a model's page: the largest errors of kernels over Baseline's, as in `probe.summary`; [] where
    nothing was compared. table: of a Probe with the baseline "baseline"."""
    worst = summary(table)
    if not len(worst):
        return []
    return [
        Panel(
            "How far is attention, layer by layer?",
            "Small points: a head at a step; large ones: the layer's largest error over Baseline's largest.",
            partial(_layers, table=table, worst=worst), (4.8, 1.9 + 0.42 * len(worst)),
        )
    ]  # fmt: skip


def _layers(ax, table, worst):
    rows = table[table.against == "golden"]
    rng = np.random.default_rng(0)
    for i, name in enumerate(worst):
        label, color, marker = DRAWN.get(name, (label_of(name), DIM, "D^v<>"[i % 5]))
        shift = 0.7 * ((i + 0.5) / len(worst.columns) - 0.5)
        ratios = {layer: group.ratio for layer, group in rows[rows.kernel == name].groupby(["model", "layer"])}
        for y, layer in enumerate(worst.index):
            if layer not in ratios:  # refused
                continue
            at = y + shift + rng.uniform(-0.2, 0.2, len(ratios[layer])) / len(worst.columns)
            ax.plot(ratios[layer], at, marker, color=color, ms=3, mew=0.6, mfc="none")
            ax.plot(worst[name][layer], y + shift, marker, color=color, ms=7, label=label)
            label = None
    for level, label, line in ((1, "as far as Baseline", "-"), (ALLOWED["o"], "the rule's limit", ":")):
        ax.axvline(level, color=INK, lw=0.9, ls=line, zorder=0)
        at = dict(xycoords=("data", "axes fraction"), textcoords="offset points", ha="center", fontsize=7)
        ax.annotate(label, (level, 1), (0, 3), **at)
    ax.set(xscale="log", xlabel="largest error / Baseline's", ylim=(len(worst) - 0.5, -0.5))
    ax.set_yticks(range(len(worst)), labels=_names(worst.index))
    log_ticks(ax.xaxis)
    ax.grid(False)
    ax.figure.legend(loc="outside lower left", ncols=1)


def _names(places):
    """Name the layers; with their model's name where there are several models."""
    several = len({model for model, _ in places}) > 1
    return [f"{model} {layer}" if several else layer.removeprefix("model.") or model for model, layer in places]
