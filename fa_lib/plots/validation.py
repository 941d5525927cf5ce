"""Figure 2: the emulator against real kernels."""

import math
from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor

from fa_lib.experiments.validation import CHOICES
from fa_lib.plots.captions import POINTS, captioned
from fa_lib.plots.points import Mark, points
from fa_lib.plots.recorded import NONE, by_device, caption_of, hollow, name_devices
from fa_lib.plots.style import BASELINE, FLASH, by_seed, styled


@styled
def validation(
    exponential: tuple[Tensor, Tensor, Tensor], agreement: pd.DataFrame, caption: str,
    recorded: Mapping[str, pd.DataFrame] = NONE,
) -> Figure:  # fmt: skip
    """Draw figure 2: the exponential inside torch's kernel, and the share of its bits that each modelling choice gets.

    Args:
        exponential: (x, measured, modelled), each (points,), of `experiments.validation.exponential`.
        agreement: of `experiments.validation.agree`; its BF16 rows at the longest N are drawn.
        recorded: device -> such a table.
    """
    figure, axes = plt.subplots(1, 2, figsize=(9.6, 3.6))
    x, measured, modelled = exponential
    axes[0].plot(x, measured * 1e4, ".", color=FLASH, ms=3, label="torch's kernel, measured")
    axes[0].plot(x, modelled * 1e4, "-", color=BASELINE, lw=0.8, label="our model of it")
    axes[0].set(xlabel="S − m, a score below its row's maximum", ylabel="relative error of exp (1e-4)")
    axes[0].set_ylim(-1.3, 2.2)
    axes[0].set_title("the exponential of torch's CPU kernel")
    axes[0].legend(loc="upper left")
    rows = _bf16_rows(agreement)
    elsewhere = {device: own for device, table in recorded.items() if len(own := _bf16_rows(table))}
    marks = {"uniform": Mark("uniform inputs", FLASH, "o"), "normal": Mark("normal inputs", BASELINE, "s")}
    labels = {key: label for key, (label, _) in CHOICES.items()}
    points(axes[1], rows, "different", ("choice", labels), ("distribution", marks), legend="lower left")
    for shape, table in by_device(elsewhere):
        for shift, (distribution, mark) in zip((-0.2, 0.2), marks.items()):  # as `points` has them
            own = by_seed(table[table.distribution == distribution], "choice", "different").reindex(labels)
            hollow(axes[1], np.arange(len(labels)) + shift, own, mark.color, shape, horizontal=True)
    if elsewhere:
        name_devices(axes[1], elsewhere)
    axes[1].legend(loc="lower left", fontsize=7)
    axes[1].set(xscale="log", xlabel="share of outputs whose bits differ")
    axes[1].set(title=f"each row undoes one choice of the model\n(BF16, N = {rows.n.max()})")
    every = pd.concat([rows, *elsewhere.values()])
    least = math.floor(1000 * every[every.choice == "model"].identical.min()) / 10
    title = f"Figure 2. The emulator has the bits of torch's flash kernel in at least {least} % of BF16 outputs"
    return captioned(figure, title, caption + POINTS + caption_of(elsewhere))


def _bf16_rows(agreement):
    """Select the BF16 rows at the longest N, and add different, the share of outputs whose bits differ."""
    rows = agreement[(agreement.fmt == "BF16") & (agreement.n == agreement.n.max())]
    return rows.assign(different=(1 - rows.identical).clip(lower=1e-6))
