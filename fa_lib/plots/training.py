"""The figures of the training study: one function each, from its tidy tables to a matplotlib Figure."""

import textwrap
from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fa_lib.kernels.shipped import torch_cpu
from fa_lib.plots.captions import BANDS, captioned
from fa_lib.plots.style import (
    BASELINE,
    FLASH,
    FORMATS,
    GREEN,
    GREY,
    INK,
    band,
    by_seed,
    decades,
    log_ticks,
    no_minor_ticks,
    styled,
)
from fa_lib.training.arm import PAIRS
from fa_lib.training.distances import MEASURES, at_end, by_measure
from fa_lib.training.growth import geometric

STYLE = {  # of a pair: colour, marker, line
    "flash": (FLASH, "o", "-"),
    "flash_emulated": (FLASH, "s", "--"),
    "flash_small_tiles": (GREEN, "X", "-"),
    "flash_fp32": (FLASH, "^", ":"),
    "reversed_keys": (BASELINE, "<", "-"),
    "shuffled_keys": (BASELINE, ">", "-"),
    "shuffled_again": (BASELINE, "^", "-"),
    "reversed_keys_fp32": (BASELINE, "<", ":"),
    "perturb": (GREY, "v", "-"),
    "perturb_fp32": (GREY, "v", ":"),
    "perturb_fp32_1e-8": (GREY, "^", "--"),
    "perturb_fp16": (FORMATS["FP16"][0], "v", ":"),
    "data_order": (GREY, "D", "--"),
    "init": ("#222222", "P", "-"),
    "fp16": (FORMATS["FP16"][0], "o", "-"),
    "fp16_scaled": (FORMATS["FP16"][0], "s", "--"),
    "bf16": (BASELINE, "D", "-"),
}
RAN = {  # kernel: label, colour, marker, place
    "flash": ("as shipped", FLASH, "o", 0.13),
    "stepwise": ("every step in BF16", BASELINE, "s", -0.13),
    "every_step": ("emulated in BF16", BASELINE, "s", -0.13),
}


LABELS = {name: pair.label for name, pair in PAIRS.items()} | {  # of a pair of runs
    "flash_emulated": "Flash, every step in BF16, vs Baseline",
    "flash_small_tiles": "Flash, every step in BF16, 32 tiles, vs Baseline",
}


def study_kernels(tokens: int, flash: str = "flash", device: str = "cpu", trained: bool = True) -> str:
    """Say which kernels the study's arms are, and how many tiles they have.

    Args:
        tokens: of an image. flash, device: of the arm "flash". trained: whether the arms were trained with them.
    """
    more = " (32 tiles: of 8), gradients by autograd" if trained else ""
    words = f"Every step in BF16: emulated, tiles of 64 keys{more}."
    if (flash, device) != ("flash", "cpu"):
        return f"Flash: {flash} on {device}. {words}"
    keys = torch_cpu("BF16", tokens)["tiling"].block_kv
    tiles = -(-tokens // keys)
    count = "one tile: no sum is rescaled" if tiles == 1 else f"{tiles} tiles"
    return f"Flash: torch's CPU kernel, {keys} keys a tile, so {tokens} tokens are {count}. {words}"


@styled
def inside(table: pd.DataFrame, caption: str) -> Figure:
    """Draw the errors of several kernels at the attention calls of a model in training: over the run, and by layer and
    head.

    Args:
        table: of `training.study.watch`, with seed.
    """
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), width_ratios=(1, 1, 1.15))
    rows, steps = table.assign(error=table.rmse / table.scale), sorted(table.step.unique())
    golden = rows[rows.against == "golden"].groupby(["kind", "layer", "head", "step", "seed", "kernel"]).error.mean()
    over = golden.groupby(["kind", "step", "seed", "kernel"]).mean().unstack()
    names = [name for name in over if name != "ran"]
    own = {name: (name, GREY, "D", 0.0) for name in names if name not in RAN}
    kernels = {name: style for name, style in (RAN | own).items() if name in names}
    for ax, kind in zip(axes, ("self", "cross")):
        for name, (label, color, marker, _) in kernels.items():
            band(ax, (over[name] / over["ran"])[kind].unstack("seed"), color, marker, label)
        ax.set(xscale="symlog", xlabel="training step", title=f"{kind}-attention")
        ax.sharey(axes[2])
        room = [step == steps[-1] or after > 1.6 * step for step, after in zip(steps, [*steps[1:], 0])]
        ax.set_xticks(steps, labels=[str(step) if free else "" for step, free in zip(steps, room)])
        no_minor_ticks(ax.xaxis)
    axes[0].set_ylabel("error to golden / Baseline's\n(root mean squares)")
    axes[0].legend(loc="lower left")
    _by_layer(axes[2], golden.groupby(["kind", "layer", "head", "seed", "kernel"]).mean().unstack(), kernels)
    right = 2 * table.layer.max() + 1.8
    for ax in axes:
        ax.axhline(1, color=INK, lw=0.9)
    axes[2].annotate("as far as Baseline", (right, 1), (0, 3), textcoords="offset points", ha="right", fontsize=7)
    ends, words = over.div(over.ran, axis=0).groupby(["kind", "step"]).mean().unstack("kind"), []
    for name, (label, *_) in kernels.items():
        kinds = (
            f"{kind} {ends[name, kind][steps[0]]:.1f} to {ends[name, kind][steps[-1]]:.1f}"
            for kind in ("self", "cross")
        )
        words.append(f"{label}: {', '.join(kinds)}")
    title = f"Inside a model: Flash's error / Baseline's, from the first step to the last\n{'; '.join(words)}"
    return captioned(figure, title, caption + BANDS + " Right: a point for each head and seed.")


