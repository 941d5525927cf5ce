"""Our figure 16: what block scales save and lose."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from fa_lib.experiments.block_scales import RECIPES
from fa_lib.plots.captions import POINTS, captioned
from fa_lib.plots.points import Mark, points
from fa_lib.plots.style import BASELINE, FLASH, FORMATS, INK, INPUTS, decades, styled

_LABELS = INPUTS | {"shifted K": "channels of K far from zero"}
_PARTS = {"all": Mark("Q, K, V, P", FLASH, "o"), "cache": Mark("K and V", BASELINE, "s")}
_OPERANDS = {"q": "only Q", "k": "only K", "v": "only V", "p": "only P"}
_MARKS = ((BASELINE, "s"), (FORMATS["FP16"][0], "^"), (FLASH, "o"), (INK, "D"))


@styled
def block_scales(table: pd.DataFrame, caption: str) -> Figure:
    """Draw errors over BF16's by recipe, with all of attention quantised, and with K and V alone.

    Args:
        table: of `experiments.block_scales.block_scales`.
    """
    recipes = {key: recipe.label for key, recipe in RECIPES.items() if key in set(table.recipe)}
    rows = table[table.part.isin(_PARTS) & table.recipe.isin(recipes)]
    figure, axes = _by_kind(table, rows, ("recipe", recipes), ("part", _PARTS), 0.33 * len(recipes) + 1.3)
    axes[0].legend(loc="center left", title="quantised")
    four = [at for at, key in enumerate(recipes) if bits(key) == 4]
    for ax in axes if four else ():
        ax.axhspan(min(four) - 0.5, max(four) + 0.5, color="#f4f4f4", zorder=0, lw=0)
    first = table[table.kind == table.kind.iloc[0]]
    words = ", ".join(spans(first, count) for count in sorted({bits(key) for key in recipes}, reverse=True))
    where = _LABELS.get(first.kind.iloc[0], first.kind.iloc[0])
    title = f"On {where}, the rms error is {words}:\nthe format decides; outliers make scales matter"
    return captioned(figure, title, caption + POINTS + " Shaded: 4 bits.")


@styled
def operands(table: pd.DataFrame, caption: str) -> Figure:
    """Draw errors over BF16's by operand, of the recipes that were also applied to single operands.

    Args:
        table: as of `block_scales`.
    """
    rows = table[table.part.isin(_OPERANDS)]
    recipes = [key for key in RECIPES if key in set(rows.recipe)]
    marks = {key: Mark(RECIPES[key].label, *mark) for key, mark in zip(recipes, _MARKS)}
    figure, axes = _by_kind(table, rows, ("part", _OPERANDS), ("recipe", marks), 3.6)
    axes[0].legend(loc="center left", fontsize=7)
    means = rows[rows.recipe == recipes[0]].groupby(["part", "kind"]).times_rmse.mean()
    words = ", ".join(f"{part.upper()} {means[part].min():.0f} to {means[part].max():.0f} ×" for part in _OPERANDS)
    title = f"Only one operand in {marks[recipes[0]].label}: {words} BF16's rms error, by the inputs"
    return captioned(figure, title, caption + POINTS)


def _by_kind(table, rows, category, hue, height):
    """Draw a panel of points for each kind of inputs; category and hue as of `points`."""
    kinds = list(dict.fromkeys(table.kind))
    size = (2.6 * len(kinds) + 1.4, height)
    figure, axes = plt.subplots(1, len(kinds), figsize=size, sharex=True, sharey=True, squeeze=False)
    for ax, kind in zip(axes[0], kinds):
        own = table[(table.kind == kind) & (table.recipe == "bf16")].relative.mean()
        points(ax, rows[rows.kind == kind], "times_rmse", category, hue, "best" if kind == kinds[0] else "")
        ax.set(title=f"{_LABELS.get(kind, kind)}\nBF16: {own:.2%} of O", xlabel="rms error / BF16's")
    for ax in axes[0]:  # all are drawn: a mean drawn on a logarithmic axis would be geometric
        ax.set(xscale="log")
        decades(ax.xaxis)
        ax.axvline(1, color=INK, lw=0.9)
    return figure, axes[0]


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
