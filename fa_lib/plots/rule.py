"""Our rule, after flash-attention's: the largest error of any kernel in units of Baseline's own."""

from collections.abc import Mapping
from contextlib import contextmanager

import numpy as np
import pandas as pd
import seaborn
from matplotlib.figure import Figure

from fa_lib.kernels.rule import ALLOWED, REFERENCE_KERNELS
from fa_lib.plots.captions import captioned
from fa_lib.plots.recorded import NONE, by_device, hollow, name_devices
from fa_lib.plots.style import BASELINE, FLASH, INK, INPUTS, SOFTMAX, panels, plain_ticks, styled

WIDTH = 0.8  # of a tensor's kernels side by side, as seaborn has them
_SYMBOLS = {"o": "O", "dq": "dQ", "dk": "dK", "dv": "dV"}
_COLORS = {"as_shipped": SOFTMAX, "every_step": FLASH}
_LABELS = {"flash": "torch's flash kernel"} | {key: f"emulated, {label}" for key, label in REFERENCE_KERNELS.items()}


@contextmanager
def _seeded():
    """Seed numpy's global generator, from which seaborn draws its jitter, and restore it afterwards."""
    before = np.random.get_state()
    np.random.seed(0)
    try:
        yield
    finally:
        np.random.set_state(before)


@styled
def ruled(table: pd.DataFrame, caption: str, recorded: Mapping[str, pd.DataFrame] = NONE) -> Figure:
    """Draw our rule, after flash-attention's: largest errors in units of Baseline's, a point for each shape.

    Args:
        table: of `kernels.rule.rule`, with a column `distribution`.
        recorded: device -> such a table; only the largest error of its shapes is drawn.
    """
    figure, axes, parts = panels(table, height=3.6)
    labels = {name: _LABELS.get(name, name) for name in dict.fromkeys(table.kernel)}
    tensors = [tensor for tensor in ALLOWED if tensor in set(table.tensor)]
    for ax, distribution, rows in parts:
        with _seeded():
            seaborn.stripplot(
                data=rows.assign(kernel=rows.kernel.map(labels)), x="tensor", y="ratio", order=tensors, hue="kernel",
                hue_order=list(labels.values()), palette=[_COLORS.get(name, BASELINE) for name in labels], dodge=True,
                jitter=0.09, size=3, alpha=0.5, legend=ax is axes[-1], ax=ax,
            )  # fmt: skip
        for shape, other in by_device(recorded):
            largest = other[other.distribution == distribution].groupby(["kernel", "tensor"])[["ratio"]].max()
            for i, name in enumerate(labels):
                shift = WIDTH * ((i + 0.5) / len(labels) - 0.5)
                own = largest.reindex([(name, tensor) for tensor in tensors])
                hollow(ax, np.arange(len(tensors)) + shift, own, _COLORS.get(name, BASELINE), shape)
        for i, tensor in enumerate(tensors):
            ax.hlines(ALLOWED[tensor], i - 0.42, i + 0.42, color=INK, lw=1.2)
        ax.set(yscale="log", xlabel="output and gradients", title=INPUTS[distribution])
        ax.set_xticks(range(len(tensors)), labels=[_SYMBOLS[tensor] for tensor in tensors])
        plain_ticks(ax.yaxis)
    axes[0].set_ylabel("largest error / Baseline's")
    name_devices(axes[0], recorded)
    if recorded:
        axes[0].legend(loc="upper right")
    seaborn.move_legend(axes[-1], "upper right", title=None, markerscale=2)
    own = f" Hollow marks: the largest of the shapes recorded on {' and on '.join(recorded)}." if recorded else ""
    words = f"{caption} Lines: our rule, after flash-attention's, twice Baseline's error and three times for gradients."
    return captioned(figure, _worst(table, recorded), words + own)


def _worst(table, recorded):
    """Say which tensor of the kernel under the rule exceeds it most, or comes nearest, here or on a device."""
    name = next((name for name in table.kernel if name not in REFERENCE_KERNELS), table.kernel.iloc[0])
    own = [other.assign(on=f"\non {device};") for device, other in recorded.items()]
    rows = pd.concat([table.assign(on=";"), *own], ignore_index=True).query("kernel == @name")
    worst = rows.loc[(rows.ratio / rows.tensor.map(ALLOWED)).idxmax()]
    kernel = "torch's flash kernel" if name == "flash" else f"the kernel {name!r}"
    where = f"{_SYMBOLS[worst.tensor]} of {kernel} on {worst.distribution} inputs"
    return f"{where} has up to {worst.ratio:.1f} × Baseline's error{worst.on} our rule allows {ALLOWED[worst.tensor]} ×"
