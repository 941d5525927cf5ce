"""The figures: one function each, from a tidy table to a matplotlib Figure. The spread over seeds is always drawn."""

import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import seaborn
from matplotlib.ticker import FuncFormatter, NullLocator

from fa_lib.formats import Format
from fa_lib.microbenchmark import label as label_of

plt.style.use(Path(__file__).with_name("paper.mplstyle"))

_COLORS = seaborn.color_palette("colorblind").as_hex()
FLASH, BASELINE, SOFTMAX = _COLORS[3], _COLORS[0], _COLORS[9]  # told apart by marker where colour is not seen
FORMATS = {"BF16": (_COLORS[3], "o"), "FP16": (_COLORS[1], "s"), "FP32": (_COLORS[0], "^"), "FP64": ("#333333", "D")}
INPUTS = {
    "uniform": "uniform inputs on [0, 1)",
    "normal": "normal inputs, N(0, 1)",
    "outliers": "normal inputs with outliers",
    "sink": "an attention sink",
    "repeated maxima": "repeated maxima",
    "one-signed V": "normal inputs, V ≥ 0",
    "peaked": "peaked logits",
    "flat": "flat logits",
    "off by one": "one key past a tile",
}
POINTS, BANDS = " Small points: seeds; large ones: their mean.", " Lines: mean over seeds; bands: min to max."
BASELINE_LABEL = "Baseline, softmax inside in FP32"
SOFTMAX_LABEL = "Baseline, softmax in the format too"


def validation(exponential, agreement, caption):
    """Figure 2: the exponential inside torch's kernel, and the share of its bits that each modelling choice gets."""
    figure, axes = plt.subplots(1, 2, figsize=(9.2, 3.4))
    x, measured, modelled = exponential
    axes[0].plot(x, measured * 1e4, ".", color=FLASH, ms=3, label="torch's kernel, measured")
    axes[0].plot(x, modelled * 1e4, "-", color=BASELINE, lw=0.8, label="`fast_exp`, our model")
    axes[0].set(
        xlabel="S − m", ylabel="relative error of exp (1e-4)", ylim=(-1.3, 2.2), title="the exponential it uses"
    )
    axes[0].legend(loc="upper left")
    rows = agreement[(agreement.fmt == "BF16") & (agreement.n == agreement.n.max())]
    choices = list(dict.fromkeys(rows.choice))
    for distribution, color, marker in (("uniform", FLASH, "o"), ("normal", BASELINE, "s")):
        different = 1 - rows[rows.distribution == distribution].pivot(
            index="choice", columns="seed", values="identical"
        )
        different = different.loc[choices].clip(lower=1e-6)
        at = np.arange(len(choices))[::-1]
        for seed in different:
            axes[1].plot(different[seed], at, marker, color=color, ms=3.2, alpha=0.35, mew=0)
        axes[1].plot(different.mean(axis=1), at, marker, color=color, label=f"{distribution} inputs")
    axes[1].set(
        xscale="log", yticks=range(len(choices)), yticklabels=choices[::-1], xlabel="share of outputs whose bits differ"
    )
    axes[1].set(title=f"one part of the model changed, BF16, N = {rows.n.max()}")
    axes[1].grid(axis="x")
    axes[1].legend(loc="lower left")
    title = "Figure 2. The emulator is torch's CPU flash kernel, once its exponential is modelled"
    return captioned(figure, title, caption + POINTS)


def ruled(table, caption):
    """The rule of the field: largest errors in units of Baseline's own, every shape a point."""
    distributions, figure, axes = _panels(table, height=3.6)
    names, tensors = list(dict.fromkeys(table.kernel)), list(dict.fromkeys(table.tensor))
    rng = np.random.default_rng(0)
    for ax, distribution in zip(axes, distributions):
        for (name, color, marker), shift in zip(zip(names, (BASELINE, SOFTMAX, FLASH), "sDo"), (-0.25, 0, 0.25)):
            for i, tensor in enumerate(tensors):
                rows = table[(table.distribution == distribution) & (table.kernel == name) & (table.tensor == tensor)]
                at = i + shift + rng.uniform(-0.09, 0.09, len(rows))
                ax.plot(at, rows.ratio, marker, color=color, ms=3, alpha=0.5, mew=0, label=name if i == 0 else None)
        for i, tensor in enumerate(tensors):
            allowed = table.loc[table.tensor == tensor, "allowed"].iloc[0]
            ax.plot([i - 0.42, i + 0.42], [allowed] * 2, color="#333333", lw=1.2)
        ax.set(yscale="log", xticks=range(len(tensors)), xticklabels=tensors, title=INPUTS[distribution])
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes[0].set_ylabel("largest error / Baseline's")
    axes[-1].legend(loc="upper right", markerscale=2)
    title = "The rule of the field: at most twice Baseline's error (three times for gradients)"
    return captioned(figure, title, caption)