def _by_layer(ax, golden, kernels):
    """Draw a point for each head and seed, by kind of attention and layer; golden: errors, a column for each kernel."""
    layers, rng = golden.index.get_level_values("layer").max() + 1, np.random.default_rng(0)
    for name, (label, color, marker, shift) in kernels.items():
        ratio = (golden[name] / golden["ran"]).reset_index()
        at = ratio.layer + (ratio.kind == "cross") * (layers + 0.6) + shift + rng.uniform(-0.07, 0.07, len(ratio))
        ax.plot(at, ratio[0], marker, color=color, ms=3.5, alpha=0.55, mew=0, label=label)
    ticks = [*range(layers), *(layers + 0.6 + np.arange(layers))]
    labels = [f"{i}\n{kind}" if i == layers // 2 else f"{i}" for kind in ("self", "cross") for i in range(layers)]
    ax.set_xticks(ticks, labels=labels)
    ax.set(xlabel="layer", title="by layer and head, mean over steps")
    ax.set_ylim(0)


SHORT = {  # labels of figures 7, 7b and 8
    "flash": "Flash", "flash_small_tiles": "every step in BF16, 32 tiles", "flash_fp32": "Flash, FP32",
    "reversed_keys_fp32": "keys reversed, FP32", "perturb": "nudge of 1e-7",
    "perturb_fp32_1e-8": "nudge of 1e-8, FP32", "init": "another initialisation",
    "fp16": "FP16, no loss scaling", "fp16_scaled": "FP16, scaled", "bf16": "BF16",
}  # fmt: skip
PARTING = ("flash", "perturb", "flash_fp32", "perturb_fp32_1e-8")  # the curves of figure 7
NUDGED = {  # figure 7, right: pair -> the nudge that begins as near
    "flash": "perturb", "flash_small_tiles": "perturb", "flash_fp32": "perturb_fp32_1e-8",
    "reversed_keys_fp32": "perturb_fp32_1e-8",
}  # fmt: skip


@styled
def divergence(tables: Mapping[str, pd.DataFrame], caption: str) -> Figure:
    """Draw figure 7: Wasserstein distance and max difference of the weights over training, and the first over a
    nudge's.

    Args:
        tables: machine -> the differences of `training.study.study`.
    """
    figure, axes = plt.subplots(len(tables), 3, figsize=(11.4, 3.9 * len(tables)), squeeze=False)
    metrics = {"wasserstein": "Wasserstein distance,\nmean over tensors", "max": "max |difference| of a weight"}
    ends = []
    for row, (machine, table) in zip(axes, tables.items()):
        for ax, (metric, words) in zip(row, metrics.items()):
            for name in PARTING:
                curve(ax, table[(table.pair == name) & (table.step > 0)], metric, name)
            ax.set(yscale="log", xlabel="training iteration", ylabel=words)
        row[0].set_title(machine if len(tables) > 1 else "")
        row[0].legend(loc="center left", bbox_to_anchor=(0.12, 0.58), fontsize=6.5)
        wide = table[table.step > 0].pivot_table(index=["step", "seed"], columns="pair", values="wasserstein")
        for name, nudge in NUDGED.items():
            color, marker, line = STYLE[name]
            if not {name, nudge} <= set(wide):
                continue
            each = (wide[name] / wide[nudge]).dropna().groupby("step")
            mean, low, high = (each.apply(lambda x, end=end: geometric(x)[end]) for end in range(3))
            row[2].fill_between(mean.index, low, high, color=color, alpha=0.15, lw=0)
            row[2].plot(mean.index, mean, color=color, marker=marker, ls=line, ms=3.5, lw=1.3, label=SHORT[name])
            ends += [each.get_group(wide.index[-1][0])] if name == "flash" else []
        row[2].axhline(1, color=INK, lw=0.9)
        row[2].set(yscale="log", xlabel="training iteration", ylabel="Wasserstein distance / the nudge's")
        log_ticks(row[2].yaxis)
        row[2].legend(loc="best", fontsize=6.5)
    message = f"; in BF16 Flash takes them {_times(ends[0])} times as far as a nudge of 1e-7 (right)" if ends else ""
    nudges = " Right: over the nudge of the same precision (1e-7; in FP32 1e-8), geometric mean, its 95 % interval."
    return captioned(figure, f"Figure 7. The runs drift apart{message}", caption + BANDS + nudges)


def _times(ratios):
    """Write the geometric mean of ratios, and its 95 % interval where there is one."""
    mean, low, high = geometric(ratios)
    return f"{mean:.2f} ({low:.2f} to {high:.2f})" if low < high else f"{mean:.2f}"


@styled
def in_context(tables: Mapping[str, pd.DataFrame], caption: str) -> Figure:
    """Draw figure 8, of the last step: each arm's distance over that of a nudge, in the primary measure; and low
    precision over Flash, and Flash over the nudge, in every measure.

    Args:
        tables: machine -> the differences of `training.study.study`.
    """
    size = (11.4, 4.3 * len(tables))
    figure, axes = plt.subplots(len(tables), 2, figsize=size, squeeze=False, width_ratios=(1.15, 1))
    messages = []
    for (left, right), (machine, table) in zip(axes, tables.items()):
        ratio = by_measure(table)
        reach = at_end(table, next(iter(MEASURES))).unstack("pair")
        if "perturb" in reach:
            over = reach.div(reach["perturb"], axis=0)
            names = [name for name in STYLE if name in over and name != "perturb"][::-1]
            for y, name in enumerate(names):
                color, marker, _ = STYLE[name]
                _spread_of(left, y, over[name].dropna(), color, marker, note=True)
            left.set(yticks=range(len(names)), yticklabels=[LABELS[name] for name in names])
            left.set(ylim=(-0.6, len(names) - 0.4))
        left.set(xscale="log", title=machine if len(tables) > 1 else "Wasserstein distance per tensor")
        left.set_xlabel("distance / that of BF16 weights moved by 1e-7 at the start")
        for y, measure in enumerate([*MEASURES][::-1]):
            for shift, name in enumerate(("flash", "bf16", "fp16_scaled", "fp16")):
                (color, marker, _), own = STYLE[name], ratio.loc[measure, name].dropna()
                label = f"{SHORT[name]} / {'nudge' if name == 'flash' else 'Flash'}"
                if len(own):
                    at = y + 0.2 * (shift - 1.5)
                    _spread_of(right, at, own, color, marker, label=label if y == 0 else None)
        right.axvspan(2, 5, color=GREEN, alpha=0.12, lw=0)
        names = [_wrapped(words, 24) for words in [*MEASURES.values()][::-1]]
        right.set(yticks=range(len(names)), yticklabels=names, ylim=(-1.7, len(names) - 0.4), xscale="log")
        right.set(xlabel="ratio of distances (shaded: 2 to 5)", title="by measure of the distance")
        handles = (each[::-1] for each in right.get_legend_handles_labels())
        right.legend(*handles, fontsize=6.5, loc="lower right", ncols=2)
        for ax in (left, right):
            ax.axvline(1, color=INK, lw=0.9)
            ax.grid(axis="x")
            low, high = ax.get_xlim()
            (log_ticks if high < 100 * low else decades)(ax.xaxis)
        messages += [_in_short(ratio)]
    spread = " At the last step. Small points: seeds; large ones: geometric mean, its 95 % interval; in brackets: "
    spread += "least to largest seed."
    return captioned(figure, f"Figure 8. {messages[0]}", caption + spread)


def _in_short(ratio):
    """Say by measure how far Flash and unscaled FP16 take the weights. ratio: of `distances.by_measure`."""
    words = []
    for name, label in (("flash", "Flash / nudge"), ("fp16", "unscaled FP16 / Flash")):
        means = ratio[name].dropna().groupby("measure").apply(lambda x: geometric(x)[0])
        words += [f"{label} {means.min():.2f} to {means.max():.2f}"] if len(means) else []
    return f"Distances at the last step, by measure: {', '.join(words) or 'no pair of runs'}"


def _spread_of(ax, y, ratios, color, marker, note=False, label=None):
    """Draw ratios, one for each seed, and their geometric mean with its 95 % interval; note: write both at the edge."""
    mean, low, high = geometric(ratios)
    ax.plot(ratios, [y] * len(ratios), marker, color=color, ms=3, alpha=0.5, mew=0)
    look = dict(fmt=marker, color=color, ms=5.5, capsize=2, lw=1, label=label)
    ax.errorbar(mean, y, xerr=[[mean - low], [high - mean]], **look)
    if note:
        words = f"{mean:.2g} ({ratios.min():.2g} to {ratios.max():.2g})"
        ax.annotate(words, (1.01, y), xycoords=("axes fraction", "data"), va="center", fontsize=6.5)


def curve(ax: Axes, rows: pd.DataFrame, column: str, pair: str) -> None:
    """Draw a column over training, with the range over seeds, of the rows of a pair, of which there may be none."""
    color, marker, line = STYLE[pair]
    if len(rows):
        band(ax, by_seed(rows, "step", column), color, marker, SHORT[pair], ls=line)


@styled
def key_bias(table: pd.DataFrame, caption: str) -> Figure:
    """Draw figure 8b: the share of the mean Wasserstein distance that the biases of key projections make.

    Args:
        table: the differences of `training.study.study`, with a column biased: whether the model has these biases.
    """
    figure, axes = plt.subplots(1, 2, figsize=(9.2, 3.5))
    for name, color, marker in (("flash", FLASH, "o"), ("bf16", BASELINE, "D")):
        for has_biases, line in ((True, "-"), (False, "--")):
            rows = table[(table.pair == name) & (table.biased == has_biases) & (table.step > 0)]
            label = f"{PAIRS[name].label}, {'with' if has_biases else 'without'} the biases"
            band(axes[0], by_seed(rows, "step", "wasserstein"), color, marker, label, ls=line)
            if has_biases:
                band(axes[1], by_seed(rows, "step", "key_bias") * 100, color, marker, PAIRS[name].label)
    axes[0].set(yscale="log", xlabel="training iteration", ylabel="Wasserstein distance,\nmean over tensors")
    axes[1].set(ylim=(0, 104), xlabel="training iteration", ylabel="% of it in the biases of key projections")
    axes[0].legend(fontsize=7)
    axes[1].legend()
    title = "Figure 8b. Biases of key projections, whose exact gradient is 0, make most of the distance"
    return captioned(figure, title, caption + BANDS)


def _wrapped(words, width):
    """Wrap words into as few lines as a width allows, of lengths as equal as possible."""
    count = len(textwrap.wrap(words, width))
    narrowest = next(narrower for narrower in range(1, width + 1) if len(textwrap.wrap(words, narrower)) == count)
    return textwrap.fill(words, narrowest)
