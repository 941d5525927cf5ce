"""The README's picture: the paper's figures 3 to 8 in six small panels, each with its verdict from the ledger."""

from collections.abc import Callable, Mapping

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fa_lib.experiments.microbenchmark import pivot
from fa_lib.numerics.metrics import over_baseline
from fa_lib.plots.captions import BANDS, captioned
from fa_lib.plots.style import BASELINE, FLASH, GREEN, GREY, INK, ORANGE, band, by_seed, plain_ticks, styled

INPUTS = {"uniform": (FLASH, "o"), "normal": (BASELINE, "s")}
ARMS = {  # of figure 8: pair -> label, colour
    "perturb": ("weights moved\nby 1e-7", GREY), "bf16": ("BF16", ORANGE), "fp16_scaled": ("FP16, scaled", ORANGE),
    "fp16": ("FP16,\nnot scaled", ORANGE), "init": ("another\ninitialisation", INK),
}  # fmt: skip
LESS = "small, 300 steps, {} vs FP32"  # settings of the ledger: of figure 8's statement, in the measure chosen first
SETTINGS: dict[str, dict[str, str]] = {"fig8-low-precision": {
    f"{LESS.format('FP16')}, no loss scaling": "unscaled FP16", f"{LESS.format('FP16')}, scaled": "scaled FP16",
    LESS.format("BF16"): "BF16",
}}  # fmt: skip


def _by_format(ax: Axes, table: pd.DataFrame) -> None:
    formats = list(dict.fromkeys(table.fmt))
    for distribution, (color, marker) in INPUTS.items():
        largest = pivot(table, "max", "fmt", kernel="flash", against="baseline").loc[distribution][formats].T
        ax.plot(formats, largest.mean(axis=1), marker, color=color, ls="-", lw=1)
    ax.set(yscale="log", ylabel="difference from Baseline", xlabel="number format")


def _by_tiles(ax: Axes, table: pd.DataFrame) -> None:
    error = {kernel: pivot(table, "max", "tiles", kernel=kernel, against="golden") for kernel in ("flash", "baseline")}
    for distribution, (color, marker) in INPUTS.items():
        band(ax, over_baseline(error["flash"], error["baseline"]).loc[distribution].T, color, marker, distribution)
    ax.axhline(10, color=GREEN, lw=0.8, ls="--")
    ax.annotate("published", (2, 10), (0, 2), textcoords="offset points", fontsize=7, color=GREEN)
    ax.set(xscale="log", yscale="log", xlabel="number of tiles", ylabel="Flash's error / Baseline's")
    ax.set(xticks=sorted(table.tiles.unique()), yticks=[1, 3, 10, 30])
    plain_ticks(ax.xaxis)
    plain_ticks(ax.yaxis)


def _differences(column: str, label: str, xticks: list, yticks: list, **where) -> Callable:
    """Make a drawing of the largest difference between Flash and Baseline in BF16 against a column of a table."""
    where |= dict(kernel="flash", against="baseline", fmt="BF16")

    def draw(ax: Axes, table: pd.DataFrame) -> None:
        for distribution, (color, marker) in INPUTS.items():
            band(ax, pivot(table, "max", column, **where).loc[distribution].T, color, marker, distribution)
        ax.set(xscale="log", yscale="log", xlabel=label, ylabel="difference from Baseline")
        ax.set(xticks=xticks, yticks=yticks)
        plain_ticks(ax.xaxis)
        plain_ticks(ax.yaxis)

    return draw


_by_length = _differences("n", "sequence length N", [128, 1024, 8192], [0.003, 0.01, 0.03])
_by_tile_size = _differences("block_kv", "keys of a tile, B_c", [16, 128, 1024], [0.001, 0.01], variant="as_given")


def _over_training(ax: Axes, table: pd.DataFrame) -> None:
    drawn = {"flash": (FLASH, "o", "Flash, not Baseline"), "perturb": (GREY, "v", "weights moved by 1e-7")}
    for pair, look in drawn.items():
        rows = table[(table.pair == pair) & (table.step > 0)]
        band(ax, by_seed(rows, "step", "relative_wasserstein"), *look)
    ax.set(xscale="log", yscale="log", xlabel="training step", ylabel="distance of the weights")
    ax.set_xticks([1, 10, 100])
    plain_ticks(ax.xaxis)
    ax.legend(fontsize=7, loc="upper left", frameon=False)


