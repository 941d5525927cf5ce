"""The figures' style: colours, markers, and the marks that every figure draws its numbers with."""

from pathlib import Path

import matplotlib.pyplot as plt
import seaborn

from fa_lib.formats import Format

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


BASELINE_LABEL = "Baseline, softmax inside in FP32"


SOFTMAX_LABEL = "Baseline, softmax in the format too"


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
