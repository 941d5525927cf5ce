"""Figures 3 to 5, from tables of `experiments.microbenchmark.compare`.

In each function `recorded` is device -> such a table, of `execution.results.recorded`, to draw beside this machine's.
"""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fa_lib.experiments.predicted import departs_from, law_of_relative, law_of_times, times_by_tiles
from fa_lib.numerics.formats import FP16, Format
from fa_lib.numerics.metrics import over_baseline
from fa_lib.plots.captions import BANDS, KERNELS, POINTS, captioned, label_of
from fa_lib.plots.recorded import NONE, by_device, caption_of, hollow, name_devices
from fa_lib.plots.style import (
    BASELINE,
    FLASH,
    FORMATS,
    INK,
    INPUTS,
    SOFTMAX,
    band,
    by_seed,
    dots,
    format_axis,
    in_roundoff,
    log_ticks,
    no_minor_ticks,
    panels,
    plain_ticks,
    styled,
)

_INPUTS = ((FLASH, "o"), (BASELINE, "s"), (INK, "D"))  # of distributions, in their order
FLOOR = 0.15  # units of roundoff, where figure 4 draws 0


@styled
def precision(table: pd.DataFrame, caption: str, recorded: Mapping[str, pd.DataFrame] = NONE) -> Figure:
    """Draw figure 3: max difference Flash - Baseline in one format, against the format.

    Args:
        table: of `compare`.
    """
    figure, axes, parts = panels(table[table.kernel == "flash"], height=3.4)
    for ax, distribution, rows in parts:
        formats = list(dict.fromkeys(rows.fmt))
        at = np.arange(len(formats))
        values = by_seed(rows[rows.against == "baseline"], "fmt", "max").loc[formats]
        dots(ax, at - 0.07, values, FLASH, "o", f"against {KERNELS['baseline']}", lw=1.2, ls="-")
        for x, mean in enumerate(values.mean(axis=1, skipna=False)):
            ax.annotate(f"{mean:.1e}", (x, mean), (12, 6), textcoords="offset points", color=FLASH, fontsize=8)
        values = by_seed(rows[rows.against == "baseline_in_format"], "fmt", "max").loc[formats]
        dots(ax, at + 0.07, values, BASELINE, "s", f"against {KERNELS['baseline_in_format']}", mfc="none", ms=7)
        for shape, other in by_device(recorded):
            own = other[other.distribution == distribution]
            for against, color, shift in (("baseline", FLASH, -0.17), ("baseline_in_format", BASELINE, -0.29)):
                values = by_seed(own[own.against == against], "fmt", "max").reindex(formats)
                hollow(ax, at + shift, values, color, shape, None)
        format_axis(ax, formats, distribution)
    axes[0].set(ylabel="max |Flash − Baseline|", yscale="log", ylim=(1e-17, 1))
    name_devices(axes[0], recorded)
    axes[0].legend(loc="lower left")
    title = "Figure 3. More mantissa bits, less difference between Flash and Baseline"
    return captioned(figure, title, caption + POINTS + caption_of(recorded))


