"""Figures 3 to 5, from tables of `experiments.microbenchmark.compare`.

In each function `recorded` is device -> such a table, of `execution.results.recorded`, to draw beside this machine's.
"""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fa_lib.experiments.law import VALUES
from fa_lib.kernels.precision import Precision
from fa_lib.numerics.formats import FP16, Format
from fa_lib.numerics.metrics import over_baseline
from fa_lib.plots.captions import BANDS, KERNELS, POINTS, captioned
from fa_lib.plots.captions import label as label_of
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
from fa_lib.theory.law import expected, largest_over_baseline

_INPUTS = ((FLASH, "o"), (BASELINE, "s"), (INK, "D"))  # of distributions, in their order
FLOOR = 0.15  # units of roundoff, where figure 4 draws 0


@styled
def precision(table: pd.DataFrame, caption: str, recorded: Mapping[str, pd.DataFrame] = NONE) -> Figure:
    """Draw figure 3: max difference Flash - Baseline in one format, against the format.

    Args:
        table: of `compare`.
    """
    distributions, figure, axes = panels(table, height=3.4)
    for ax, distribution in zip(axes, distributions):
        rows = table[(table.kernel == "flash") & (table.distribution == distribution)]
        formats = list(dict.fromkeys(rows.fmt))
        at = np.arange(len(formats))
        values = by_seed(rows[rows.against == "baseline"], "fmt", "max").loc[formats]
        dots(ax, at, values, FLASH, "o", f"against {KERNELS['baseline']}", lw=1.2, ls="-")
        for x, mean in enumerate(values.mean(axis=1, skipna=False)):
            ax.annotate(f"{mean:.1e}", (x, mean), (9, 6), textcoords="offset points", color=FLASH, fontsize=8)
        values = by_seed(rows[rows.against == "baseline_in_format"], "fmt", "max").loc[formats]
        dots(ax, at, values, BASELINE, "s", f"against {KERNELS['baseline_in_format']}", mfc="none", ms=10)
        for shape, other in by_device(recorded):
            own = other[other.distribution == distribution]
            for against, color, shift in (("baseline", FLASH, -0.17), ("baseline_in_format", BASELINE, -0.29)):
                values = by_seed(own[own.against == against], "fmt", "max").reindex(formats)
                hollow(ax, at + shift, values, color, shape, None)
        format_axis(ax, formats, distribution)
    axes[0].set(ylabel="max |Flash − Baseline|", yscale="log", ylim=(1e-16, 1))
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
    figure, axes = plt.subplots(1, len(widths), figsize=(4.3 * sum(widths), 3.8), width_ratios=widths)
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
            flash, baseline = (means[kernel][fmt] for kernel in ("flash", "baseline"))
            _say_times(ax, x + series["flash"][-1], (flash, baseline), times.loc[fmt], top[fmt])
        times_of += [(fmt, times.loc[fmt].mean(), distribution) for fmt in formats if means["baseline"][fmt] > 0]
        ax.axhline(0.5, color=INK, lw=0.8, ls=":")
        format_axis(ax, formats, distribution)
    axes[0].annotate("storing the answer: u / 2 where |O| < 1", (0.02, 0.5), (0, -9), fontsize=6.5, color=INK,
                     xycoords=("axes fraction", "data"), textcoords="offset points")  # fmt: skip
    _against_tiles(axes[-1], by_tiles, recorded_tiles)
    axes[0].set(yscale="log", ylim=(FLOOR / 1.3, 90), ylabel="max |kernel − golden value|\n(units of roundoff u)")
    plain_ticks(axes[0].yaxis)
    name_devices(axes[-2], recorded)
    axes[-2].legend(loc="upper left")
    title = "Figure 4. How much further than Baseline is Flash from the golden value?"
    if times_of:
        fmt, times, distribution = times_of[0]
        where = f"on {distribution} inputs over {table.tiles.max()} tiles"
        flash = f"Figure 4. In {fmt}, {where}, Flash is {times:.0f} × further than Baseline"
        title = f"{flash} from the golden value"
    lengths = f"Right: N = {by_tiles.n.min()} to {by_tiles.n.max()}; lines: mean over seeds, bands: min to max."
    words = f"{caption}{POINTS} Bars: from Baseline to Flash. {lengths}{caption_of(recorded)}"
    return captioned(figure, title, words)


def _against_tiles(ax, table, recorded):
    """Draw how many times Baseline's largest error Flash's is, and what the law says where V has one sign."""
    fmt = table.fmt.iloc[0]
    for distribution, (color, marker) in zip(dict.fromkeys(table.distribution), _INPUTS):
        band(ax, _times(table, distribution), color, marker, f"{distribution} inputs")
        for shape, other in by_device(recorded):
            times = _times(other, distribution)
            hollow(ax, times.index, times, color, shape, ls=":")
    outputs = pd.concat([table, *recorded.values()]).groupby("tiles")["count"].max()
    one_format, algorithm = Precision.uniform(fmt), table.algorithm.iloc[0]
    law = [
        largest_over_baseline(one_format, fmt, tiles=int(tiles), algorithm=algorithm, count=int(count))
        for tiles, count in outputs.items()
    ]
    ax.plot(outputs.index, law, color=INK, lw=1, ls="--", label="the law, V of one sign")
    ax.set(xscale="log", yscale="log", xlabel="number T of K, V tiles", title=f"{fmt}: Flash / Baseline")
    ax.set_xticks(outputs.index, labels=[str(t) for t in outputs.index])
    no_minor_ticks(ax.xaxis)
    log_ticks(ax.yaxis)
    ax.legend(loc="upper left")


