"""Figure 2: the emulator against real kernels."""

import math

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor

from fa_lib.experiments.validation import CHOICES
from fa_lib.plots.captions import POINTS, captioned
from fa_lib.plots.points import Mark, points
from fa_lib.plots.style import BASELINE, FLASH, styled


@styled
def validation(exponential: tuple[Tensor, Tensor, Tensor], agreement: pd.DataFrame, caption: str) -> Figure:
    """Figure 2: the exponential inside torch's kernel, and the share of its bits that each modelling choice gets.

    Args:
        exponential: x, measured, modelled, of `experiments.validation.exponential`.
        agreement: table of `experiments.validation.agree`; its BF16 rows at the longest N are shown.
    """
    figure, axes = plt.subplots(1, 2, figsize=(9.2, 3.4))
    x, measured, modelled = exponential
    axes[0].plot(x, measured * 1e4, ".", color=FLASH, ms=3, label="torch's kernel, measured")
    axes[0].plot(x, modelled * 1e4, "-", color=BASELINE, lw=0.8, label="`fast_exp`, our model")
    axes[0].set(xlabel="S − m", ylabel="relative error of exp (1e-4)", ylim=(-1.3, 2.2))
    axes[0].set_title("the kernel's exponential")
    axes[0].legend(loc="upper left")
    rows = agreement[(agreement.fmt == "BF16") & (agreement.n == agreement.n.max())]
    rows = rows.assign(different=(1 - rows.identical).clip(lower=1e-6))
    marks = {"uniform": Mark("uniform inputs", FLASH, "o"), "normal": Mark("normal inputs", BASELINE, "s")}
    labels = {choice.key: choice.label for choice in CHOICES.values()}
    points(axes[1], rows, "different", ("choice", labels), ("distribution", marks), legend="lower left")
    axes[1].set(xscale="log", xlabel="share of outputs whose bits differ")
    axes[1].set(title=f"one modelling choice undone, BF16, N = {rows.n.max()}")
    least = math.floor(1000 * rows[rows.choice == "model"].identical.min()) / 10
    title = f"Figure 2. At least {least} % of BF16 outputs are torch's bits, once its exponential is modelled"
    return captioned(figure, title, caption + POINTS)
