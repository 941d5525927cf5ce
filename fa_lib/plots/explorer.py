"""The panel of notebook tutorials/panel: a control for each choice, and its effect on the deviation, drawn at once."""

import io
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import ipywidgets as widgets
import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fa_lib.experiments.problem import Problem
from fa_lib.kernels.algorithm import NAMES as ALGORITHMS
from fa_lib.kernels.inputs import DISTRIBUTIONS
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.rule import ALLOWED
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import BF16, E4M3, E5M2, FP16, FP32, FP64, TF32, Format
from fa_lib.numerics.metrics import Deviation, deviation, over_baseline
from fa_lib.plots.captions import captioned
from fa_lib.plots.style import BASELINE, FLASH, no_minor_ticks, plain_ticks, styled

FORMATS = [f.name for f in (BF16, FP16, TF32, FP32, FP64, E4M3, E5M2)]
STEPS = {  # of a forward pass -> label
    "inputs": "Q, K, V", "scores": "scores S", "exponent": "exponent", "probs": "probs P", "maximum": "maximum m",
    "factors": "factors", "row_sum": "row sum l", "accumulator": "accumulator O", "output": "output",
}  # fmt: skip
PRESETS = {  # of all steps, in a format
    "every step": Precision.uniform,
    "sums in FP32": lambda fmt: replace(Precision.uniform(fmt), row_sum=FP32, accumulator=FP32),
    "as shipped": Precision.kernel,
}
COLORS, GROUPS = {"Flash": FLASH, "Baseline": BASELINE}, 32  # groups of neighbouring rows, whose means make a line


def explore() -> widgets.HBox:
    """Build the panel: the controls, and beside them the picture, drawn again at every change.

    A preset or a format sets all steps; each step can then be changed by itself.

    Returns:
        An ipywidgets box. Its `controls` are the widgets by name, its `picture` an Image.
    """
    controls, picture = _controls(), widgets.Image(layout=dict(width="100%"))

    def values():
        return {name: control.value for name, control in controls.items()}

    def show(change=None):
        if change and change.owner in (controls["preset"], controls["fmt"]):
            formats = PRESETS[controls["preset"].value](controls["fmt"].value)
            for step in STEPS:  # all at once: one change, one picture
                controls[step].unobserve(show, "value")
                controls[step].value = getattr(formats, step).name
                controls[step].observe(show, "value")
        picture.value = png(values())

    for control in controls.values():
        control.observe(show, "value")
    menus = widgets.VBox([*controls.values()], layout=dict(flex="none", width="230px"))
    panel: Any = widgets.HBox([menus, picture])
    panel.controls, panel.picture = controls, picture
    show()
    return panel


def _controls() -> dict[str, Any]:
    """Make the widgets by name, at figure 4's setting with half its N."""

    def menu(label, options, value):
        return widgets.Dropdown(description=label, options=[*options], value=value, **look)

    def powers(label, low, high, value):
        options = [2**i for i in range(low, high + 1)]
        return widgets.SelectionSlider(description=label, options=options, value=value, **look)

    look: dict[str, Any] = dict(layout=dict(width="100%"), style=dict(description_width="92px"))
    return dict(
        preset=menu("precision", PRESETS, "every step"), fmt=menu("format", FORMATS, "BF16"),
        **{step: menu(label, FORMATS, "BF16") for step, label in STEPS.items()},
        algorithm=menu("algorithm", ALGORITHMS, "fa1"), block_kv=powers("keys B_c", 4, 10, 64),
        distribution=menu("inputs", DISTRIBUTIONS, "uniform"), n=powers("N", 7, 12, 1024),
        head_dim=powers("head_dim", 4, 8, 64), seed=widgets.IntSlider(0, 0, 99, description="seed", **look),
        causal=widgets.Checkbox(False, description="causal", **look),
    )  # fmt: skip


def precision_of(values: Mapping[str, Any]) -> Precision:
    """Make Flash's Precision of the controls' values, name -> value."""
    return replace(Precision.uniform(values["fmt"]), **{step: values[step] for step in STEPS})


def compare(values: Mapping[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, Deviation]]:
    """Compute the errors of Flash and Baseline to the golden value, which takes the inputs as the kernel does.

    Args:
        values: name -> value of the controls.

    Returns:
        "Flash" and "Baseline" -> out - golden, float64 (n, head_dim); and the same -> the Deviation.
    """
    problem = _problem(*(values[name] for name in ("distribution", "seed", "n", "head_dim", "causal")))
    precision, fmt = precision_of(values), Format.of(values["fmt"])
    outs = {
        "Flash": (problem.tiled(Tiling(128, values["block_kv"]), precision, values["algorithm"]), precision.inputs),
        "Baseline": (problem.reference(Precision.materialized(fmt)), fmt),
    }
    golden = {name: problem.golden_of(inputs) for name, (_, inputs) in outs.items()}
    errors = {name: (out - golden[name])[0, 0] for name, (out, _) in outs.items()}
    return errors, {name: deviation(out, golden[name], fmt) for name, (out, _) in outs.items()}