def _times(table, distribution):
    """Divide Flash's largest error by Baseline's: a frame, tiles x seeds."""
    rows = table[(table.against == "golden") & (table.distribution == distribution)]
    return over_baseline(*(by_seed(rows[rows.kernel == name], "tiles", "max") for name in ("flash", "baseline")))


def _say_times(ax, x, errors, times, top):
    """Draw a bar from Baseline to Flash, and write above `top` how many times Baseline's error Flash's is."""
    (flash, baseline), color = errors, FLASH
    bar = dict(lw=6, alpha=0.25, zorder=1, solid_capstyle="butt")
    ax.plot([x, x], [max(baseline, FLOOR), flash], color=color, **bar)
    if baseline > 0:
        words = f"{times.mean():.1f} ×\n({times.min():.1f} to {times.max():.1f})"
        bold = dict(textcoords="offset points", color=color, fontsize=8, fontweight="bold")
        ax.annotate(words, (x, top), (-14, 7), **bold)


@styled
def sequence_length(table: pd.DataFrame, caption: str, recorded: Mapping[str, pd.DataFrame] = NONE) -> Figure:
    """Draw figure 5: max difference (a), and mean and standard deviation (b), against N, in units of roundoff; and the
    relative error of Flash (c), with the prediction of `theory`.

    Args:
        table: of `compare`.
    """
    distributions, figure, axes = panels(table, rows=3, height=8.0)
    lengths = sorted({*table.n, *(n for other in recorded.values() for n in other.n)})
    tiles = {n: -(-n // table.block_kv.iloc[0]) for n in lengths}
    for row, columns in enumerate((("max",), ("mean", "std"))):
        for ax, distribution in zip(axes[row], distributions):
            pair = f"distribution == '{distribution}' and kernel == 'flash' and against == 'baseline'"
            for shape, other in by_device(recorded):
                for fmt, group in other.query(pair).groupby("fmt", sort=False):
                    for column, line in zip(columns, ("-", ":")):
                        _hollow_line(ax, in_roundoff(group, "n", column), fmt, shape, line)
            for fmt, group in table.query(pair).groupby("fmt", sort=False):
                for column, style in zip(columns, ({}, dict(ls=":", lw=1.2))):
                    values = in_roundoff(group, "n", column)
                    band(ax, values, *FORMATS.get(fmt, (INK, "v")), fmt if column == columns[0] else None, **style)
            ax.set(xscale="log", yscale="log", xticks=lengths, xticklabels=[f"{n}\n{tiles[n]}" for n in lengths])
            no_minor_ticks(ax.xaxis)
            plain_ticks(ax.yaxis)
            ax.set_title(INPUTS[distribution] if row == 0 else "")
    for ax, distribution in zip(axes[2], distributions):
        others = {device: other[other.distribution == distribution] for device, other in recorded.items()}
        _relative(ax, table[table.distribution == distribution], tiles, others)
        ax.set(xscale="log", yscale="log", xticks=lengths, xticklabels=[f"{n}\n{tiles[n]}" for n in lengths])
        no_minor_ticks(ax.xaxis)
        log_ticks(ax.yaxis)
        ax.set_xlabel("sequence length N / number of K, V tiles")
    axes[2][0].set_ylabel("(c)  rms error of Flash / rms of O\n(units of roundoff u)")
    if axes[2][0].lines:
        axes[2][0].legend(loc="upper left")
    for row, words in enumerate(("(a)  max |Flash − Baseline|", "(b)  mean (solid), std (dotted)")):
        axes[row][0].set_ylabel(f"{words}\n(units of roundoff u)")
    name_devices(axes[0][-1], recorded)
    axes[0][-1].legend(loc="upper left", ncols=2)
    title = "Figure 5. The absolute difference grows with N on uniform inputs alone; the relative error on both"
    return captioned(figure, title, caption + BANDS + caption_of(recorded))


def _hollow_line(ax, values, fmt, shape, line="-"):
    hollow(ax, values.index, values, FORMATS.get(fmt, (INK, "v"))[0], shape, ls=line)


def _relative(ax, table, tiles, recorded):
    """Draw Flash's relative error to the golden value, in the formats whose sums are exact, and the law for it."""
    rows = table[(table.kernel == "flash") & (table.against == "golden")]
    formats = [fmt for fmt in dict.fromkeys(rows.fmt) if Format.of(fmt).precision <= FP16.precision]
    for fmt in formats:
        band(ax, in_roundoff(rows[rows.fmt == fmt], "n", "relative"), *FORMATS.get(fmt, (INK, "v")), fmt)
        for shape, other in by_device(recorded):
            own = other[(other.kernel == "flash") & (other.against == "golden") & (other.fmt == fmt)]
            _hollow_line(ax, in_roundoff(own, "n", "relative"), fmt, shape)
    values = VALUES.get(table.distribution.iloc[0])
    if values and formats and rows.flash.iloc[0] == "tiled":
        options: dict[str, Any] = dict(
            algorithm=rows.algorithm.iloc[0], values=values, block_kv=int(rows.block_kv.iloc[0])
        )
        fmt = Format.of(formats[0])
        law = [expected(Precision.uniform(fmt), tiles=count, **options) / fmt.unit_roundoff for count in tiles.values()]
        ax.plot(list(tiles), law, color=INK, lw=1, ls="--", label="predicted by the law")