@styled
def golden_value(
    table: pd.DataFrame, by_tiles: pd.DataFrame, caption: str,
    recorded: Mapping[str, pd.DataFrame] = NONE, recorded_tiles: Mapping[str, pd.DataFrame] = NONE,
) -> Figure:  # fmt: skip
    """Draw figure 4: max difference to the golden value in units of roundoff, Flash and both Baselines, by format; and
    Flash's over Baseline's in the first format, against the number of tiles.

    Args:
        table: of `compare`.
        by_tiles: of `compare`, in one format, at several N.
        recorded, recorded_tiles: device -> such a table, of each.
    """
    distributions = list(dict.fromkeys(table.distribution))
    widths = [*(len(distributions) * [1.0]), 0.85]
    figure, axes = plt.subplots(1, len(widths), figsize=(4.15 * sum(widths), 3.9), width_ratios=widths)
    for ax in axes[1:-1]:
        ax.sharey(axes[0])
        ax.tick_params(labelleft=False)
    series = {  # label, color, marker, shift
        "flash": (label_of(table.flash.iloc[0]), FLASH, "o", -0.16),
        "baseline": (KERNELS["baseline"], BASELINE, "s", 0.0),
        "baseline_in_format": (KERNELS["baseline_in_format"], SOFTMAX, "D", 0.16),
    }
    times_of = []  # (format, times, distribution), where Baseline has an error
    for ax, distribution in zip(axes, distributions):
        rows = table[(table.distribution == distribution) & (table.against == "golden")]
        formats = list(dict.fromkeys(rows.fmt))
        values = {kernel: in_roundoff(rows[rows.kernel == kernel], "fmt", "max").loc[formats] for kernel in series}
        for kernel, (label, color, marker, shift) in series.items():
            dots(ax, np.arange(len(formats)) + shift, values[kernel].clip(lower=FLOOR), color, marker, label)
        times = over_baseline(values["flash"], values["baseline"])
        means = {kernel: frame.mean(axis=1, skipna=False) for kernel, frame in values.items()}
        top = means["flash"]
        for shape, other in by_device(recorded):
            own = other[(other.distribution == distribution) & (other.against == "golden")]
            for kernel, (_, color, _, shift) in series.items():
                largest = in_roundoff(own[own.kernel == kernel], "fmt", "max").reindex(formats).clip(lower=FLOOR)
                hollow(ax, np.arange(len(formats)) + shift - 0.07, largest, color, shape, None)
                top = np.fmax(top, largest.max(axis=1))
        for x, fmt in enumerate(formats):
            ends = means["baseline"][fmt], means["flash"][fmt]
            _say_times(ax, x + series["flash"][-1], ends, times.loc[fmt], top[fmt])
        times_of += [(fmt, times.loc[fmt].mean(), distribution) for fmt in formats if means["baseline"][fmt] > 0]
        ax.axhline(0.5, color=INK, lw=0.8, ls=":")
        format_axis(ax, formats, distribution)
    axes[0].annotate("storing the answer: u / 2 where |O| < 1", (0.02, 0.5), (0, -9), fontsize=6.5, color=INK,
                     xycoords=("axes fraction", "data"), textcoords="offset points")  # fmt: skip
    _against_tiles(axes[-1], by_tiles, recorded_tiles)
    axes[0].set(yscale="log", ylim=(FLOOR / 1.3, 120), ylabel="max |kernel − golden value|\n(units of roundoff u)")
    plain_ticks(axes[0].yaxis)
    name_devices(axes[-2], recorded)
    axes[-2].legend(loc="upper left")
    title = "Figure 4. How much further than Baseline is Flash from the golden value?"
    if times_of:
        fmt, times, distribution = times_of[0]
        title = f"Figure 4. In {fmt}, on {distribution} inputs over {table.tiles.max()} tiles, Flash is {times:.0f} × "
        title += "further than Baseline from the golden value"
    lengths = f"Right: N = {by_tiles.n.min()} to {by_tiles.n.max()}; lines: mean over seeds, bands: min to max."
    words = f"{caption}{POINTS} Bars: from Baseline to Flash. {lengths}{caption_of(recorded)}"
    return captioned(figure, title, words)


def _against_tiles(ax, table, recorded):
    """Draw how many times Baseline's largest error Flash's is, and what the law says where V has one sign."""
    fmt = table.fmt.iloc[0]
    for distribution, (color, marker) in zip(dict.fromkeys(table.distribution), _INPUTS):
        band(ax, times_by_tiles(table, distribution), color, marker, f"{distribution} inputs")
        for shape, other in by_device(recorded):
            times = times_by_tiles(other, distribution)
            hollow(ax, times.index, times, color, shape, ls=":")
    outputs = pd.concat([table, *recorded.values()]).groupby("tiles")["count"].max()
    law = law_of_times(table, outputs)
    end = _ends(times_by_tiles(table, "uniform").mean(axis=1), law, fmt, {tiles: tiles for tiles in law.index})
    ax.plot(outputs.index, law, color=INK, lw=1, ls="--", label=f"the law, V of one sign{end}")
    ax.set(xscale="log", yscale="log", xlabel="number T of K, V tiles", title=f"{fmt}: Flash / Baseline")
    ax.set_xticks(outputs.index, labels=[str(t) for t in outputs.index])
    no_minor_ticks(ax.xaxis)
    ax.set_ylim(top=3 * ax.get_ylim()[1])  # room for the legend
    log_ticks(ax.yaxis)
    ax.legend(loc="upper left")


def _say_times(ax, x, ends, times, top):
    """Draw a bar from Baseline to Flash, and write above `top` how many times Baseline's error Flash's is."""
    baseline, flash = ends
    ax.plot([x, x], [max(baseline, FLOOR), flash], color=FLASH, lw=6, alpha=0.25, zorder=1, solid_capstyle="butt")
    if baseline > 0:
        words = f"{times.mean():.1f} ×\n({times.min():.1f} to {times.max():.1f})"
        ax.annotate(words, (x, top), (-16, 7), textcoords="offset points", color=FLASH, fontsize=7.5)


