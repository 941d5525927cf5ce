"""`fa-lib explain --kernel`: the weights of a kernel, in words and as a picture."""

import math
from itertools import product
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from attention_check.isolation.isolated_kernel import isolated, wait
from attention_check.measure.weights import Weights, weights
from attention_check.plots.wrong_rows import UNSEEN
from attention_check.probe.capture import captured
from attention_check.probe.named_tensors import Reading
from attention_check.report.page_files import PageFiles
from attention_check.report.weights_words import lines
from fa_lib.commands.errors import say
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.numerics.formats import Format
from fa_lib.plots.captions import captioned
from fa_lib.plots.style import styled

SPREAD = 2.0  # standard deviation of the scores of drawn inputs: wide enough for a softcap's curve
N_KV = 128
LARGEST = 2**23  # weights of a file's call, some 100 bytes of memory each
SHAPES = [*product((64, 128, 32, 576), ((4, 2, 96), (4, 4, 96), (4, 4, N_KV), (4, 1, 1), (4, 4, 1)))]


def explain_kernel(name: str, gpu: str, file: Path | None, reading: Reading, out: str) -> tuple[Weights, list[str]]:
    """Print what the weights of a kernel say, and draw them in the folder `out`, if there is one. q and k are a file's,
    or drawn in the first SHAPES that it takes. Returns the Weights, and the lines."""
    with isolated(KernelRef.of(name, gpu)) as kernel:
        wait(kernel)
        w = _of_file(kernel, file, reading) if file else _of_drawn(kernel, reading)
    read = lines(w)
    say("\n".join(read))
    if out:
        path = PageFiles.of(out, f"{kernel.label}_weights").page.with_suffix(".png")
        path.parent.mkdir(parents=True, exist_ok=True)
        title = read[(w.times > 1).any()].strip()
        weights_figure(w, title, f"{kernel.label}. V: rows of the identity.").savefig(path, dpi=150)
        say(f"{path}")
    return w, read


def _of_file(kernel, file, reading):
    call = captured(file, reading).in_four_dimensions()
    if (count := math.prod(call.q.shape[:3]) * call.k.shape[2]) > LARGEST:
        few = f"save a call of at most {call.v.shape[-1]} keys and {call.q.shape[-1]} queries"
        raise ValueError(f"{file}: has {count:,} weights; accepted are {LARGEST:,}: {few}")
    return weights(kernel, call.q, call.k, call.v.shape[-1], **call.options)


def _of_drawn(kernel, reading):
    if reading.layout != "bhsd" or reading.allow_large:
        raise ValueError("layout, allow_large: got one for drawn inputs; accepted is a file with it")
    problems = []
    for head_dim, (heads, kv_heads, n_q) in SHAPES:
        q, k, _ = draw("normal", 0, (1, heads, n_q, head_dim), (1, kv_heads, N_KV, head_dim))
        q, k = (x.to(Format.of(reading.fmt or "BF16").dtype) for x in (SPREAD * q, k))
        try:
            return weights(kernel, q, k, **reading.options({}))
        except ValueError as error:
            problems.append(error)
    raise problems[0]


@styled
def weights_figure(w: Weights, title: str, caption: str) -> Figure:
    """Draw P of the head that is furthest off, expected and measured, and their ratio: keys across, rows down."""
    head = int(w.times.flatten(1).amax(1).argmax())
    expected, measured = (np.ma.masked_less_equal(x[head].nan_to_num().numpy(), 0) for x in (w.expected, w.measured))
    ratio = np.ma.masked_array(measured.filled(0) / expected.filled(1e-9), measured.mask & expected.mask)
    figure, axes = plt.subplots(1, 3, figsize=(11.4, 4.2), sharey=True, layout="constrained")
    of_weights, of_ratios = (1e-4, 1e-3, 1e-2, 1e-1, 1), (0.25, 0.5, 1, 2, 4)
    for ax, p, name, colors, ticks, label in zip(
        axes, (expected, measured, ratio), ("expected", "measured", "measured / expected"),
        ("YlGnBu", "YlGnBu", "RdBu_r"), (of_weights, of_weights, of_ratios),
        ("", "weight (grey: 0)", "ratio (grey: 0 / 0)"),
    ):  # fmt: skip
        norm, cmap = LogNorm(ticks[0], ticks[-1]), plt.get_cmap(colors).with_extremes(bad=UNSEEN)
        image = ax.imshow(p.clip(1e-12, 1e12), norm=norm, cmap=cmap, aspect="auto", interpolation="nearest")
        ax.set(title=f"{name}, head {head}", xlabel="key")
        ax.grid(visible=False)
        if label:  # the first has the colours of the second
            bar = figure.colorbar(image, ax=ax, label=label, ticks=ticks, format="%g", extend="both")
            bar.minorticks_off()
    axes[0].set_ylabel("row")
    return captioned(figure, title, caption)
