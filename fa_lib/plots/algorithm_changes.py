"""Figure 6, from a table of `experiments.microbenchmark.compare` with tiles of several sizes."""

from collections.abc import Mapping
from itertools import cycle

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from fa_lib.plots.captions import BANDS, captioned
from fa_lib.plots.recorded import NONE, by_device, caption_of, hollow, name_devices
from fa_lib.plots.style import BASELINE, FLASH, INK, band, in_roundoff, plain_ticks, power, styled


@styled
def algorithm_changes(table: pd.DataFrame, caption: str, recorded: Mapping[str, pd.DataFrame] = NONE) -> Figure:
    """Draw figure 6: max difference against block area: (a) dimensions swapped, (b) square, (c) as given.

    Args:
        table: of `compare`, Flash against Baseline alone, with the columns of `tiles_of_sram`.
        recorded: device -> such a table, of `execution.results.recorded`, to draw beside this machine's.
    """
    formats, distributions = list(dict.fromkeys(table.fmt)), list(dict.fromkeys(table.distribution))
    size = (2.5 * len(formats), 7.2)
    figure, axes = plt.subplots(3, len(formats), figsize=size, sharex=True, sharey=True, squeeze=False)
    for column, fmt in enumerate(formats):
        for ax, variant in zip(axes[:, column], ("swapped", "square", None)):
            for distribution, color in zip(distributions, cycle((FLASH, BASELINE, INK))):
                rows = table[(table.fmt == fmt) & (table.distribution == distribution)]
                given_tiles = in_roundoff(rows[rows.variant == "as_given"], "area", "max")
                band(ax, given_tiles, color, "o", f"{distribution} inputs, tiles as given")
                if variant:
                    values = in_roundoff(rows[rows.variant == variant], "area", "max")
                    label = f"{distribution} inputs, swapped or square"
                    band(ax, values, color, "s", label, ls="--", mfc="white")
                for shape, device_table in by_device(recorded):
                    own = device_table[(device_table.fmt == fmt) & (device_table.distribution == distribution)]
                    own = in_roundoff(own[own.variant == (variant or "as_given")], "area", "max")
                    hollow(ax, own.index, own, color, shape, ls=":")
            ax.set(xscale="log", yscale="log")
            plain_ticks(ax.yaxis)
        axes[0, column].set_title(f"{fmt}, u = {power(fmt)}")
        axes[-1, column].set_xlabel("block area $B_r · B_c$")
    for ax, words in zip(axes[:, 0], ("(a) swapped", "(b) square", "(c) as given")):
        ax.set_ylabel(f"{words}\nmax |Flash − Baseline|\n(units of roundoff u)")
    axes[0, 0].set_ylim(axes[0, 0].get_ylim()[0] / 4)  # room for the legend
    handles = axes[0, 0].get_legend_handles_labels()
    axes[0, -1].legend(*handles, loc="lower left", fontsize=7)
    if recorded:
        axes[1, -1].legend(handles=name_devices(axes[1, -1], recorded), loc="lower left", fontsize=7)
    title = "Figure 6. What counts is $B_c$: the fewer K, V tiles, the less difference"
    own = " In (a) and (b) they are of swapped and of square tiles." if recorded else ""
    return captioned(figure, title, caption + BANDS + caption_of(recorded) + own)
