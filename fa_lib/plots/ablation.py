"""Figure 9: why ten times."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from fa_lib.experiments.ablation import STEPS
from fa_lib.experiments.newer_kernels import FP8
from fa_lib.plots.captions import BANDS, POINTS, captioned
from fa_lib.plots.style import BASELINE, FLASH, INPUTS, band, by_seed

GREY = "#777777"


STEP_WORDS = {
    "nothing": "nothing changed",
    "inputs": "Q, K, V",
    "scores": "scores S",
    "exponent": "S − m and exp",
    "probs": "P",
    "stats": "row max m, row sum l",
    "accumulator": "accumulator O",
    "output": "output",
}


def _log(axis):
    """A logarithmic axis that says 1, 2, 5, 10."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def ladder(table, caption):
    """One step of a kernel changed at a time: how many times further than Baseline it then is."""
    distributions = list(dict.fromkeys(table.distribution))
    figure, axes = plt.subplots(
        1, len(distributions), figsize=(5.0 * len(distributions), 4.0), sharey=True, squeeze=False
    )
    starts = (("shipped", FLASH, 0.17), ("all BF16", BASELINE, -0.17))
    words = {"shipped": "as shipped, this step lowered to BF16", "all BF16": "all in BF16, this step raised to FP32"}
    for ax, distribution in zip(axes[0], distributions):
        for start, color, shift in starts:
            for algorithm, marker, fill in (("fa1", "o", color), ("fa2", "s", "white")):
                rows = table[
                    (table.distribution == distribution) & (table.start == start) & (table.algorithm == algorithm)
                ]
                values = by_seed(rows, "step", "times_max").loc[list(STEPS)]
                y = np.arange(len(STEPS))[::-1] + shift
                for seed in values:
                    ax.plot(values[seed], y, marker, color=color, ms=2.6, alpha=0.3, mew=0)
                ax.plot(
                    values.mean(axis=1), y, marker, color=color, mfc=fill, ms=5.5, label=f"{words[start]}; {algorithm}"
                )
        ax.axvline(1, color="#333333", lw=0.9)
        ax.set(xscale="log", xlabel="max error to golden / Baseline's", title=INPUTS[distribution])
        _log(ax.xaxis)
        ax.grid(axis="x", which="both")
        ax.set_yticks(range(len(STEPS)), labels=[STEP_WORDS[step] for step in STEPS][::-1])
        for y in (1, 2):
            ax.axhspan(y - 0.42, y + 0.42, color="#f2e3d8", zorder=0, lw=0)
    axes[0][0].legend(loc="upper center", fontsize=6.5)
    title = "The ten times is what a kernel carries from tile to tile: O, m and l in BF16"
    return captioned(figure, title, caption + POINTS)


def rescaling(table, caption):
    """The deviation against the number of tiles, for rows that rescale at every tile, as drawn, or never."""
    distributions = list(dict.fromkeys(table.distribution))
    figure, axes = plt.subplots(1, 1 + len(distributions), figsize=(3.7 * (1 + len(distributions)), 3.6))
    orders = (("every tile", FLASH, "^"), ("as drawn", GREY, "o"), ("never", BASELINE, "v"))
    for ax, distribution in zip(axes, distributions):
        for order, color, marker in orders:
            rows = table[(table.distribution == distribution) & (table.order == order)]
            band(ax, by_seed(rows, "tiles", "rmse") * 1e3, color, marker, f"rescaled: {order}")
        ax.set(xscale="log", yscale="log", xlabel="tiles of K, V", title=INPUTS[distribution])
        ax.set_xticks(sorted(table.tiles.unique()), labels=[str(t) for t in sorted(table.tiles.unique())])
        ax.minorticks_off()
        _log(ax.yaxis)
    axes[0].set_ylabel("root mean square of the error (1/1000)")
    axes[0].legend(loc="upper left", fontsize=7)
    most = table[table.tiles == table.tiles.max()]
    for distribution, marker in zip(distributions, "so"):
        rows = most[most.distribution == distribution]
        drawn = rows[rows.order == "as drawn"].rmse.mean()
        for order, color, _ in orders:
            of = rows[rows.order == order]
            label = distribution if order == "as drawn" else None
            axes[-1].plot(of.rescales, of.rmse / drawn, marker, color=color, ms=5, alpha=0.7, mew=0, label=label)
    axes[-1].axhline(1, color="#333333", lw=0.9)
    axes[-1].set(ylim=(0, 2), xlabel="rescales that raised a row's maximum", ylabel="error / as drawn")
    axes[-1].set_title(f"at {most.tiles.iloc[0]} tiles")
    axes[-1].legend(loc="lower right")
    return captioned(figure, "Not the rescale: rows that never rescale are as far off", caption + BANDS)


MARKED = {  # (bits, words): who carries how much
    24: "FA1, FA2, FA3, torch: FP32",
    14: "Hopper's FP8 products: about 14 bits",
    11: "FP16's and TF32's significand",
    8: "BF16; the paper's has its scores in it too",
}


