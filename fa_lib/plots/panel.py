"""The picture of notebook 00's panel, drawn fast: errors of Flash and of Baseline by position, and their histograms."""

import io
import math
import textwrap

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from fa_lib.plots.style import BASELINE, FLASH

COLORS = {"Flash": FLASH, "Baseline": BASELINE}


GROUPS = 32  # of neighbouring rows, whose means make a line


def picture(setting, found, title):
    """Left: each row's largest error by position. Right: all signed errors. In units of the format's roundoff u."""
    u = setting.fmt.unit_roundoff
    figure = Figure(figsize=(7.8, 3.5), dpi=150, layout="none")  # fixed margins: finding them takes longer than drawing
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, gridspec_kw=dict(left=0.06, right=0.985, bottom=0.225, top=0.82, wspace=0.2))
    errors = {name: error / u for name, error in found.errors.items()}  # (n, head_dim)
    values = torch.cat([x[x.isfinite()] for x in errors.values()])
    reach = snapped(values.abs().max().item() if len(values) else 0.0)
    bins, lines = np.linspace(-reach, reach, 82), {}
    for name, color in COLORS.items():
        rows = errors[name].abs().amax(-1)  # (n)
        lines[name] = torch.stack([group.mean() for group in rows.chunk(GROUPS)])
        left.plot(rows, ".", color=color, ms=2.4, mew=0, alpha=0.45)
        left.plot((np.arange(GROUPS) + 0.5) * setting.n / GROUPS, lines[name], color=color)
        share = np.histogram(errors[name][errors[name].isfinite()], bins)[0] / errors[name].numel()
        filled = name == "Flash"
        right.stairs(share, bins, color=color, fill=filled, alpha=0.55 if filled else 1, lw=1.6)
    for name, other in (("Flash", "Baseline"), ("Baseline", "Flash")):
        end, below = lines[name][-1], lines[name][-1] < lines[other][-1]
        left.annotate(name, (1, end), (-2, -16 if below else 9), ("axes fraction", "data"), "offset points",
                      color=COLORS[name], ha="right", fontweight="bold", annotation_clip=True)  # fmt: skip
    drawn = torch.cat([*lines.values()])
    drawn = drawn[drawn.isfinite() & (drawn > 0)]
    low = 10 ** math.floor(math.log10(drawn.min() / 2)) if len(drawn) else reach / 100
    left.set(yscale="log", xlim=(0, setting.n), ylim=(low, 2 * reach), xlabel="position of the query")
    right.set(yscale="log", xlim=(-reach, reach), ylim=(0.7 / found.errors["Flash"].numel(), 1))
    left.set_title("largest |O − golden value| of each row, in u")
    right.set(title="share of outputs by O − golden value, in u", xlabel="signed error (u)")
    for ax in (left, right):
        ax.yaxis.set_minor_locator(NullLocator())
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        ax.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    figure.suptitle(title, x=0.01, ha="left", fontsize=11.5, fontweight="bold")
    words = (
        f"u = $2^{{-{setting.fmt.precision}}}$. Points: rows; lines: means of {setting.n // GROUPS} rows. {setting}."
    )
    caption = textwrap.fill(words, width=150)
    figure.text(0.01, 0.015, caption, fontsize=7, color="#555555")
    return figure


def snapped(x):
    """The next of 1, 2, 5 times a power of ten: a limit that stays where it is while a control moves a little."""
    power = 10.0 ** math.floor(math.log10(x)) if x > 0 else 1.0
    return next(step * power for step in (1, 2, 5, 10) if step * power >= x)


def png(setting, found, title):
    """The picture as bytes of a PNG file, which says in its `Description` what it shows."""
    file = io.BytesIO()
    shown = {"Description": str(setting)}
    picture(setting, found, title).canvas.print_png(file, metadata=shown, pil_kwargs=dict(compress_level=1))
    return file.getvalue()