def _at_the_end(ax: Axes, table: pd.DataFrame) -> None:
    distance = table[table.step == table.step.max()].pivot(index="seed", columns="pair", values="relative_wasserstein")
    ax.axvspan(2, 5, color=GREEN, alpha=0.15, lw=0)
    ax.annotate("published\nfor low precision", (3.16, -0.45), ha="center", va="bottom", fontsize=6.5, color=GREEN)
    for y, (pair, (_, color)) in enumerate(ARMS.items()):
        ratio = (distance[pair] / distance["flash"]).dropna()
        ax.plot(ratio, [y] * len(ratio), "o", color=color, ms=3, alpha=0.35, mew=0)
        ax.plot(ratio.mean(), y, "o", color=color, ms=6)
    ax.axvline(1, color=GREY, lw=0.8, ls="--")
    ax.set(xscale="log", xlabel="distance / Flash's", ylim=(len(ARMS) - 0.5, -1.2), xticks=[1, 2, 5])
    ax.set_yticks(range(len(ARMS)), [label for label, _ in ARMS.values()], fontsize=7)
    plain_ticks(ax.xaxis)


PANELS: dict[str, tuple[str, str, Callable]] = {  # title -> its table in data/results, its statement, its drawing
    "Figure 3: smaller with more bits": ("02_precision", "fig3-mantissa", _by_format),
    "Figure 4: ten times Baseline's error?": ("03_golden_value.tiles", "fig4-ten-times", _by_tiles),
    "Figure 5: it grows with N": ("04_sequence_length", "fig5a-max-grows", _by_length),
    "Figure 6c: smaller with larger tiles": ("05_algorithm_changes", "fig6c-larger-smaller", _by_tile_size),
    "Figure 7: weights drift apart": ("08_weights_in_context", "fig7-wasserstein-grows", _over_training),
    "Figure 8: less than low precision?": ("08_weights_in_context", "fig8-low-precision", _at_the_end),
}  # fmt: skip


@styled
def overview(tables: Mapping[str, pd.DataFrame], ledger: pd.DataFrame) -> Figure:
    """Draw the paper's figures 3 to 8, one small panel each.

    Args:
        tables: of data/results, by the names in PANELS.
        ledger: of `execution.ledger.ledger`; each panel says the verdicts on its statement.
    """
    figure, axes = plt.subplots(2, 3, figsize=(10.5, 5.6))
    for ax, (title, (name, statement, draw)) in zip(axes.flat, PANELS.items()):
        draw(ax, tables[name])
        ax.minorticks_off()
        ax.set_title(title, fontsize=9, loc="left", pad=15)
        words, color = verdicts(ledger, statement)
        above = dict(xycoords="axes fraction", textcoords="offset points")
        ax.annotate(words, (0, 1), (0, 4), fontsize=7, color=color, **above)
    handles = [Line2D([], [], color=color, marker=marker) for color, marker in INPUTS.values()]
    labels = ["Q, K, V uniform on [0, 1)", "Q, K, V normal"]
    figure.legend(handles, labels, loc="upper right", ncols=2, fontsize=8, frameon=False)
    caption = "Flash in figures 3 to 6: every step in the format, as we read the paper; figures 4 to 6 are of BF16."
    caption += f" Figures 7 and 8: a small text-to-image model, {tables['08_weights_in_context'].step.max()} steps."
    return captioned(figure, "Is Flash Attention Stable? The paper's figures, remade", caption + BANDS)


def verdicts(ledger: pd.DataFrame, statement: str) -> tuple[str, str]:
    """Say the ledger's verdicts on a statement, and choose their colour.

    Args:
        ledger: of `execution.ledger.ledger`. statement: an id of data/published.csv.

    Returns:
        words: one verdict where all settings agree; else that of each kind of inputs or of each setting.
    """
    rows = ledger[ledger.id == statement]
    verdict_of: dict[str, str] = dict(zip(rows.setting.tolist(), rows.verdict.tolist()))
    short = SETTINGS.get(statement) or {setting: setting.partition(" inputs")[0] for setting in verdict_of}
    shown = {short[setting]: verdict for setting, verdict in verdict_of.items() if setting in short}
    words = dict.fromkeys(shown.values())
    if len(words) == 1:
        return (word := next(iter(words))), GREEN if word == "reproduced" else FLASH
    named = {word: ", ".join(name for name in shown if shown[name] == word) for word in words}
    return "; ".join(f"{names}: {word}" for word, names in named.items()), ORANGE
