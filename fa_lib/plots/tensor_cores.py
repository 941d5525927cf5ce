"""Our figure 15: how the accumulators of tensor cores change O, over the length of the context."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fa_lib.experiments.tensor_cores import EXACT_SUMS, LEVELS, adders
from fa_lib.numerics.formats import Format
from fa_lib.plots.captions import BANDS, captioned
from fa_lib.plots.style import BASELINE, FLASH, FORMATS, GREY, INK, INPUTS, band, by_seed, styled

STORED = 0.425  # u: the relative error of one rounding, root mean square (docs/law/theory.md)


_16_BIT = (  # unit, level of sums, colour, marker, line
    ("V100", "one_level", GREY, "D", "-"),
    ("A100", "one_level", BASELINE, "s", "-"),
    ("H100", "one_level", FLASH, "o", "-"),
    (EXACT_SUMS, "one_level", INK, ".", "--"),
)
_FP8 = (
    ("H100", "one_level", FLASH, "o", "-"),
    ("L40S", "one_level", FORMATS["FP16"][0], "v", ":"),
    ("H100", "tile", FLASH, "s", "--"),
    ("B200", "one_level", BASELINE, "^", "-"),
    (EXACT_SUMS, "one_level", INK, ".", "--"),
)
_NAMED = ("H100", "L40S")  # units whose labels name the level of sums in FP8


@styled
def contexts(table: pd.DataFrame, caption: str) -> Figure:
    """Draw the relative error of O before it is stored (above) and its bias (below), against keys: FP16 and E4M3 on
    uniform inputs, E4M3 on normal ones.

    Args:
        table: of `experiments.tensor_cores.sums`, with fmt, distribution, n and seed.
    """
    figure, axes = plt.subplots(2, 3, figsize=(11.8, 6.6), sharex=True)
    for above, below in axes.T[2:]:
        above.sharey(axes[0, 1])
        below.sharey(axes[1, 1])
    columns = (("FP16", "uniform", _16_BIT), ("E4M3", "uniform", _FP8), ("E4M3", "normal", _FP8))
    for (above, below), (fmt, distribution, curves) in zip(axes.T, columns):
        rows = table[(table.fmt == fmt) & (table.distribution == distribution)]
        for unit, level, color, marker, line in curves:
            own = rows[(rows.unit == unit) & (rows.level == level)]
            style = dict(color=color, marker=marker, ls=line)
            band(above, by_seed(own, "n", "relative"), label=_label(fmt, unit, level), **style)
            band(below, by_seed(own.assign(bias=100 * own.bias), "n", "bias"), label=None, **style)
        above.set(xscale="log", yscale="log", title=f"{fmt}, {INPUTS[distribution]}")
        below.set(xlabel="keys")
        below.axhline(0, color=INK, lw=0.6)
        above.set_xticks(sorted(table.n.unique()), labels=[_keys(n) for n in sorted(table.n.unique())])
        above.minorticks_off()
    for stored_in in ("FP16", "BF16"):
        _storing_line(axes[0, 0], stored_in)
    axes[0, 0].legend(loc="center right", bbox_to_anchor=(1, 0.3), fontsize=7)
    axes[0, 2].legend(loc="lower right", bbox_to_anchor=(1, 0.1), fontsize=7)
    axes[0, 0].set_ylabel("rms error of O / rms of O")
    axes[1, 0].set_ylabel("bias of O (% of |O|; below 0: towards zero)")
    title = "Where V has one sign, FP8 sums of an H100 or L40S make O too small in long contexts; two-level sums do not"
    return captioned(figure, title, caption + BANDS)


def _label(fmt: str, unit: str, level: str) -> str:
    if unit == EXACT_SUMS:
        return "exact sums"
    units = ", ".join(adders(fmt)[unit])
    return f"{units}; {LEVELS[level].label}" if fmt == "E4M3" and unit in _NAMED else units


def _storing_line(ax: Axes, fmt: str) -> None:
    error = STORED * Format.of(fmt).unit_roundoff
    ax.axhline(error, color=GREY, lw=0.8, ls=":")
    ax.annotate(f"storing O in {fmt}", (0.02, error), (0, 2), ("axes fraction", "data"), "offset points", fontsize=7)


def _keys(n: int) -> str:
    return f"{n // 1024}k" if n >= 1024 else f"{n}"
