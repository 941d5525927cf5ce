"""The picture of notebook 00's panel, drawn fast: errors of Flash and of Baseline by position, and their histograms."""

import io
import math

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fa_lib.experiments.comparison import Comparison, ExplorerSettings
from fa_lib.numerics.dots import EXACT, Dot, Ordered
from fa_lib.numerics.tensor_cores import TensorCore
from fa_lib.plots.style import BASELINE, FLASH, no_minor_ticks, plain_ticks, styled

KERNELS, COLORS = {"flash": "Flash", "baseline": "Baseline"}, {"flash": FLASH, "baseline": BASELINE}
PRECISIONS = {"every_step": "every step", "as_shipped": "as shipped", "custom": "custom"}
GROUPS = 32  # of neighbouring rows, whose means make a line


def summed(products: Dot) -> str:
    """Say in a few words how a Dot sums products."""
    if isinstance(products, TensorCore):
        return f"by {products.unit}'s tensor core"
    return f"in order, in {products.fmt}" if isinstance(products, Ordered) else "exactly"


def setting_line(setting: ExplorerSettings) -> str:
    """Write a setting in one line."""
    s, (nearest, changed) = setting, setting.nearest_preset
    flash = ", ".join([PRECISIONS[nearest], *(f"{step} {fmt}" for step, fmt in changed.items())])
    flash += "" if s.precision.products == EXACT else f"; products summed {summed(s.precision.products)}"
    inputs = f"{s.distribution} inputs, seed {s.seed}{', causal' if s.causal else ''}"
    tiles = f"B_r = {s.tiling.block_q}, B_c = {s.tiling.block_kv}"
    return f"{s.fmt}; Flash: {flash}; {s.algorithm}, {tiles}; N = {s.n}, d = {s.head_dim}, {inputs}"


@styled
def picture(setting: ExplorerSettings, result: Comparison) -> Figure:
    """Draw errors in units of the format's roundoff u: left each row's largest by position, right all signed ones."""
    u = setting.fmt.unit_roundoff
    # fixed margins: finding them takes longer than drawing; matplotlib's stub of Figure lacks its own "none"
    figure = Figure(figsize=(6.6, 2.9), dpi=170, layout="none")  # pyright: ignore[reportArgumentType]
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, gridspec_kw=dict(left=0.06, right=0.985, bottom=0.155, top=0.905, wspace=0.22))
    errors = {key: error / u for key, error in result.errors.items()}  # (n, head_dim)
    values = torch.cat([x[x.isfinite()] for x in errors.values()])
    reach = snapped(values.abs().max().item() if len(values) else 0.0)
    bins, lines = np.linspace(-reach, reach, 82), {}
    for key, color in COLORS.items():
        rows = errors[key].abs().amax(-1)  # (n)
        lines[key] = torch.stack([group.mean() for group in rows.chunk(GROUPS)])
        left.plot(rows, ".", color=color, ms=2.4, mew=0, alpha=0.45)
        left.plot((np.arange(GROUPS) + 0.5) * setting.n / GROUPS, lines[key], color=color)
        share = np.histogram(errors[key][errors[key].isfinite()], bins)[0] / errors[key].numel()
        filled = key == "flash"
        right.stairs(share, bins, color=color, fill=filled, alpha=0.55 if filled else 1, lw=1.6)
    for key, other in (("flash", "baseline"), ("baseline", "flash")):
        end, below = lines[key][-1], lines[key][-1] < lines[other][-1]
        left.annotate(KERNELS[key], (1, end), (-2, -16 if below else 9), ("axes fraction", "data"), "offset points",
                      color=COLORS[key], ha="right", fontweight="bold", annotation_clip=True)  # fmt: skip
    line_values = torch.cat([*lines.values()])
    line_values = line_values[line_values.isfinite() & (line_values > 0)]
    low = 10 ** math.floor(math.log10(line_values.min() / 2)) if len(line_values) else reach / 100
    left.set(yscale="log", xlim=(0, setting.n), ylim=(low, 2 * reach), xlabel="position of the query")
    right.set(yscale="log", xlim=(-reach, reach), ylim=(0.7 / result.errors["flash"].numel(), 1))
    left.set_title("largest error of each row, in u")
    right.set(title="share of outputs by error, in u", xlabel="signed error (u)")
    for ax in (left, right):
        no_minor_ticks(ax.yaxis)
        plain_ticks(ax.yaxis)
        ax.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    return figure


def caption(setting: ExplorerSettings) -> str:
    """Write the picture's caption, a line or two of HTML."""
    marks = f"Points: rows; lines: means of {setting.n // GROUPS} rows"
    return f"Error: O − golden value, u = 2<sup>−{setting.fmt.precision}</sup>. {marks}. {setting_line(setting)}."


def snapped(x: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten: a limit that does not change while a control moves a little."""
    ten = 10.0 ** math.floor(math.log10(x)) if x > 0 else 1.0
    return next(step * ten for step in (1, 2, 5, 10) if step * ten >= x)


@styled
def png(setting: ExplorerSettings, result: Comparison) -> bytes:
    """Draw the picture as the bytes of a PNG file, with the setting in its `Description`."""
    file = io.BytesIO()
    metadata = {"Description": setting_line(setting)}
    picture(setting, result).canvas.print_png(file, metadata=metadata, pil_kwargs=dict(compress_level=1))
    return file.getvalue()
