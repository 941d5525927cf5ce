"""Our figure 15: how the accumulators of tensor cores change O, over the length of the context."""

from dataclasses import dataclass

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fa_lib.experiments.tensor_cores import EXACT_SUMS, LEVELS, adders
from fa_lib.numerics.formats import Format
from fa_lib.plots.captions import BANDS, captioned
from fa_lib.plots.style import BASELINE, FLASH, FORMATS, GREY, INK, INPUTS, band, by_seed, styled

STORED = 0.425  # u: the relative error of one rounding, root mean square (docs/law/theory.md)


@dataclass(frozen=True)
class _Curve:
    """How an accumulator is drawn, at one level of sums; named: whether its label names the level."""

    unit: str
    color: str
    marker: str
    level: str = "one_level"
    line: str = "-"
    named: bool = False


_16_BIT = (
    _Curve("V100", GREY, "D"),
    _Curve("A100", BASELINE, "s"),
    _Curve("H100", FLASH, "o"),
    _Curve(EXACT_SUMS, INK, ".", line="--"),
)
_FP8 = (
    _Curve("H100", FLASH, "o", named=True),
    _Curve("L40S", FORMATS["FP16"][0], "v", line=":", named=True),
    _Curve("H100", FLASH, "s", "tile", "--", named=True),
    _Curve("B200", BASELINE, "^"),
    _Curve(EXACT_SUMS, INK, ".", line="--"),
)


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
        for curve in curves:
            own = rows[(rows.unit == curve.unit) & (rows.level == curve.level)]
            style = dict(color=curve.color, marker=curve.marker, ls=curve.line)
            band(above, by_seed(own, "n", "relative"), label=_label(fmt, curve), **style)
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


def _label(fmt: str, curve: _Curve) -> str:
    if curve.unit == EXACT_SUMS:
        return "exact sums"
    units = ", ".join(adders(fmt)[curve.unit])
    return f"{units}; {LEVELS[curve.level].label}" if curve.named else units


def _storing_line(ax: Axes, fmt: str) -> None:
    error = STORED * Format.of(fmt).unit_roundoff
    ax.axhline(error, color=GREY, lw=0.8, ls=":")
    ax.annotate(f"storing O in {fmt}", (0.02, error), (0, 2), ("axes fraction", "data"), "offset points", fontsize=7)


def _keys(n: int) -> str:
    return f"{n // 1024}k" if n >= 1024 else f"{n}"