@lru_cache(4)  # where one control is moved back and forth, a problem keeps what the control does not change
def _problem(distribution, seed, n, head_dim, causal):
    return Problem.drawn(distribution, seed, n, n, head_dim=head_dim, causal=causal)


def message(deviations: Mapping[str, Deviation]) -> str:
    """Say in one line how far Flash is from the golden value, over Baseline, and what the rule says of it."""
    for name, d in deviations.items():
        if d.nonfinite:
            return f"{name} gives {d.nonfinite:,} of {d.count:,} values that are NaN or infinite"
    if not deviations["Baseline"].max:
        return "Baseline is the golden value itself"
    times = over_baseline(deviations["Flash"].max, deviations["Baseline"].max)
    return f"{'Passes' if times <= ALLOWED['o'] else 'Fails'}: Flash has {times:.1f} times Baseline's largest error"


def setting_line(values: Mapping[str, Any]) -> str:
    """Write the controls' values in one line."""
    others: dict[str, list[str]] = {}
    for step in STEPS:
        if values[step] != values["fmt"]:
            others.setdefault(values[step], []).append(step)
    steps = "; ".join([values["fmt"], *(f"{', '.join(names)} {fmt}" for fmt, names in others.items())])
    inputs = f"{values['distribution']} inputs, seed {values['seed']}{', causal' if values['causal'] else ''}"
    tiles = f"{values['algorithm']}, B_c = {values['block_kv']}"
    return f"{steps}; {tiles}; N = {values['n']}, d = {values['head_dim']}, {inputs}"


@styled
def picture(values: Mapping[str, Any]) -> Figure:
    """Draw errors in units of the format's roundoff u: left each row's largest by position, right all signed ones."""
    (errors, deviations), fmt, n = compare(values), Format.of(values["fmt"]), values["n"]
    u, figure = fmt.unit_roundoff, Figure(figsize=(6.6, 3.6), dpi=170, layout="none")  # pyright: ignore
    FigureCanvasAgg(figure)
    # fixed margins: finding them takes longer than drawing
    left, right = figure.subplots(1, 2, gridspec_kw=dict(left=0.08, right=0.985, bottom=0.27, top=0.84, wspace=0.24))
    reach = max([x[x.isfinite()].abs().max().item() / u for x in errors.values() if x.isfinite().any()], default=0) or 1
    reach = 2.0 ** math.ceil(math.log2(reach))  # it stays where a control moves a little
    bins = np.linspace(-reach, reach, 82)
    for name, color in COLORS.items():
        x = errors[name] / u  # (n, head_dim)
        rows = x.abs().amax(-1)  # (n,)
        left.plot(rows, ".", color=color, ms=2.4, mew=0, alpha=0.45)
        means = [group.mean() for group in rows.chunk(GROUPS)]
        left.plot((np.arange(len(means)) + 0.5) * n / len(means), means, color=color, label=name)
        share = np.histogram(x[x.isfinite()], bins)[0] / x.numel()
        right.stairs(share, bins, color=color, fill=name == "Flash", alpha=0.55 if name == "Flash" else 1, lw=1.6)
    left.set(yscale="log", xlim=(0, n), ylim=(reach / 1000, 2 * reach), xlabel="position of the query")
    right.set(yscale="log", xlim=(-reach, reach), ylim=(0.7 / errors["Flash"].numel(), 1), xlabel="signed error (u)")
    left.set_title("largest error of each row (u)")
    right.set_title("share of outputs by error")
    left.legend(loc="upper right")
    for ax in (left, right):
        no_minor_ticks(ax.yaxis)
        plain_ticks(ax.yaxis)
    numbers = "; ".join(
        f"{name} {d.max / u:.3g} u at most, rms {d.rmse / u:.2g} u, mean {d.bias / u:+.3f} ± {d.bias_se / u:.3f} u"
        for name, d in deviations.items()
    )
    words = f"{setting_line(values)}. Errors to the golden value: {numbers}. u = 2^-{fmt.precision}. Lines: means of "
    return captioned(figure, message(deviations), f"{words}rows. Our rule allows {ALLOWED['o']} times.")


def png(values: Mapping[str, Any]) -> bytes:
    """Draw the picture as the bytes of a PNG file, with its message and the setting in its `Description`."""
    file, drawn = io.BytesIO(), picture(values)
    metadata = {"Description": f"{drawn.get_suptitle()}; {setting_line(values)}"}
    drawn.canvas.print_png(file, metadata=metadata, pil_kwargs=dict(compress_level=1))  # pyright: ignore
    return file.getvalue()
