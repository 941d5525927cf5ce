"""Figure 13: the law for the error, and where it ends."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from fa_lib.plots.captions import POINTS, captioned
from fa_lib.plots.style import BASELINE, FLASH, FORMATS, GREY, INK, INPUTS, by_seed, dots, log_ticks, styled

_ALGORITHMS = {
    "fa1": (FLASH, "o", "FA1: O divided by l at every tile"),
    "fa2": (BASELINE, "s", "FA2: once, at the end"),
}
_BITS = (  # colour and marker by bits, the fewest first
    (FLASH, "o"), (FORMATS["FP16"][0], "s"), (BASELINE, "^"), (INK, "D"),
)  # fmt: skip


@styled
def law(table: pd.DataFrame, caption: str) -> Figure:
    """Draw measured and predicted error against tiles: with enough bits, by inputs; and on uniform inputs, by bits.

    Args:
        table: of `experiments.law.law`.
    """
    distributions, bits = list(dict.fromkeys(table.distribution)), sorted(table.bits.unique())
    columns = len(distributions) + 1
    figure, axes = plt.subplots(1, columns, figsize=(3.9 * columns, 3.7))
    for ax, distribution in zip(axes, distributions):
        rows = table[(table.distribution == distribution) & (table.bits == bits[-1])]
        for algorithm, (color, marker, label) in _ALGORITHMS.items():
            own = rows[rows.algorithm == algorithm]
            if own.empty:
                continue
            errors = by_seed(own, "tiles", "measured")
            dots(ax, errors.index, errors, color, marker, label)
            ax.plot(errors.index, own.groupby("tiles").predicted.mean(), color=color, lw=1.2)
        ax.plot([], [], color=GREY, lw=1.2, label="predicted, nothing fitted")
        ax.set(title=INPUTS[distribution])
    axes[0].set_ylabel("rms error of O / rms of O\n(units of roundoff u)")
    axes[0].legend(loc="upper left")
    first = table[(table.distribution == distributions[0]) & (table.algorithm == table.algorithm.iloc[0])]
    for count, (color, marker) in zip(bits, _BITS):
        own = first[first.bits == count]
        ratio = by_seed(own.assign(times=own.measured / own.predicted), "tiles", "times")
        dots(axes[-1], ratio.index, ratio, color, marker, f"{count} bits")
        with_repeats = own.assign(times=own.with_repeats / own.predicted).groupby("tiles").times.mean()
        axes[-1].plot(with_repeats.index, with_repeats, color=color, lw=1.0, ls="--")
    axes[-1].plot([], [], color=GREY, lw=1.0, ls="--", label="predicted with repeats")
    axes[-1].axhline(1, color=INK, lw=0.9)
    axes[-1].set(title=f"{distributions[0]} inputs, by bits of O and l", ylabel="measured / predicted")
    axes[-1].legend(loc="upper left")
    tiles = sorted(table.tiles.unique())
    for ax in axes:
        ax.set(xscale="log", xlabel="tiles of K, V")
        ax.set_xticks(tiles, labels=[str(t) for t in tiles])
        ax.minorticks_off()
    for ax in axes[:-1]:
        ax.set(yscale="log")
        log_ticks(ax.yaxis)
    title = "The error follows from counting roundings, until roundings of one sum repeat (right)"
    return captioned(figure, title, caption + POINTS)
