"""A head's weights: expected and measured side by side, and their ratio."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from attention_check.measure.weights import Weights
from attention_check.plots.wrong_rows import UNSEEN
from fa_lib.plots.captions import captioned
from fa_lib.plots.style import styled

LEAST = 1e-4  # of the colours: smaller weights are drawn as this one


@styled
def weights_figure(w: Weights, title: str, caption: str) -> Figure:
    """Draw P of the head that is furthest off: keys across, rows down."""
    head = int(w.times.flatten(1).amax(1).argmax())
    expected, measured = (x[head].nan_to_num().numpy() for x in (w.expected, w.measured))
    figure, axes = plt.subplots(1, 3, figsize=(11.4, 4.2), sharey=True, layout="constrained")
    shape: dict[str, Any] = dict(aspect="auto", interpolation="nearest")
    colors = plt.get_cmap("YlGnBu").with_extremes(bad=UNSEEN)
    for ax, (name, p) in zip(axes, dict(expected=expected, measured=measured).items()):
        shown = np.ma.masked_less_equal(p, 0).clip(LEAST, 1)
        image = ax.imshow(shown, norm=LogNorm(LEAST, 1), cmap=colors, **shape)
        ax.set(title=f"{name} P, head {head}", xlabel="key")
    axes[0].set_ylabel("row")
    figure.colorbar(image, ax=axes[:2].tolist(), label="weight (grey: 0)", pad=0.01, extend="min")
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = measured / expected  # NaN where both are 0
    colors = plt.get_cmap("RdBu_r").with_extremes(bad=UNSEEN)
    image = axes[2].imshow(np.clip(ratio, 1e-9, 1e9), norm=LogNorm(0.25, 4), cmap=colors, **shape)
    axes[2].set(title="measured / expected", xlabel="key")
    bar = figure.colorbar(image, ax=axes[2], label="ratio (grey: both are 0)", pad=0.02, extend="both")
    bar.set_ticks([0.25, 0.5, 1, 2, 4], labels=["1/4", "1/2", "1", "2", "4"])
    bar.minorticks_off()
    for ax in axes:
        ax.grid(visible=False)
    return captioned(figure, title, caption)
