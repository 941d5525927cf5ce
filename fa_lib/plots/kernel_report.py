"""The figure of a report on somebody's kernel."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.ticker import FuncFormatter, NullLocator

from fa_lib.check.judge import LOST, RULE, interval
from fa_lib.plots.captions import captioned
from fa_lib.plots.style import BASELINE, FLASH, FORMATS, INPUTS, band

BESIDE = {"as_shipped": ("as shipped", "#888888", ":"), "every_step": ("all in the format", "#888888", "--")}


def kernel_report(verdict, tables, caption):
    """Four questions to a kernel: what it carries, how its error grows, what the rule says, what makes trouble.

    Args:
        tables: of `examine.examine`. A kernel that runs in no format has no figure: None.
    """
    if not len(tables["lengths"]):
        return None
    figure, axes = plt.subplots(2, 2, figsize=(10.5, 7.4))
    _sums(axes[0, 0], tables["sums"])
    _growth(axes[0, 1], tables["lengths"], verdict.kernel)
    _rule(axes[1, 0], tables["shapes"])
    _inputs(axes[1, 1], tables["inputs"])
    word = "passes" if verdict.passed else "fails"
    carries = "not seen" if verdict.carries is None else " and ".join(verdict.carries) or "no"
    title = f"{verdict.kernel} {word}. Low precision carried from tile to tile: {carries}"
    return captioned(figure, title, caption)


def _times(axis):
    axis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))


def _sums(ax, sums):
    for (what, marker), fill in zip((("accumulator O", "o"), ("row sum l", "s")), ("full", "none")):
        for fmt, rows in sums[sums.what == what].groupby("fmt", sort=False):
            ax.plot(
                rows["keys"], rows.lost.clip(lower=0.05), marker=marker, ms=4, lw=1.2, fillstyle=fill,
                color=FORMATS[fmt][0], label=f"{what}, {fmt}",
            )  # fmt: skip
    if len(sums):
        all_lost = sums.drop_duplicates("keys")
        ax.plot(all_lost["keys"], all_lost["all"], color="#888888", lw=1, ls=":", label="every tile lost")
        ax.axhline(LOST, color="#333333", lw=1.2)
        ax.annotate(f"{LOST} ulp", (1, LOST), (0, 3), textcoords="offset points", fontsize=7)
        ax.set(xscale="log", yscale="log", xticks=[1, 4, 16, 64, 256, 1024], ylim=(0.04, 4000))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.legend(loc="upper right", fontsize=6.5, ncols=2)
    _times(ax.xaxis)
    _times(ax.yaxis)
    ax.set(
        title="does it lose small terms of a large sum?", ylabel="lost of the sum (ulp)",
        xlabel="keys whose terms add up to 0.45 ulp",
    )  # fmt: skip


def _growth(ax, lengths, kernel):
    shown = lengths[lengths.fmt == lengths.fmt.iloc[0]]
    for distribution, color, marker in (("uniform", FLASH, "o"), ("normal", BASELINE, "s")):
        of = shown[shown.distribution == distribution]
        for name, rows in of.groupby("kernel", sort=False):
            values = rows.pivot(index="n", columns="seed", values="times_max")
            if name == kernel:
                band(ax, values, color, marker, INPUTS[distribution])
            else:
                label, _, ls = BESIDE[name]
                words = f"{label}, emulated" if distribution == "uniform" else None
                ax.plot(values.index, values.mean(axis=1), color=color, lw=0.9, ls=ls, alpha=0.7, label=words)
    ax.axhline(RULE["o"], color="#333333", lw=1.2)
    lengths_at = sorted(shown.n.unique())
    ax.set(xscale="log", yscale="log", xticks=lengths_at, xlabel="sequence length N")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_minor_formatter(FuncFormatter(lambda y, _: f"{y:g}" if str(f"{y:g}")[0] in "25" else ""))
    _times(ax.xaxis)
    _times(ax.yaxis)
    ax.set(title=f"does its error grow? ({shown.fmt.iloc[0]})", ylabel="largest error / Baseline's")
    ax.legend(loc="upper left", fontsize=7)


def _rule(ax, shapes):
    tensors = [t for t in RULE if (shapes.tensor == t).any()]
    rng = np.random.default_rng(0)
    for i, tensor in enumerate(tensors):
        for (fmt, rows), shift in zip(shapes[shapes.tensor == tensor].groupby("fmt", sort=False), (-0.18, 0.18)):
            at = i + shift + rng.uniform(-0.1, 0.1, len(rows))
            ax.plot(
                at, rows.ratio, FORMATS[fmt][1], color=FORMATS[fmt][0], ms=3.5, alpha=0.6, mew=0,
                label=fmt if i == 0 else None,
            )  # fmt: skip
        ax.plot([i - 0.42, i + 0.42], [RULE[tensor]] * 2, color="#333333", lw=1.2)
    ax.set(yscale="log", xticks=range(len(tensors)), xticklabels=[{"o": "output"}.get(t, t) for t in tensors])
    ax.yaxis.set_minor_formatter(FuncFormatter(lambda y, _: f"{y:g}" if str(f"{y:g}")[0] in "25" else ""))
    _times(ax.yaxis)
    ax.set(title="is it within the rule, over shapes and masks?", ylabel="largest error / Baseline's")
    if len(tensors):
        ax.legend(loc="upper left", fontsize=7)


def _inputs(ax, inputs):
    names = list(dict.fromkeys(inputs.distribution))[::-1]
    for (fmt, rows), shift in zip(inputs.groupby("fmt", sort=False), (0.16, -0.16)):
        for i, name in enumerate(names):
            mean, low, high = interval(rows[rows.distribution == name].outwards)
            style = dict(color=FORMATS[fmt][0], marker=FORMATS[fmt][1], ms=4.5, lw=1.4, capsize=2)
            ax.errorbar(
                mean, i + shift, xerr=[[mean - low], [high - mean]], **style, label=fmt if i == 0 else None
            )  # fmt: skip
            times = rows[rows.distribution == name].times_max.mean()
            if times > RULE["o"]:
                ax.annotate(f"{times:.1f} × Baseline", (high, i + shift), (4, -3), textcoords="offset points",
                            fontsize=7, color=FORMATS[fmt][0])  # fmt: skip
    ax.axvline(0, color="#333333", lw=1)
    low, high = ax.get_xlim()
    ax.set_xlim(min(low, -0.1), max(high, 0.1))
    ax.set(yticks=range(len(names)), yticklabels=[INPUTS.get(name, name) for name in names])
    ax.set(title="do its errors have a side?", xlabel="mean error away from zero (ulp), 95 % interval")
    ax.grid(axis="x")
    if len(names):
        ax.legend(loc="best", fontsize=7)


def by_length(lengths, kernel):
    """A table of `examine.measure` over n as text: a line per format, inputs and N."""
    if not len(lengths):
        return "not measured"
    of = lengths[lengths.kernel == kernel].groupby(["fmt", "distribution", "n"], sort=False)
    shown = of[["rmse", "max", "times_max"]].mean().rename(columns=dict(times_max="max / Baseline's"))
    return shown.map("{:.2g}".format).to_string()


def by_input(inputs):
    """A table of `examine.measure` on inputs that make trouble as text: a line per format and inputs."""
    if not len(inputs):
        return "not measured"
    lines = {}
    for at, rows in inputs.groupby(["fmt", "distribution"], sort=False):
        mean, low, high = interval(rows.outwards)
        error = dict(zip(("max / Baseline's", "away from zero (ulp)"), (rows.times_max.mean(), f"{mean:+.3f}")))
        lines[at] = error | {"95 % interval": f"{low:+.3f} to {high:+.3f}", "problem": rows.problem.iloc[0]}
    return pd.DataFrame(lines).T.map(lambda x: f"{x:.2f}" if isinstance(x, float) else x).to_string()


def by_shape(shapes):
    """A table of `examine.ruled` as text: error over Baseline's, a line per shape and format, a column per tensor."""
    if not len(shapes):
        return "not measured"
    rows = shapes.assign(ratio=shapes.ratio.map("{:.2f}".format) + shapes.passed.map({False: " !"}).fillna(""))
    return rows.pivot(index=["shape", "head_dim", "fmt"], columns="tensor", values="ratio").to_string(na_rep="")