def precision(table, caption):
    """Figure 3: max difference Flash - Baseline in one format, against the format."""
    distributions, figure, axes = _panels(table, height=3.4)
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
        _format_axis(ax, formats, distribution)
    axes[0].set(ylabel="max |Flash − Baseline|", yscale="log", ylim=(1e-16, 1))
    axes[0].legend(loc="lower left")
    return captioned(
        figure, "Figure 3. More mantissa bits, less difference between Flash and Baseline", caption + POINTS
    )


def golden_value(table, caption):
    """Figure 4: max difference to the golden value in units of roundoff, Flash and both Baselines, by format."""
    distributions, figure, axes = _panels(table, height=3.8)
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
            values[kernel] = _in_roundoff(rows[rows.kernel == kernel], "fmt", "max").loc[formats]
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
        _format_axis(ax, formats, distribution)
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
    distributions, figure, axes = _panels(table, rows=2, height=5.8)
    for row, columns in enumerate((("max",), ("mean", "std"))):
        for ax, distribution in zip(axes[row], distributions):
            rows = table[
                (table.distribution == distribution) & (table.kernel == "flash") & (table.against == "baseline")
            ]
            for column in columns:
                for fmt, group in rows.groupby("fmt", sort=False):
                    values = _in_roundoff(group, "n", column)
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
                given = _in_roundoff(rows[rows.variant == "as given"], "area", "max")
                band(ax, given, color, "o", f"{distribution} inputs, tiles as given")
                if variant:
                    changed = _in_roundoff(rows[rows.variant == variant], "area", "max")
                    band(ax, changed, color, "s", f"{distribution} inputs, swapped or square", ls="--", mfc="white")
            ax.set(xscale="log", yscale="log")
            ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axes[0, column].set_title(f"{fmt}, u = {_power(fmt)}")
        axes[-1, column].set_xlabel("block area $B_r · B_c$")
    for ax, words in zip(axes[:, 0], ("(a) swapped", "(b) square", "(c) as given")):
        ax.set_ylabel(f"{words}\nmax |Flash − Baseline|\n(units of roundoff u)")
    axes[0, -1].legend(loc="lower left", fontsize=7)
    return captioned(
        figure, "Figure 6. Up to FP32 what counts is $B_c$: fewer K, V tiles, less difference", caption + BANDS
    )


def _panels(table, height, rows=1):
    distributions = list(dict.fromkeys(table.distribution))
    figure, axes = plt.subplots(
        rows, len(distributions), figsize=(4.6 * len(distributions), height), squeeze=False, sharey="row"
    )
    return distributions, figure, axes if rows > 1 else axes[0]


def by_seed(rows, index, value):
    """index x seeds."""
    return rows.pivot(index=index, columns="seed", values=value)


def _in_roundoff(rows, index, value):
    """index x seeds, in units of each row's format's unit roundoff."""
    scaled = rows[value] / rows.fmt.map(lambda fmt: Format.of(fmt).unit_roundoff)
    return by_seed(rows.assign(**{value: scaled}), index, value)


def dots(ax, x, values, color, marker, label, **style):
    for seed in values:
        ax.plot(x, values[seed], marker, color=color, ms=3.2, alpha=0.35, mew=0)
    ax.plot(
        x, values.mean(axis=1, skipna=False), color=color, marker=marker, label=label, **{"ms": 6, "ls": ""} | style
    )


def _format_axis(ax, formats, distribution):
    labels = [f"{fmt}\n{_power(fmt)}" for fmt in formats]
    ax.set(xticks=range(len(formats)), xticklabels=labels, xlim=(-0.5, len(formats) - 0.3))
    ax.set(title=INPUTS[distribution], xlabel="number format (unit roundoff u)")


def band(ax, values, color, marker, label, **style):
    values = values.sort_index()
    ax.fill_between(
        values.index, values.min(axis=1, skipna=False), values.max(axis=1, skipna=False), color=color, alpha=0.15, lw=0
    )
    ax.plot(
        values.index,
        values.mean(axis=1, skipna=False),
        color=color,
        marker=marker,
        ms=3.5,
        label=label,
        **{"lw": 1.3} | style,
    )


def _power(fmt):
    return f"$2^{{-{Format.of(fmt).precision}}}$"


def captioned(figure, title, caption):
    """The message above, every setting the paper leaves out below."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    caption = textwrap.fill(caption, width=int(17 * figure.get_figwidth()))
    figure.supxlabel(caption, x=0.01, ha="left", fontsize=7, color="#555555")
    return figure
