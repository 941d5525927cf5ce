"""A head's weights: expected and measured side by side, and their difference."""

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
    colors = plt.get_cmap("YlGnBu").with_extremes(bad=UNSEEN)
    for ax, (name, p) in zip(axes, dict(expected=expected, measured=measured).items()):
        shown = np.ma.masked_less_equal(p, 0).clip(LEAST, 1)
        image = ax.imshow(shown, norm=LogNorm(LEAST, 1), cmap=colors, aspect="auto", interpolation="nearest")
        ax.set(title=f"{name} P, head {head}", xlabel="key")
    axes[0].set_ylabel("row")
    figure.colorbar(image, ax=axes[:2].tolist(), label="weight (grey: 0)", pad=0.01, extend="min")
    most = max(np.abs(measured - expected).max(), 1e-12)
    image = axes[2].imshow(
        measured - expected, vmin=-most, vmax=most, cmap="RdBu_r", aspect="auto", interpolation="nearest"
    )
    axes[2].set(title="measured - expected", xlabel="key")
    figure.colorbar(image, ax=axes[2], label="difference of the weights", pad=0.02)
    for ax in axes:
        ax.grid(visible=False)
    return captioned(figure, title, caption)
