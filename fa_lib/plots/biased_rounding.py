"""Our figure 10: biased rounding."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import pandas as pd
import seaborn
from matplotlib.figure import Figure

from fa_lib.experiments.biased_rounding import CURES
from fa_lib.kernels.equal_maxima import SIGNS
from fa_lib.plots.captions import POINTS, captioned
from fa_lib.plots.points import Mark, points
from fa_lib.plots.style import BASELINE, FLASH, GREY, INK, band, by_seed, styled

_REPEATS = ((GREY, "D"), (FLASH, "o"), (BASELINE, "s"))  # of numbers of keys, ascending
_SIGN_STYLES = {"positive": (FLASH, "o"), "negative": (BASELINE, "s"), "both": (GREY, "D")}


_CURE_STYLES = {  # colour, marker, line, and the size of the marker; it is larger around that of an equal result
    "carried_bf16": (FLASH, "o", "-", 7),
    "fast_exp": (FLASH, "D", "--", 11),
    "carried_fp32": (BASELINE, "o", "-", 7),
    "dynamic_8": ("#222222", "X", "-.", 7),
    "dynamic_2": (BASELINE, "s", "--", 7),
    "stochastic": (GREY, "D", "-", 7),
    "output_fp32": (GREY, "v", "--", 7),
    "delta_from_probs": (BASELINE, "^", "--", 7),
}


@styled
def mechanism(by_repeats: pd.DataFrame, by_gap: pd.DataFrame, steps: pd.DataFrame, caption: str) -> Figure:
    """Draw biased rounding: the error of O by the number of keys at the maximum, and by how far it exceeds the other
    scores; delta's error over steps; and the cures.

    Args:
        by_repeats, by_gap, steps: tables of `experiments.biased_rounding.bias`; steps with the columns step and run.
    """
    figure, axes = plt.subplots(2, 2, figsize=(10, 7.2))
    axes = [axes[0, 0], axes[1, 0], axes[1, 1], axes[0, 1]]
    for repeats, (color, marker) in zip(sorted(by_gap.repeats.unique()), _REPEATS):
        rows = by_gap[by_gap.repeats == repeats]
        keys = f"{repeats} keys at the maximum" if repeats > 1 else "1 key"
        band(axes[3], by_seed(rows, "gap", "error"), color, marker, keys)
    axes[3].axhline(0, color=INK, lw=0.9)
    axes[3].set(xlabel="maximum (the other scores are N(0, 1))", ylabel="mean error of O (ulp of BF16)")
    axes[3].set_title("how far the maximum stands out; V > 0")
    axes[3].legend()
    labels, (colors, markers) = {key: sign.label for key, sign in SIGNS.items()}, zip(*map(_SIGN_STYLES.get, SIGNS))
    seaborn.pointplot(
        data=by_repeats.assign(sign=by_repeats.sign.map(labels)), x="repeats", y="error", hue="sign",
        hue_order=list(labels.values()), palette=list(colors), markers=list(markers), errorbar=("se", 1.96),
        capsize=0.15, markersize=5, linewidth=1.3, ax=axes[0],
    )  # fmt: skip
    axes[0].axhline(0, color=INK, lw=0.9)
    axes[0].set(xlabel="keys that attain the row's maximum", ylabel="mean error of O (ulp of BF16)")
    axes[0].set_title("O is biased; maximum 16")
    axes[0].legend(title=None)
    for cure, (color, marker, line, size) in _CURE_STYLES.items():
        rows = steps[steps.cure == cure].sort_values("step")
        sums = rows.pivot(index="step", columns="run", values="delta").cumsum()
        sums.index += 1
        if cure != "dynamic_8":  # its sum is a thousand times larger
            band(axes[1], sums, color, "", CURES[cure].label, ls=line)
        by_run = rows.groupby("run")[["delta", "delta_rmse"]].mean()
        shape = dict(marker=marker, color=color, mfc="none" if line == "--" else color, ls="")
        axes[2].plot(by_run.delta.abs(), by_run.delta_rmse, **shape, ms=4, alpha=0.4)
        mean = by_run.mean()
        axes[2].plot(abs(mean.delta), mean.delta_rmse, **shape, ms=size, label=CURES[cure].label)
    axes[1].set(xlabel="steps", ylabel="sum of delta's errors\n(units of u · rowsum |dO ∘ O|)")
    axes[1].set_title("delta drifts; colours as in the panel of cures")
    axes[2].set(xscale="log", yscale="log", xlabel="|bias of delta| a step", ylabel="rms error of delta", title="cures")
    axes[2].legend(fontsize=6.5, loc="lower right")
    spread = "Above: mean over seeds, its 95 % interval (left) or range (right). Below: range over runs; dots: runs."
    title = "Ties that round away from zero bias O, and delta drifts; keeping O in FP32 is no cure by itself"
    return captioned(figure, title, f"{caption} {spread}")


_FLASH_PAIRS = ("flash", "flash_emulated", "flash_fp32")  # of training: Flash against Baseline


@styled
def directions(table: pd.DataFrame, labels: Mapping[str, str], caption: str) -> Figure:
    """Draw whether two training runs move apart in one direction, by pair of the study.

    Args:
        table: of `training.distances.direction`, with pair and seed.
        labels: pair -> label, in the order shown.
    """
    figure, ax = plt.subplots(figsize=(6.6, 3.4))
    table = table.assign(kind=["flash" if pair in _FLASH_PAIRS else "other" for pair in table.pair])
    marks = {"flash": Mark("Flash against Baseline", FLASH, "o"), "other": Mark("another difference", GREY, "o")}
    points(ax, table, "score", ("pair", labels), ("kind", marks), dodge=False)
    ends = ((1, "unrelated steps", "left", 3), (table.steps.iloc[0] ** 0.5, "all in one direction", "right", -3))
    for x, words, side, shift in ends:
        ax.axvline(x, color=INK, lw=0.9, ls=":")
        ax.annotate(words, (x, -0.55), (shift, 0), textcoords="offset points", fontsize=7, ha=side)
    words = "A = |sum of steps, each of length 1| / root of their number"
    ax.set(xlabel=words, xlim=(0, None), ylim=(len(labels) - 0.5, -1))
    title = "Flash's drift from Baseline has no more of one direction than a nudge's"
    return captioned(figure, title, caption + POINTS)
