"""The weights that a kernel gives to its keys, expected and measured."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from attention_check.measure.weights import Weights
from attention_check.report.weights_words import lines
from fa_lib.plots.captions import captioned
from fa_lib.plots.style import styled

UNSEEN = "#d9d9d9"


@styled
def weights_figure(w: Weights, kernel: str) -> Figure:
    """Draw P of the head that is furthest off, expected and measured, and their ratio: keys across, rows down."""
    head = int(w.times.flatten(1).amax(1).argmax())
    expected, measured = (np.ma.masked_less_equal(x[head].nan_to_num().numpy(), 0) for x in (w.expected, w.measured))
    ratio = np.ma.masked_array(measured.filled(0) / expected.filled(1e-9), measured.mask & expected.mask)
    figure, axes = plt.subplots(1, 3, figsize=(11.4, 4.2), sharey=True, layout="constrained")
    of_weights, of_ratios = (1e-4, 1e-3, 1e-2, 1e-1, 1), (0.25, 0.5, 1, 2, 4)
    for ax, p, name, colors, ticks, label in zip(
        axes, (expected, measured, ratio), ("expected", "measured", "measured / expected"),
        ("YlGnBu", "YlGnBu", "RdBu_r"), (of_weights, of_weights, of_ratios),
        ("", "weight (grey: 0)", "ratio (grey: 0 / 0)"),
    ):  # fmt: skip
        norm, cmap = LogNorm(ticks[0], ticks[-1]), plt.get_cmap(colors).with_extremes(bad=UNSEEN)
        image = ax.imshow(p.clip(1e-12, 1e12), norm=norm, cmap=cmap, aspect="auto", interpolation="nearest")
        ax.set(title=f"{name}, head {head}", xlabel="key")
        ax.grid(visible=False)
        if label:  # the first has the colours of the second
            bar = figure.colorbar(image, ax=ax, label=label, ticks=ticks, format="%g", extend="both")
            bar.minorticks_off()
    axes[0].set_ylabel("row")
    title = lines(w)[(w.times > 1).any()].strip()
    return captioned(figure, title, f"{kernel}. V: rows of the identity.")
