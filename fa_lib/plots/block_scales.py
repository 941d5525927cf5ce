"""Our figure 16: what block scales save and lose."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from fa_lib.experiments.block_scales import RECIPES
from fa_lib.plots.captions import POINTS, captioned
from fa_lib.plots.points import Mark, points
from fa_lib.plots.style import BASELINE, FLASH, FORMATS, INK, INPUTS, log_ticks, styled

_LABELS = INPUTS | {"shifted K": "channels of K far from zero"}
_PARTS = {
    "all": Mark("Q, K, V, P", FLASH, "o"),
    "cache": Mark("a KV cache", BASELINE, "s"),
}
_OPERANDS = {"q": "Q alone", "k": "K alone", "v": "V alone", "p": "P alone"}
_MARKS = ((BASELINE, "s"), (FORMATS["FP16"][0], "^"), (FLASH, "o"), (INK, "D"))


@styled
def block_scales(table: pd.DataFrame, caption: str) -> Figure:
    """Draw errors over BF16's by recipe; and by operand, of the recipes that were also applied to single operands.

    Args:
        table: of `experiments.block_scales.block_scales`.
    """
    kinds = list(dict.fromkeys(table.kind))
    recipes = {key: recipe.label for key, recipe in RECIPES.items() if key in set(table.recipe)}
    single_recipes = [key for key in recipes if key in set(table.recipe[table.part.isin(_OPERANDS)])]
    marks = {key: Mark(recipes[key], *mark) for key, mark in zip(single_recipes, _MARKS)}
    size = (3.5 * len(kinds) + 1.6, 7.4)
    figure, axes = plt.subplots(
        2, len(kinds), figsize=size, sharex=True, sharey="row", height_ratios=(len(recipes), 6.5), squeeze=False
    )
    for column, kind in zip(axes.T, kinds):
        rows, first = table[table.kind == kind], kind == kinds[0]
        all_rows, single_rows = (rows[rows.part.isin(names)] for names in (_PARTS, _OPERANDS))
        all_rows = all_rows[all_rows.recipe.isin(recipes)]
        points(column[0], all_rows, "times_rmse", ("recipe", recipes), ("part", _PARTS), "best" if first else "")
        points(column[1], single_rows, "times_rmse", ("part", _OPERANDS), ("recipe", marks), "best" if first else "")
        own = rows[rows.recipe == "bf16"].relative.mean()
        column[0].set(title=f"{_LABELS.get(kind, kind)}\nBF16: {own:.2%} of O", xlabel="")
        column[1].set(xlabel="rms error / BF16's")
        four = [at for at, key in enumerate(recipes) if bits(key) == 4]
        if four:
            column[0].axhspan(min(four) - 0.5, max(four) + 0.5, color="#f4f4f4", zorder=0, lw=0)
    for ax in axes.flat:  # all are drawn: a mean drawn on a logarithmic axis would be geometric
        ax.set(xscale="log")
        log_ticks(ax.xaxis)
        ax.axvline(1, color=INK, lw=0.9)
    axes[0][0].legend(loc="center left", title="quantised")
    axes[1][0].set_title(" ")  # room for the legend, which is wider than its panel
    above = axes[1][0].legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(marks), borderaxespad=0.2)
    above.set_in_layout(False)
    first = table[table.kind == kinds[0]]
    words = ", ".join(spans(first, count) for count in sorted({bits(key) for key in recipes}, reverse=True))
    where = _LABELS.get(kinds[0], kinds[0])
    title = f"On {where}, the rms error is {words}: the format decides; outliers make scales matter"
    return captioned(figure, title, caption + POINTS + " Shaded: 4 bits.")


def bits(recipe: str) -> int:
    """Return the bits of an element of Q, K and V under a recipe, a key of RECIPES."""
    storage = RECIPES[recipe].whole.k
    assert storage is not None  # a recipe quantises K
    element = storage.element
    return element.exponent_bits + element.precision


def spans(table: pd.DataFrame, count: int) -> str:
    """Say the least and the largest mean error over seeds, of the recipes of `count` bits with all of attention
    quantised.

    Args:
        table: of `experiments.block_scales.block_scales`.
        count: bits of an element.
    """
    recipes = [key for key in RECIPES if bits(key) == count]
    rows = table[table.recipe.isin(recipes) & (table.part == "all")]
    means = rows.groupby(["kind", "recipe"]).times_rmse.mean()
    return f"{means.min():.0f} to {means.max():.0f} × BF16's in {count} bits"