@styled
def sequence_length(table: pd.DataFrame, caption: str, recorded: Mapping[str, pd.DataFrame] = NONE) -> Figure:
    """Draw figure 5, in units of roundoff against N: max difference (a); mean and standard deviation in the first
    format (b); and the relative error of Flash (c), with the prediction of `theory`.

    Args:
        table: of `compare`.
    """
    distributions = list(dict.fromkeys(table.distribution))
    figure, axes = plt.subplots(3, len(distributions), figsize=(4.6 * len(distributions), 7.6), squeeze=False)
    lengths = sorted({*table.n, *(n for other in recorded.values() for n in other.n)})
    tiles = {n: -(-n // table.block_kv.iloc[0]) for n in lengths}
    formats, first = list(dict.fromkeys(table.fmt)), table.fmt.iloc[0]
    styles = {fmt: FORMATS.get(fmt, (INK, "v")) for fmt in formats}
    measures = {"mean": ("mean", *styles[first]), "std": ("standard deviation", BASELINE, "D")}
    for (above, below, last), distribution in zip(axes.T, distributions):
        pair = f"distribution == '{distribution}' and kernel == 'flash' and against == 'baseline'"
        rows = table.query(pair)
        for fmt, (color, marker) in styles.items():
            band(above, in_roundoff(rows[rows.fmt == fmt], "n", "max"), color, marker, fmt)
        for column, (label, color, marker) in measures.items():
            band(below, in_roundoff(rows[rows.fmt == first], "n", column), color, marker, f"{first}, {label}")
        for shape, other in by_device(recorded):
            own = other.query(pair)
            for fmt, (color, _) in styles.items():
                _hollow_line(above, own[own.fmt == fmt], "max", color, shape)
            for column, (_, color, _) in measures.items():
                _hollow_line(below, own[own.fmt == first], column, color, shape)
        others = {device: other[other.distribution == distribution] for device, other in recorded.items()}
        _relative(last, table[table.distribution == distribution], tiles, others)
        above.set_title(INPUTS[distribution])
        last.set_xlabel("sequence length N / number of K, V tiles")
    for ax in axes.flat:
        ax.set(xscale="log", yscale="log", xticks=lengths, xticklabels=[f"{n}\n{tiles[n]}" for n in lengths])
        no_minor_ticks(ax.xaxis)
        log_ticks(ax.yaxis)
    words = ("(a)  max |Flash − Baseline|", "(b)  |Flash − Baseline|", "(c)  rms error of Flash / rms of O")
    for ax, label in zip(axes[:, 0], words):
        ax.set_ylabel(f"{label}\n(units of roundoff u)")
    name_devices(axes[0][-1], recorded)
    for ax in (axes[0][-1], axes[1][0], *axes[2]):
        if ax.lines:
            ax.legend(loc="upper left", ncols=1 + (ax is axes[0][-1]))
    title = "Figure 5. The absolute difference grows with N on uniform inputs; the relative error grows on both"
    return captioned(figure, title, f"{caption}{BANDS} Each panel has its own scale.{caption_of(recorded)}")


def _hollow_line(ax, rows, column, color, shape):
    values = in_roundoff(rows, "n", column)
    hollow(ax, values.index, values, color, shape, ls="-")


def _relative(ax, table, tiles, recorded):
    """Draw Flash's relative error to the golden value, in the formats whose sums are exact, and the law for it."""
    rows = table[(table.kernel == "flash") & (table.against == "golden")]
    formats = [fmt for fmt in dict.fromkeys(rows.fmt) if Format.of(fmt).precision <= FP16.precision]
    for fmt in formats:
        color, marker = FORMATS.get(fmt, (INK, "v"))
        band(ax, in_roundoff(rows[rows.fmt == fmt], "n", "relative"), color, marker, fmt)
        for shape, other in by_device(recorded):
            own = other[(other.kernel == "flash") & (other.against == "golden") & (other.fmt == fmt)]
            _hollow_line(ax, own, "relative", color, shape)
    law = law_of_relative(rows, formats[0], tiles) if formats else None
    if law is not None:
        means = in_roundoff(rows[rows.fmt == formats[0]], "n", "relative").mean(axis=1)
        ax.plot(law.index, law, color=INK, lw=1, ls="--", label=f"the law{_ends(means, law, formats[0], tiles)}")


def _ends(measured, law, fmt, tiles):
    """Say from how many tiles on the law does not hold, or "" where it always does; arguments of `departs_from`."""
    first = departs_from(measured, law, tiles)
    return "" if first is None else f"\n(more than 10 % off {fmt} from {first} tiles on)"
