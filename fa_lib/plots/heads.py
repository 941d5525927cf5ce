"""The paper's kernel inside the heads of trained models."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fa_lib.plots.captions import captioned, span
from fa_lib.plots.style import BASELINE, FLASH, GREEN, GREY, INK, plain_ticks, styled

_MODELS = {  # colour, marker, words
    "AntiBERTy": (FLASH, "o", "AntiBERTy, reads antibodies"),
    "rxnfp": (BASELINE, "s", "rxnfp, reads chemical reactions"),
    "uniform": (GREY, "^", "uniform inputs on [0, 1)"),
    "normal": (GREEN, "D", "normal inputs, N(0, 1)"),
}
_TRAINED = ("AntiBERTy", "rxnfp")


@styled
def heads(table: pd.DataFrame, caption: str) -> Figure:
    """Draw the share of heads whose error is at most so many times Baseline's; and the error against tiles.

    Args:
        table: of `heads_of` (benchmarks/pretrained.py), with name, text and tiles.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 4.0), sharey=False)
    most, tiles = table.tiles.max(), sorted(table.tiles.unique())
    by_head = table[table.tiles == most].groupby(["name", "layer", "head"]).times_rms.mean()
    spread = table.groupby(["name", "tiles"]).times_rms.quantile([0.1, 0.5, 0.9]).unstack()
    for place, name in enumerate(name for name in _MODELS if name in {*table.name}):
        color, marker, words = _MODELS[name]
        own = by_head.loc[name].sort_values()
        if name in _TRAINED:
            share = 100 * (np.arange(len(own)) + 1) / len(own)
            left.step(own, share, color=color, where="post", lw=1.4, label=words)
        else:  # no heads, but draws
            left.axvspan(own.min(), own.max(), color=color, alpha=0.2, lw=0)
            left.axvline(own.mean(), color=color, lw=1.4, label=words)
        low, middle, high = (spread.loc[name][q] for q in (0.1, 0.5, 0.9))
        at = middle.index * 1.06 ** (place - 1.5)
        right.errorbar(at, middle, [middle - low, high - middle], color=color, marker=marker, ms=5, lw=1.2, capsize=2)
    n = table.n[table.name.isin(_TRAINED)]
    keys = span(set(-(-n // most)))  # of a tile, where the keys are cut into the most tiles
    error = "error to golden / Baseline's (root mean squares)"
    left.set(xscale="log", xlabel=error, ylabel="share of heads with at most that (%)")
    left.set_title(f"by head, tiles of {keys} keys")
    left.legend(loc="upper left")
    right.set(xscale="log", yscale="log", xlabel="tiles that the keys are cut into", ylabel=error.replace(" (", "\n("))
    right.set_title("all heads: median, 10 to 90 %")
    right.set_xticks(tiles, labels=[str(t) for t in tiles])
    right.set(yticks=[1, 2, 3, 5])
    left.set(xticks=[1, 2, 3, 5])
    for axis in (left.xaxis, right.yaxis):
        plain_ticks(axis)
    left.minorticks_off()
    right.minorticks_off()
    left.axvline(1, color=INK, lw=0.9)
    right.axhline(1, color=INK, lw=0.9)
    medians = spread[0.5].unstack()[most]
    ours = " and ".join(f"{medians[name]:.1f}" for name in sorted({*table.name} & {*_TRAINED}))
    words = f"{ours} times Baseline's error, on uniform inputs {medians['uniform']:.1f}"
    title = f"In two small trained BERTs, tiles of {keys} keys, the paper's kernel has\n{words}"
    return captioned(figure, title, caption)
