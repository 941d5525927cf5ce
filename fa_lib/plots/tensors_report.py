"""The figure of a report on captured tensors."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import FuncFormatter

from fa_lib.check.judge import RULE
from fa_lib.check.tensors import BETTER, CHANGES
from fa_lib.plots.captions import captioned
from fa_lib.plots.kernel_report import _times
from fa_lib.plots.style import BASELINE, FLASH, SOFTMAX

RISKS = {  # column of `capture.risks` -> heading, what its full colour means
    "repeated": ("rows with\nseveral\nmaxima", 1),
    "ones": ("P = 1,\nkeys\nper row", 4),
    "one_sided": ("V of\none\nsign", 1),
    "spread": ("spread\nof\nscores", 10),
    "lost": ("share of\nP that\nis lost", 1),
    "mass": ("most\nprobability\nlost", 1e-3),
    "rescales": ("rescales\nper row", 8),
}


def capture_report(verdict, risky, far, better, caption, most=24):
    """Heads by line: what makes them risky, how far kernels are on them; and what each change would buy.

    Args:
        risky: table of `capture.risks`. far: of `capture.deviations`. better: base -> rows of `capture.changes`.
        most: heads drawn, the worst first.
    """
    ran = far[far.problem == ""]
    worst = ran.groupby("head").times_max.max().sort_values(ascending=False)
    heads = sorted(worst.index[:most].astype(int))
    height = max(3.6, 0.34 * len(heads) + 1.9)
    figure, axes = plt.subplots(1, 3, figsize=(13.5, height), width_ratios=(1.25, 0.8, 1.1))
    _risks(axes[0], risky.set_index("head").loc[heads])
    _errors(axes[1], ran[ran["head"].isin(heads)], heads)
    _changes(axes[2], better)
    if len(worst) > most:
        caption += f" The {most} heads with the largest errors of {len(worst)}."
    return captioned(figure, f"{verdict.kernel} {'passes' if verdict.passed else 'fails'}", caption)


def _risks(ax, risky):
    values = np.array([[row[name] / full for name, (_, full) in RISKS.items()] for _, row in risky.iterrows()])
    ax.imshow(values.clip(0, 1), cmap="Oranges", vmin=0, vmax=1.4, aspect="auto")
    for i, (_, row) in enumerate(risky.iterrows()):
        for j, name in enumerate(RISKS):
            ax.text(j, i, f"{row[name]:.2g}", ha="center", va="center", fontsize=7.5)
    ax.set(
        yticks=range(len(risky)), yticklabels=risky.index, xticks=range(len(RISKS)), ylabel="head",
        title="how risky is each head?",
    )  # fmt: skip
    ax.set_xticklabels([words for words, _ in RISKS.values()], fontsize=6.5)
    ax.grid(False)
    ax.tick_params(length=0)


def _errors(ax, far, heads):
    names = [name for name in dict.fromkeys(far.kernel)]
    styles = (("#333333", "|"), (BASELINE, "s"), (SOFTMAX, "D"), (FLASH, "o"), ("#888888", "^"), ("#ca9161", "v"))
    for (color, marker), name in zip(styles, names):
        rows = far[far.kernel == name].set_index("head").loc[heads]
        ax.plot(rows.times_max, range(len(heads)), marker, color=color, ms=5, ls="", label=name)
    ax.axvline(RULE["o"], color="#333333", lw=1.2)
    ax.set(xscale="log", ylim=(len(heads) - 0.5, -0.5), yticks=range(len(heads)), yticklabels=heads)
    _times(ax.xaxis)
    ax.xaxis.set_minor_formatter(FuncFormatter(lambda x, _: f"{x:g}" if str(f"{x:g}")[0] in "25" else ""))
    ax.set(title="how far is each kernel on it?", xlabel="largest error / Baseline's")
    ax.grid(axis="y")
    ax.legend(loc="best", fontsize=6.5, frameon=True)


def _changes(ax, better):
    costs = {row["change"]: row["cost"] for rows in better.values() for row in rows[1:]}
    names = [name for name in CHANGES if name in costs]  # cheapest first
    for (base, rows), color, shift in zip(better.items(), (BASELINE, FLASH), (-0.2, 0.2)):
        at = [names.index(row["change"]) + shift for row in rows[1:]]
        less = [row["times_less"] for row in rows[1:]]
        bars = ax.barh(at, [x - 1 for x in less], 0.36, left=1, color=color, label=f"of {base}")
        ax.bar_label(bars, [f"{x:.1f} ×" if x >= 1 / BETTER else "" for x in less], fontsize=7, padding=2)
    ax.axvline(1, color="#333333", lw=1)
    labels = [f"{name}\ncosts {costs[name]}" for name in names]
    ax.set(
        xscale="log", yticks=range(len(names)), ylim=(len(names) - 0.5, -0.5), title="which change lowers the error?"
    )
    ax.set_yticklabels(labels, fontsize=6.5)
    _times(ax.xaxis)
    ax.xaxis.set_minor_formatter(FuncFormatter(lambda x, _: f"{x:g}" if str(f"{x:g}")[0] in "25" else ""))
    ax.set_xlabel("root mean square error, before / after")
    ax.legend(loc="upper right", fontsize=7)
