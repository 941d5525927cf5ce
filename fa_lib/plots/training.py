"""The figures of the training study: one function each, from its tidy tables to a matplotlib Figure."""

import textwrap
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

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
from fa_lib.training.distances import at_end
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
    "stepwise": ("O and l in BF16", BASELINE, "s", -0.13),
    "every_step": ("emulated in BF16", BASELINE, "s", -0.13),
}


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
    mean = over.groupby("step").mean()
    times = {label: (mean[name] / mean.ran).loc[[steps[0], steps[-1]]] for name, (label, *_) in kernels.items()}
    words = "; ".join(f"{label} {t.iloc[0]:.1f} ×, at the end {t.iloc[1]:.1f} ×" for label, t in times.items())
    title = f"Inside a model, Flash's error over Baseline's: {words}"
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


@styled
def divergence(tables: Mapping[str, pd.DataFrame], predicted: pd.DataFrame, caption: str) -> Figure:
    """Draw figure 7: Wasserstein distance and max difference of the weights over training.

    Args:
        tables: machine -> the differences of `training.study.study`.
        predicted: of `training.growth.predicted`, of the first table's Wasserstein distance: dashed lines.
    """
    ends = at_end(next(iter(tables.values())), "wasserstein").unstack("pair")
    ratios = (ends["flash"] / ends["perturb"]).dropna()
    message = (
        f"In BF16 Flash takes two runs {_times(ratios)} times as far apart as a nudge of 1e-7" if len(ratios) else ""
    )
    figure, axes = plt.subplots(len(tables), 2, figsize=(11.4, 3.8 * len(tables)), squeeze=False)
    metrics = {"wasserstein": "Wasserstein distance,\nmean over tensors", "max": "max |difference| of a weight"}
    for row, (machine, table) in zip(axes, tables.items()):
        for ax, (metric, words) in zip(row, metrics.items()):
            _curves(ax, table, metric, [name for name in PARTING if name in set(table.pair)])
            ax.set(yscale="log", xlabel="training iteration", ylabel=words)
        row[0].set_title(machine if len(tables) > 1 else "")
    for _, own in predicted.groupby("pair", sort=False):
        mean = by_seed(own, "step", "predicted").mean(axis=1)
        axes[0][0].plot(mean.index, mean, color=INK, lw=1.1, ls=(0, (2, 1.5)), zorder=5)
    if len(predicted):
        axes[0][1].plot([], [], color=INK, lw=1.1, ls=(0, (2, 1.5)), label="left: predicted from the arm's first step")
    axes[0][1].legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=7.5)
    return captioned(figure, f"Figure 7. {message or 'Flash and Baseline runs drift apart'}", caption + BANDS)


def _times(ratios):
    """Write the geometric mean of ratios, and its 95 % interval where there is one."""
    mean, low, high = geometric(ratios)
    return f"{mean:.2f} ({low:.2f} to {high:.2f})" if low < high else f"{mean:.2f}"


LABELLED = ("init", "bf16", "flash", "perturb")  # the curves of figure 8
PARTING = (  # the curves of figure 7
    "flash", "flash_small_tiles", "perturb", "flash_fp32", "reversed_keys_fp32", "perturb_fp32", "perturb_fp32_1e-8"
)  # fmt: skip


@styled
def in_context(tables: Mapping[str, pd.DataFrame], caption: str) -> Figure:
    """Draw figure 8: the distance of the weights over training, and at the last step by arm, over the nudge's.

    Args:
        tables: machine -> the differences of `training.study.study`.
    """
    metric, words = "relative_wasserstein", "relative Wasserstein distance\n(the primary metric)"
    size = (10.4, 3.9 * len(tables))
    figure, axes = plt.subplots(len(tables), 2, figsize=size, squeeze=False, width_ratios=(1, 1.2))
    times = []
    for (left, right), (machine, table) in zip(axes, tables.items()):
        _curves(left, table, metric, [name for name in LABELLED if name in set(table.pair)])
        left.set(yscale="log", xlabel="training iteration", ylabel=words, title=machine if len(tables) > 1 else "")
        left.legend(fontsize=7)
        ends = at_end(table, metric).unstack("pair")
        if "perturb" not in ends:
            continue
        ratio = ends.div(ends["perturb"], axis=0).drop(columns=["perturb", "rerun"], errors="ignore")
        names = [name for name in STYLE if name in ratio][::-1]
        for y, name in enumerate(names):
            (color, marker, _), ratios = STYLE[name], ratio[name].dropna()
            right.plot(ratios, [y] * len(ratios), marker, color=color, ms=3.5, alpha=0.5, mew=0)
            mean, low, high = geometric(ratios)
            right.errorbar(
                mean, y, xerr=[[mean - low], [high - mean]], fmt=marker, color=color, ms=6.5, capsize=2, lw=1
            )
        right.axvline(1, color=INK, lw=0.9)
        right.set(yticks=range(len(names)), yticklabels=[PAIRS[name].label for name in names])
        right.set(ylim=(-0.6, len(names) - 0.4), xscale="log", title="at the last step")
        right.set_xlabel("distance / that of a nudge of 1e-7 to the initial weights")
        right.grid(axis="x")
        low, high = right.get_xlim()
        (log_ticks if high < 100 * low else decades)(right.xaxis)
        times += [_times(ratio["flash"].dropna())] if "flash" in ratio else []
    message = f"{times[0]} times as far as a nudge of 1e-7 does" if times else "next to other differences"
    spread = " Left: mean and range over seeds. Right: small points: seeds; large ones: their geometric mean, its 95 % "
    spread += "interval."
    return captioned(figure, f"Figure 8. Flash moves the weights {message}", caption + spread)


def _curves(ax, table, metric, pairs):
    """Draw a metric over training, with the range over seeds, for each pair."""
    for name in pairs:
        values = by_seed(table[(table.pair == name) & (table.step > 0)], "step", metric)
        color, marker, line = STYLE[name]
        band(ax, values, color, marker, PAIRS[name].label, ls=line)


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
    title = "Figure 8b. A warning: attention biases whose gradient is zero drown what is measured"
    return captioned(figure, title, caption + BANDS)


@styled
def drawings(images: Mapping[str, torch.Tensor], captions: Sequence[str], caption: str) -> Figure:
    """Draw figure 8c: the images that trained models draw from the same captions and noise.

    Args:
        images: label -> uint8 (captions, 3, size, size).
        captions: of the images.
        caption: of the figure.
    """
    figure, axes = plt.subplots(
        len(images), len(captions), figsize=(1.45 * len(captions) + 1.6, 1.38 * len(images) + 0.9), squeeze=False
    )
    for row, (label, pictures) in zip(axes, images.items()):
        for ax, image in zip(row, pictures):
            ax.imshow(image.permute(1, 2, 0).numpy())
            ax.set(xticks=[], yticks=[])
            ax.grid(False)
            ax.spines[:].set_visible(False)
        row[0].set_ylabel(label, rotation=0, ha="right", va="center")
    for ax, words in zip(axes[0], captions):
        ax.set_title(_wrapped(words, 22), fontsize=7, loc="center", fontweight="normal")
    return captioned(figure, "Figure 8c. The same caption and noise, drawn by models trained otherwise", caption)


def _wrapped(words, width):
    """Wrap words into as few lines as a width allows, of lengths as equal as possible."""
    count = len(textwrap.wrap(words, width))
    narrowest = next(narrower for narrower in range(1, width + 1) if len(textwrap.wrap(words, narrower)) == count)
    return textwrap.fill(words, narrowest)