def bits_and_tiles(table, caption):
    """Flash / Baseline over the bits of what is carried, and the number of tiles, for each kind of inputs."""
    distributions = list(dict.fromkeys(table.distribution))
    figure, axes = plt.subplots(1, len(distributions), figsize=(3.9 * len(distributions) + 1.2, 3.9), sharey=True)
    for ax, distribution in zip(axes, distributions):
        grid = table[table.distribution == distribution].pivot_table(index="bits", columns="tiles", values="times_max")
        logs = np.log2(grid.to_numpy())
        mesh = ax.imshow(logs, cmap="RdBu_r", vmin=-4, vmax=4, origin="lower", aspect="auto")
        for i, j in np.ndindex(logs.shape):
            value = grid.iat[i, j]
            ax.text(j, i, f"{value:.2g}" if value < 10 else f"{value:.0f}", ha="center", va="center", fontsize=7,
                    color="white" if abs(logs[i, j]) > 2.6 else "black")  # fmt: skip
        ax.set_xticks(range(len(grid.columns)), labels=grid.columns)
        ax.set_yticks(range(len(grid.index)), labels=grid.index)
        ax.set(xlabel="tiles of 64 keys", title=INPUTS[distribution])
        ax.grid(False)
    axes[0].set_ylabel("significant bits of O, m and l")
    for bits, words in MARKED.items():
        if bits in grid.index:
            axes[-1].annotate(words, (len(grid.columns) - 0.4, list(grid.index).index(bits)), (8, 0),
                              textcoords="offset points", va="center", fontsize=7, annotation_clip=False)  # fmt: skip
    figure.colorbar(mesh, ax=axes[0], location="left", label="max error, Flash / Baseline", pad=0.22,
                    format=FuncFormatter(lambda x, _: f"{2.0**x:g}"))  # fmt: skip
    seeds = table.groupby(["distribution", "bits", "tiles"]).times_max
    spread = ((seeds.max() - seeds.min()) / seeds.mean()).median()
    title = "What decides: how many bits are carried, over how many tiles, of which inputs"
    return captioned(figure, title, f"{caption} Range over seeds: {spread:.0%} of the mean (median over the map).")


def verdicts(table, caption):
    """One kernel and Baseline, held against what people compare with, by three measures."""
    distributions = list(dict.fromkeys(table.distribution))
    figure, axes = plt.subplots(
        len(distributions), 3, figsize=(10.5, 2.1 * len(distributions) + 1), sharey=True, squeeze=False
    )
    against = list(dict.fromkeys(table.against))
    for row, distribution in zip(axes, distributions):
        for ax, (metric, words) in zip(
            row, {"max": "max |difference|", "rmse": "root mean square", "bias": "|bias|"}.items()
        ):
            for kernel, color, marker, shift in (
                ("Flash, FP16", FLASH, "o", 0.13),
                ("Baseline, FP16", BASELINE, "s", -0.13),
            ):
                rows = table[(table.distribution == distribution) & (table.kernel == kernel)]
                values = by_seed(rows, "against", metric).loc[against].abs() * 1e6
                values = values.where(values > 0)  # Baseline against itself
                y = np.arange(len(against))[::-1] + shift
                for seed in values:
                    ax.plot(values[seed], y, marker, color=color, ms=2.6, alpha=0.35, mew=0)
                ax.plot(values.mean(axis=1), y, marker, color=color, ms=5.5, label=kernel)
            ax.set(xscale="log", yticks=range(len(against)), yticklabels=against[::-1], ylim=(-0.5, len(against) - 0.5))
            ax.grid(axis="x")
            ax.xaxis.set_major_locator(LogLocator(subs=(1,) if metric == "bias" else (1, 2, 5), numticks=6))
            ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.3g}"))
            ax.xaxis.set_minor_formatter(NullFormatter())
            ax.set_xlabel(f"{words} (1e-6)")
        row[0].set_title(INPUTS[distribution])
    axes[0][1].legend(loc="upper right", fontsize=7)
    title = "One kernel, opposite verdicts: it turns on what it is compared with"
    return captioned(figure, title, caption + POINTS)


def options(table, caption):
    """What newer kernels' options cost or buy, where O, m and l are carried in FP32 and in BF16."""
    distributions = list(dict.fromkeys(table.distribution))
    figure, axes = plt.subplots(1, 2 * len(distributions), figsize=(4.1 * len(distributions) + 3.4, 4.4), sharey=True)
    names = list(dict.fromkeys(table.name))
    for pair, distribution in zip(axes.reshape(-1, 2), distributions):
        for carry, color, marker, shift in (("FP32", FLASH, "o", 0.14), ("BF16", BASELINE, "s", -0.14)):
            rows = table[(table.distribution == distribution) & (table.carry == carry)]
            y = np.arange(len(names))[::-1] + shift
            for ax, metric in zip(pair, ("times_rmse", "bias")):
                values = by_seed(rows, "name", metric).loc[names]
                for seed in values:
                    ax.plot(values[seed], y, marker, color=color, ms=2.6, alpha=0.3, mew=0)
                ax.plot(values.mean(axis=1), y, marker, color=color, ms=5, label=f"O, m, l in {carry}")
        pair[0].set(xscale="log", xlabel="rms error / Baseline's in BF16", title=INPUTS[distribution])
        _log(pair[0].xaxis)
        pair[1].set(xlabel="bias (ulp of BF16 at 1)")
        pair[1].axvline(0, color="#333333", lw=0.9)
        for ax in pair:
            ax.grid(axis="x")
            ax.axhspan(-0.5, len(FP8) - 0.5, color="#f4f4f4", zorder=0, lw=0)
    axes[0].set_yticks(range(len(names)), labels=names[::-1])
    figure.legend(*axes[0].get_legend_handles_labels(), loc="upper right", ncols=2)
    title = "What newer kernels change costs nothing but in FP8; splits help what carries BF16"
    return captioned(figure, title, caption + POINTS + " Shaded: Q, K, V and P in E4M3.")
