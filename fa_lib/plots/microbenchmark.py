"""Figures 3 to 6."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import FuncFormatter, NullLocator

from fa_lib.plots.captions import BANDS, POINTS, captioned
from fa_lib.plots.captions import label as label_of
from fa_lib.plots.style import (
    BASELINE,
    BASELINE_LABEL,
    FLASH,
    FORMATS,
    INPUTS,
    SOFTMAX,
    SOFTMAX_LABEL,
    band,
    by_seed,
    dots,
    format_axis,
    in_roundoff,
    panels,
)


def precision(table, caption):
    """Figure 3: max difference Flash - Baseline in one format, against the format."""
    distributions, figure, axes = panels(table, height=3.4)
    flash = table[table.kernel == "flash"]
    for ax, distribution in zip(axes, distributions):
        rows = flash[flash.distribution == distribution]
        formats = list(dict.fromkeys(rows.fmt))
        values = by_seed(rows[rows.against == "baseline"], "fmt", "max").loc[formats]
        dots(ax, range(len(formats)), values, FLASH, "o", f"against {BASELINE_LABEL}", lw=1.2, ls="-")
        for x, mean in enumerate(values.mean(axis=1, skipna=False)):
            ax.annotate(f"{mean:.1e}", (x, mean), (9, 6), textcoords="offset points", color=FLASH, fontsize=8)
        values = by_seed(rows[rows.against == "baseline, softmax in format"], "fmt", "max").loc[formats]
        dots(ax, range(len(formats)), values, BASELINE, "s", f"against {SOFTMAX_LABEL}", mfc="none", ms=10)
        format_axis(ax, formats, distribution)
    axes[0].set(ylabel="max |Flash − Baseline|", yscale="log", ylim=(1e-16, 1))
    axes[0].legend(loc="lower left")
    return captioned(
        figure, "Figure 3. More mantissa bits, less difference between Flash and Baseline", caption + POINTS
    )


def golden_value(table, caption):
    """Figure 4: max difference to the golden value in units of roundoff, Flash and both Baselines, by format."""
    distributions, figure, axes = panels(table, height=3.8)
    series = (
        ("flash", label_of(table.flash.iloc[0]), FLASH, "o", -0.16),
        ("baseline", BASELINE_LABEL, BASELINE, "s", 0.0),
        ("baseline, softmax in format", SOFTMAX_LABEL, SOFTMAX, "D", 0.16),
    )
    floor, measured = 0.15, None  # where 0 is drawn; what the title says
    for ax, distribution in zip(axes, distributions):
        rows = table[(table.distribution == distribution) & (table.against == "golden")]
        formats = list(dict.fromkeys(rows.fmt))
        values = {}
        for kernel, label, color, marker, shift in series:
            values[kernel] = in_roundoff(rows[rows.kernel == kernel], "fmt", "max").loc[formats]
            dots(ax, np.arange(len(formats)) + shift, values[kernel].clip(lower=floor), color, marker, label)
        for x, (fmt, ratios) in enumerate((values["flash"] / values["baseline"]).iterrows()):
            flash, baseline = values["flash"].loc[fmt].mean(), values["baseline"].loc[fmt].mean()
            words = f"{ratios.mean():.1f} ×\n({ratios.min():.1f} to {ratios.max():.1f})"
            measured = measured or (baseline > 0 and (fmt, ratios.mean(), distribution))
            if baseline == 0:
                words = ""
                ax.annotate(
                    "0: the golden\nvalue itself", (x - 0.08, floor), (0, 8), textcoords="offset points", fontsize=7
                )
            ax.plot(
                [x - 0.16] * 2,
                [max(baseline, floor), flash],
                color=FLASH,
                lw=6,
                alpha=0.25,
                zorder=1,
                solid_capstyle="butt",
            )
            at = dict(textcoords="offset points", color=FLASH, fontsize=8, fontweight="bold")
            ax.annotate(words, (x - 0.16, flash), (-14, 7), **at)
        format_axis(ax, formats, distribution)
    axes[0].set(yscale="log", ylim=(floor / 1.3, 90), ylabel="max |kernel − golden value|\n(units of roundoff u)")
    axes[0].yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes[-1].legend(loc="upper left")
    title = "Figure 4. How much further than Baseline is Flash from the golden value?"
    if measured:
        fmt, times, distribution = measured
        title = (
            f"Figure 4. In {fmt}, on {distribution} inputs, Flash is {times:.0f} × further than Baseline from golden"
        )
    return captioned(figure, title, f"{caption}{POINTS} Bars: from Baseline to Flash.")


def sequence_length(table, caption):
    """Figure 5: max difference (a), and mean and standard deviation (b), against N, in units of roundoff."""
    distributions, figure, axes = panels(table, rows=2, height=5.8)
    for row, columns in enumerate((("max",), ("mean", "std"))):
        for ax, distribution in zip(axes[row], distributions):
            rows = table[
                (table.distribution == distribution) & (table.kernel == "flash") & (table.against == "baseline")
            ]
            for column in columns:
                for fmt, group in rows.groupby("fmt", sort=False):
                    values = in_roundoff(group, "n", column)
                    style = dict(ls=":", lw=1.2) if column == "std" else {}
                    band(
                        ax, values, *FORMATS.get(fmt, ("#888888", "v")), fmt if column == columns[0] else None, **style
                    )
            lengths = sorted(table.n.unique())
            tiles = {n: -(-n // table.block_kv.iloc[0]) for n in lengths}
            ax.set(xscale="log", yscale="log", xticks=lengths, xticklabels=[f"{n}\n{tiles[n]}" for n in lengths])
            ax.xaxis.set_minor_locator(NullLocator())
            ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
            ax.set(
                title=INPUTS[distribution] if row == 0 else "",
                xlabel="sequence length N / number of K, V tiles" if row else "",
            )
    for row, words in enumerate(("(a)  max |Flash − Baseline|", "(b)  mean (solid), std (dotted)")):
        axes[row][0].set_ylabel(f"{words}\n(units of roundoff u)")
        limits = [ax.get_ylim() for ax in axes[row]]
        for ax in axes[row]:
            ax.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    axes[0][-1].legend(loc="upper left", ncols=2)
    return captioned(
        figure, "Figure 5. Whether the difference grows with the sequence length turns on the inputs", caption + BANDS
    )


def algorithm_changes(table, caption):
    """Figure 6: max difference against block area: (a) dimensions swapped, (b) square, (c) as given."""
    formats = list(dict.fromkeys(table.fmt))
    figure, axes = plt.subplots(
        3, len(formats), figsize=(2.5 * len(formats), 7.2), sharex=True, sharey=True, squeeze=False
    )
    for column, fmt in enumerate(formats):
        for ax, variant in zip(axes[:, column], ("swapped", "square", None)):
            for distribution, color in zip(dict.fromkeys(table.distribution), (FLASH, BASELINE, "#333333")):
                rows = table[(table.fmt == fmt) & (table.distribution == distribution)]
                given = in_roundoff(rows[rows.variant == "as given"], "area", "max")
                band(ax, given, color, "o", f"{distribution} inputs, tiles as given")
                if variant:
                    changed = in_roundoff(rows[rows.variant == variant], "area", "max")
                    band(ax, changed, color, "s", f"{distribution} inputs, swapped or square", ls="--", mfc="white")
            ax.set(xscale="log", yscale="log")
            ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axes[0, column].set_title(f"{fmt}, u = {power(fmt)}")
        axes[-1, column].set_xlabel("block area $B_r · B_c$")
    for ax, words in zip(axes[:, 0], ("(a) swapped", "(b) square", "(c) as given")):
        ax.set_ylabel(f"{words}\nmax |Flash − Baseline|\n(units of roundoff u)")
    axes[0, -1].legend(loc="lower left", fontsize=7)
    return captioned(
        figure, "Figure 6. Up to FP32 what counts is $B_c$: fewer K, V tiles, less difference", caption + BANDS
    )
