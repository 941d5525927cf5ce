"""Figure 6, from a table of `experiments.microbenchmark.compare` with tiles of several sizes."""

from collections.abc import Mapping
from itertools import cycle

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from fa_lib.numerics.formats import Format
from fa_lib.plots.captions import BANDS, captioned
from fa_lib.plots.recorded import NONE, by_device, caption_of, hollow, name_devices
from fa_lib.plots.style import BASELINE, FLASH, INK, band, in_roundoff, log_ticks, plain_ticks, styled


@styled
def algorithm_changes(table: pd.DataFrame, caption: str, recorded: Mapping[str, pd.DataFrame] = NONE) -> Figure:
    """Draw figure 6, max difference in the first format: against block area, with dimensions swapped (a) and square (b)
    beside the tiles as given (c); and all three against B_c.

    Args:
        table: of `compare`, Flash against Baseline alone, with the columns of `tiles_of_sram`.
        recorded: device -> such a table, of `execution.results.recorded`, to draw beside this machine's.
    """
    fmt, distributions = table.fmt.iloc[0], list(dict.fromkeys(table.distribution))
    figure, axes = plt.subplots(1, 3, figsize=(11.6, 4.0), sharey=True)
    for distribution, color in zip(distributions, cycle((FLASH, BASELINE, INK))):
        of_format = (table.fmt == fmt) & (table.distribution == distribution)
        for ax, variant in zip(axes, _VARIANTS):
            _line(ax, table[of_format], "as_given", "area", color, f"{distribution} inputs, as given (c)")
            _line(ax, table[of_format], variant, "area", color, f"{distribution} inputs, {variant}")
            _line(axes[2], table[of_format], variant, "block_kv", color, None, ls="")
        _line(axes[2], table[of_format], "as_given", "block_kv", color, None)
        for shape, other in by_device(recorded):
            own = other[(other.fmt == fmt) & (other.distribution == distribution)]
            for ax, variant in zip(axes, (*_VARIANTS, "as_given")):
                values = in_roundoff(own[own.variant == variant], "area" if variant in _VARIANTS else "block_kv", "max")
                hollow(ax, values.index, values, color, shape, ls=":")
    for ax, words in zip(axes, ("(a) dimensions swapped", "(b) square tiles", "all tiles, by $B_c$")):
        ax.set(xscale="log", yscale="log", title=words, xlabel="block area $B_r · B_c$")
        log_ticks(ax.yaxis)
    axes[2].set(xlabel="$B_c$, keys of a tile", xticks=[16, 64, 256, 1024])
    plain_ticks(axes[2].xaxis)
    axes[0].set_ylabel("max |Flash − Baseline|\n(units of roundoff u)")
    axes[0].set_ylim(axes[0].get_ylim()[0] / 5)  # room for the legends
    for ax in axes[:2]:
        ax.legend(loc="lower left", fontsize=7)
    if recorded:
        axes[2].legend(handles=name_devices(axes[2], recorded), loc="lower left", fontsize=7)
    title = f"Figure 6. What counts is $B_c$: the larger the tiles of keys, the smaller the difference ({fmt})"
    own = " At the right they are of the tiles as given." if recorded else ""
    return captioned(figure, title, f"{caption} {_other_formats(table)}{BANDS}{caption_of(recorded)}{own}")


_VARIANTS = {"swapped": "s", "square": "D"}


def _line(ax, rows, variant, by, color, label, **style):
    """Draw a variant's difference against a column; tiles of one size are drawn once."""
    own = rows[rows.variant == variant].drop_duplicates([by, "seed"])
    look = {} if variant == "as_given" else dict(ls="--", mfc="white")
    band(ax, in_roundoff(own, by, "max"), color, _VARIANTS.get(variant, "o"), label, **look | style)


def _other_formats(table):
    """Say how far the means of the other formats, in units of their roundoff, are from the first one's."""
    units = table.assign(units=table["max"] / table.fmt.map(lambda fmt: Format.of(fmt).unit_roundoff))
    means = units.pivot_table(index=["distribution", "variant", "area"], columns="fmt", values="units")
    first, *others = dict.fromkeys(table.fmt)
    if not others:
        return ""
    times = means[others].div(means[first], axis=0).stack()
    return f"In {', '.join(others)}: {times.min():.1f} to {times.max():.1f} times as much, in units of their own u."
