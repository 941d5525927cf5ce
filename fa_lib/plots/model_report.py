"""The figure of a probe: what each kernel's error is at every layer of a model."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import FuncFormatter

from fa_lib.check.judge import RULE
from fa_lib.plots.captions import captioned
from fa_lib.plots.style import BASELINE, FLASH

DRAWN = {  # kernel: label, colour, marker
    "ran": ("what the model ran", "#333333", "P"),
    "as_shipped": ("Flash as shipped", FLASH, "o"),
    "every_step": ("Flash, every step in the format", BASELINE, "s"),
}


def by_layer(table, caption, baseline="baseline"):
    """Largest errors of kernels in a model, over Baseline's: a small point for each layer, head and step, a large one
    for each layer, as in `Probe.summary`.

    Args:
        table: of a Probe with a baseline.
        baseline: its name.
    """
    rows = table[table.against == "golden"].assign(error=lambda t: t["max"] / t.scale)
    layers = list(dict.fromkeys(zip(rows.model, rows.layer)))
    names = [name for name in dict.fromkeys(rows.kernel) if name != baseline]
    figure, ax = plt.subplots(figsize=(8, 1.6 + 0.48 * len(layers)))
    largest, rng = rows.groupby(["model", "layer", "kernel"]).error.max(), np.random.default_rng(0)
    for i, name in enumerate(names):
        label, color, marker = DRAWN.get(name, (name, "#777777", "D^v<>"[i % 5]))
        shift = 0.7 * ((i + 0.5) / len(names) - 0.5)
        for y, layer in enumerate(layers):
            here = rows[(rows.model == layer[0]) & (rows.layer == layer[1]) & (rows.kernel == name)]
            if here.empty:  # refused
                continue
            at = y + shift + rng.uniform(-0.2, 0.2, len(here)) / len(names)
            ax.plot(here.ratio, at, marker, color=color, ms=3, alpha=0.45, mew=0)
            worst = largest[(*layer, name)] / largest[(*layer, baseline)]
            ax.plot(worst, y + shift, marker, color=color, ms=7, label=label)
            label = None
    for level, words, line in ((1, "as far as Baseline", "-"), (RULE["o"], "the rule's limit", ":")):
        ax.axvline(level, color="#333333", lw=0.9, ls=line, zorder=0)
        at = dict(xycoords=("data", "axes fraction"), textcoords="offset points", ha="center", fontsize=7)
        ax.annotate(words, (level, 1), (0, 3), **at)
    several = rows.model.nunique() > 1
    short = [f"{model} {layer}" if several else layer.removeprefix("model.") or model for model, layer in layers]
    ax.set(xscale="log", xlabel="largest error / Baseline's", ylim=(len(layers) - 0.5, -0.5))
    ax.set_yticks(range(len(layers)), labels=short)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    ax.xaxis.set_minor_formatter(FuncFormatter(lambda x, _: f"{x:g}" if f"{x:.0e}"[0] in "25" else ""))
    ax.grid(False)
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    ran = max(largest[(*layer, "ran")] / largest[(*layer, baseline)] for layer in layers)
    title = f"In this model attention's largest error in a layer is at most {ran:.1f} × Baseline's"
    points = " Small points: a head at a step; large ones: the layer's largest error over Baseline's largest."
    return captioned(figure, title, caption + points)
