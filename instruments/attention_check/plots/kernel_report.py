"""The panels of a report on somebody's kernel."""

from functools import partial

import numpy as np
import pandas as pd

from attention_check.checks.carry import LOST
from attention_check.measure.measurements import Measurements
from attention_check.measure.reference_cache import BIASED, WORST
from attention_check.plots.page_style import BLUE, DIM, READABLE, RUST, Panel
from attention_check.report.labels import NAMES, SUMS, queries_in_words
from fa_lib.kernels.rule import ALLOWED
from fa_lib.numerics.confidence import interval
from fa_lib.plots.style import INK, INPUTS, band, log_ticks, no_minor_ticks, plain_ticks

TROUBLE = {BIASED: "two maxima, V > 0", WORST: "worst found by search"}  # beside INPUTS
MARKERS = {"accumulator": ("o", "full"), "row_sum": ("s", "none")}


def kernel_panels(found: Measurements) -> list[Panel]:
    """The panels of a kernel's page: the precision of its sums, the growth of its error, the rule, and hard inputs; []
    for a kernel that runs in no format."""
    if not len(found.lengths):
        return []
    return [
        Panel(
            "Does it lose small terms of a large sum?",
            "One large term and many small ones are added up. Below the line the sum is right to the rounding of the "
            "output. A kernel that keeps the sum in BF16 or FP16 from tile to tile loses what each tile adds. The most "
            "that is lost for 1, 16 and 256 queries is shown.",
            partial(_sums, sums=found.sums),
        ),
        Panel(
            "Does its error grow with N?",
            "The largest error over Baseline's on the same outputs (at least 1,024), for the format and the numbers of "
            "queries where it is largest. The line is the rule, at most 2.",
            partial(_growth, lengths=found.lengths),
        ),
        Panel(
            "Is it within the rule, over shapes and masks?",
            "The largest error over Baseline's, a point for each shape. The lines are the rule: at most 2 for the "
            "output, 3 for gradients, which are reported, and counted only where they are wrong by more than 20 %.",
            partial(_rule, shapes=found.shapes),
        ),
        Panel(
            "Do its errors have a side?",
            "The mean signed difference to the golden value rounded to the format; hollow marks are Baseline's. Below "
            "0.05 ulp nothing is called a bias: an output that is rounded once scatters by 0.29 ulp.",
            partial(_inputs, inputs=found.inputs), (4.4, 4.0),
        ),
    ]  # fmt: skip


def _sums(ax, sums):
    worst = sums.groupby(["what", "fmt", "keys"])[["lost", "all"]].max().reset_index()  # over numbers of queries
    for sum_name, (marker, fill) in MARKERS.items():
        for fmt, rows in worst[worst.what == sum_name].groupby("fmt", sort=False):
            ax.plot(
                rows["keys"], rows.lost.clip(lower=0.05), marker=marker, ms=4, lw=1.2, fillstyle=fill,
                color=READABLE[fmt][0], label=f"{SUMS[sum_name]}, {fmt}",
            )  # fmt: skip
    all_lost = worst.groupby("keys")["all"].max()
    ax.plot(all_lost.index, all_lost, color=DIM, lw=1, ls=":", label="every tile lost")
    ax.axhline(LOST, color=INK, lw=1.2)
    right = dict(fontsize=8, ha="right", va="top")
    ax.annotate(f"limit: {LOST} ulp", (1, LOST), (-2, -3), ("axes fraction", "data"), "offset points", **right)
    ax.set(xscale="log", yscale="log", xticks=[1, 4, 16, 64, 256], ylim=(0.04, 4000), ylabel="lost of the sum (ulp)",
           xlabel="keys whose terms add up to 0.45 ulp")  # fmt: skip
    no_minor_ticks(ax.xaxis)
    plain_ticks(ax.xaxis)
    plain_ticks(ax.yaxis)
    ax.legend(loc="upper right", ncols=2)


