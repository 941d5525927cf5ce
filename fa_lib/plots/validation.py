"""Figure 2: the emulator against real kernels, and the rule of the field."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import FuncFormatter

from fa_lib.plots.captions import POINTS, captioned
from fa_lib.plots.style import BASELINE, FLASH, INPUTS, SOFTMAX, panels


def validation(exponential, agreement, caption):
    """Figure 2: the exponential inside torch's kernel, and the share of its bits that each modelling choice gets."""
    figure, axes = plt.subplots(1, 2, figsize=(9.2, 3.4))
    x, measured, modelled = exponential
    axes[0].plot(x, measured * 1e4, ".", color=FLASH, ms=3, label="torch's kernel, measured")
    axes[0].plot(x, modelled * 1e4, "-", color=BASELINE, lw=0.8, label="`fast_exp`, our model")
    axes[0].set(
        xlabel="S − m", ylabel="relative error of exp (1e-4)", ylim=(-1.3, 2.2), title="the exponential it uses"
    )
    axes[0].legend(loc="upper left")
    rows = agreement[(agreement.fmt == "BF16") & (agreement.n == agreement.n.max())]
    choices = list(dict.fromkeys(rows.choice))
    for distribution, color, marker in (("uniform", FLASH, "o"), ("normal", BASELINE, "s")):
        different = 1 - rows[rows.distribution == distribution].pivot(
            index="choice", columns="seed", values="identical"
        )
        different = different.loc[choices].clip(lower=1e-6)
        at = np.arange(len(choices))[::-1]
        for seed in different:
            axes[1].plot(different[seed], at, marker, color=color, ms=3.2, alpha=0.35, mew=0)
        axes[1].plot(different.mean(axis=1), at, marker, color=color, label=f"{distribution} inputs")
    axes[1].set(
        xscale="log", yticks=range(len(choices)), yticklabels=choices[::-1], xlabel="share of outputs whose bits differ"
    )
    axes[1].set(title=f"one part of the model changed, BF16, N = {rows.n.max()}")
    axes[1].grid(axis="x")
    axes[1].legend(loc="lower left")
    title = "Figure 2. The emulator is torch's CPU flash kernel, once its exponential is modelled"
    return captioned(figure, title, caption + POINTS)


def ruled(table, caption):
    """The rule of the field: largest errors in units of Baseline's own, every shape a point."""
    distributions, figure, axes = panels(table, height=3.6)
    names, tensors = list(dict.fromkeys(table.kernel)), list(dict.fromkeys(table.tensor))
    rng = np.random.default_rng(0)
    for ax, distribution in zip(axes, distributions):
        for (name, color, marker), shift in zip(zip(names, (BASELINE, SOFTMAX, FLASH), "sDo"), (-0.25, 0, 0.25)):
            for i, tensor in enumerate(tensors):
                rows = table[(table.distribution == distribution) & (table.kernel == name) & (table.tensor == tensor)]
                at = i + shift + rng.uniform(-0.09, 0.09, len(rows))
                ax.plot(at, rows.ratio, marker, color=color, ms=3, alpha=0.5, mew=0, label=name if i == 0 else None)
        for i, tensor in enumerate(tensors):
            allowed = table.loc[table.tensor == tensor, "allowed"].iloc[0]
            ax.plot([i - 0.42, i + 0.42], [allowed] * 2, color="#333333", lw=1.2)
        ax.set(yscale="log", xticks=range(len(tensors)), xticklabels=tensors, title=INPUTS[distribution])
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes[0].set_ylabel("largest error / Baseline's")
    axes[-1].legend(loc="upper right", markerscale=2)
    title = "The rule of the field: at most twice Baseline's error (three times for gradients)"
    return captioned(figure, title, caption)
