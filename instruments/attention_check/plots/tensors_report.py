"""The panels of a report on captured tensors."""

from functools import partial

import pandas as pd

from attention_check.isolation.worker import Outcome
from attention_check.plots.page_style import BLUE, BROWN, DIM, PURPLE, RUST, Panel
from attention_check.report.labels import named
from fa_lib.kernels.rule import ALLOWED
from fa_lib.plots.style import INK, log_ticks

RISKS = {  # column of `captured.risks` -> heading, what its full colour means
    "repeated": ("rows with\nseveral\nmaxima", 1),
    "ones": ("P = 1,\nkeys\nper row", 4),
    "one_sided": ("V of\none\nsign", 1),
    "spread": ("spread\nof\nscores", 10),
    "lost": ("share of\nP that\nis lost", 1),
    "mass": ("most\nprobability\nlost", 1e-3),
    "rescales": ("rescales\nper row", 8),
}
MOST = 24  # heads that are drawn


def tensors_panels(risky: pd.DataFrame, far: pd.DataFrame) -> list[Panel]:
    """The panels of a page on captured tensors, with a line for each head: its risks, of a table of `captured.risks`,
    and the errors of kernels on it, of a table of `captured.deviations`."""
    heads, answered = _heads(far), far[far.outcome == Outcome.ANSWERED]
    height = 0.3 * len(heads) + 1.6
    return [
        Panel(
            "How risky is each head?",
            "Rows with several maxima: more than one key attains the row's largest score; P is exactly 1 there, and "
            "with V of one sign rounding O to 16 bits is biased. V of one sign: |sum| over the sum of sizes; errors of "
            "a low-precision carry then add up. Rescales: how often a tile of 64 keys raises a row's maximum.",
            partial(_risks, risky=risky.set_index("head").loc[heads]), (4.8, max(3.6, height)),
        ),
        Panel(
            "How far is each kernel on it?",
            "The largest error over Baseline's; the line is the rule, at most 2. The bar is the golden value rounded "
            "to the output's format: no kernel does better.",
            partial(_errors, far=answered[answered["head"].isin(heads)], heads=heads), (4.8, max(4.2, height + 0.6)),
        ),
    ]  # fmt: skip


def shortened(risky: pd.DataFrame) -> str:
    """Write a sentence where not all heads are drawn; else ""."""
    return f"The {MOST} heads with the largest errors of {len(risky)}." if len(risky) > MOST else ""


def _heads(far):
    """The heads that are drawn: MOST, those with the largest errors."""
    worst = far[far.outcome == Outcome.ANSWERED].groupby("head").times_max.max().sort_values(ascending=False)
    return sorted(worst.index[:MOST].astype(int))


def _risks(ax, risky):
    import seaborn  # two seconds that a report on a kernel is spared

    values = risky[[*RISKS]] / [full for _, full in RISKS.values()]
    labels = risky[[*RISKS]].map("{:.2g}".format)
    seaborn.heatmap(
        values.clip(0, 1), ax=ax, annot=labels, fmt="", cmap="Oranges", vmin=0, vmax=1.4, cbar=False,
        annot_kws=dict(fontsize=7.5, color=INK),
    )  # fmt: skip
    ax.set_ylabel("head")
    ax.set_xticklabels([label for label, _ in RISKS.values()], fontsize=7, rotation=0)
    ax.tick_params(axis="y", rotation=0)
    ax.tick_params(length=0)
    ax.grid(False)


def _errors(ax, far, heads):
    styles = ((INK, "|"), (BLUE, "s"), (PURPLE, "D"), (RUST, "o"), (DIM, "^"), (BROWN, "v"))
    for (color, marker), name in zip(styles, dict.fromkeys(far.kernel)):
        rows = far[far.kernel == name].set_index("head").loc[heads]
        style = dict(ms=11, mew=1.6, zorder=4) if marker == "|" else dict(ms=5)
        ax.plot(rows.times_max, range(len(heads)), marker, color=color, ls="", label=named(name), **style)
    ax.axvline(ALLOWED["o"], color=INK, lw=1.2)
    ax.set(xscale="log", ylim=(len(heads) - 0.5, -0.5), yticks=range(len(heads)), yticklabels=heads, ylabel="head",
           xlabel="largest error / Baseline's")  # fmt: skip
    log_ticks(ax.xaxis)
    ax.grid(axis="y")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), fontsize=7.5, ncols=2)