def _growth(ax, lengths):
    """Draw the kernel in the format where its error is largest, for each inputs at the number of queries where it
    is."""
    worst = lengths.loc[lengths.times_max.idxmax()] if lengths.times_max.notna().any() else lengths.iloc[0]
    own = lengths[lengths.fmt == worst.fmt].assign(few=lambda t: t.queries.where(t.queries < t.n, 0))
    for distribution, color, marker in (("uniform", RUST, "o"), ("normal", BLUE, "s")):
        rows = own[own.distribution == distribution]
        queries = rows.groupby("few").times_max.mean().fillna(0).idxmax()
        words = queries_in_words(int(queries)) if queries else "N queries"
        band(ax, _by_draw(rows[rows.few == queries]), color, marker, f"{INPUTS[distribution]}, {words}")
    ax.axhline(ALLOWED["o"], color=INK, lw=1.2)
    ax.set(xscale="log", yscale="log", xticks=_legible(sorted(own.n.unique())), xlabel="sequence length N (keys)")
    no_minor_ticks(ax.xaxis)
    log_ticks(ax.yaxis)
    plain_ticks(ax.xaxis)
    ax.set_ylabel(f"largest error / Baseline's, {worst.fmt}")
    ax.set_ylim(top=5 * ax.get_ylim()[1])  # room for the legend
    ax.legend(loc="upper left")


def _legible(lengths):
    """Select those of ascending lengths whose labels have room between them on a logarithmic axis."""
    legible = []
    for n in lengths:
        if not legible or n >= 1.5 * legible[-1]:
            legible.append(n)
    return legible


def _by_draw(rows):
    """Make a frame, N x draws. Where a length has fewer draws than another, their mean stands for the missing ones."""
    frame = pd.DataFrame({n: group.times_max.reset_index(drop=True) for n, group in rows.groupby("n")})
    return frame.fillna(frame.mean()).T


def _rule(ax, shapes):
    tensors = [tensor for tensor in ALLOWED if len(shapes) and (shapes.tensor == tensor).any()]
    rng = np.random.default_rng(0)
    for i, tensor in enumerate(tensors):
        for (fmt, rows), shift in zip(shapes[shapes.tensor == tensor].groupby("fmt", sort=False), (-0.18, 0.18)):
            at, (color, marker) = i + shift + rng.uniform(-0.1, 0.1, len(rows)), READABLE[fmt]
            ax.plot(at, rows.ratio, marker, color=color, ms=3, mew=0, label=None if i else fmt)
        ax.plot([i - 0.42, i + 0.42], [ALLOWED[tensor]] * 2, color=INK, lw=1.2)
    ax.set(yscale="log", xticks=range(len(tensors)), xticklabels=[NAMES.get(t, "output") for t in tensors])
    log_ticks(ax.yaxis)
    ax.set_ylabel("largest error / Baseline's")
    if len(tensors):
        ax.legend(loc="upper left")


def _inputs(ax, inputs):
    names = list(dict.fromkeys(inputs.distribution))[::-1]
    for (fmt, rows), shift in zip(inputs.groupby("fmt", sort=False), (0.16, -0.16)):
        color, marker = READABLE[fmt]
        for i, name in enumerate(names):
            own = rows[rows.distribution == name]
            mean, low, high = interval(own.outwards)
            style = dict(color=color, marker=marker, ms=4.5, lw=1.4, capsize=2)
            if name == WORST:  # the search takes either side: only the size of the error is shown
                high = 0.0
            else:
                label = fmt if name == names[-1] else None
                ax.errorbar(mean, i + shift, xerr=[[mean - low], [high - mean]], label=label, **style)
                label, x = "Baseline's" if label and fmt == inputs.fmt.iloc[0] else None, own.baseline_outwards.mean()
                ax.plot(x, i + shift, marker, ms=7, mfc="none", mec=DIM, mew=1, label=label, zorder=0)
            if (times := own.times_max.mean()) > ALLOWED["o"]:
                at = dict(xytext=(4, -3), textcoords="offset points", fontsize=7.5, color=color)
                ax.annotate(f"{times:.1f} × Baseline", (high, i + shift), **at)
    ax.axvline(0, color=INK, lw=1)
    low, high = ax.get_xlim()
    ax.set(xlim=(min(low, -0.1), max(high, 0.1)), xlabel="mean error away from zero (ulp), 95 % interval",
           ylim=(-0.6, len(names) - 0.4), yticks=range(len(names)),
           yticklabels=[(INPUTS | TROUBLE)[name] for name in names])  # fmt: skip
    ax.grid(axis="x")
    if len(names):
        ax.legend(loc="best")
