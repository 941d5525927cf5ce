"""The panel of notebook 00: a control for each choice, and its effect on the deviation, drawn at once."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ipywidgets as widgets
from IPython import get_ipython
from IPython.display import Javascript, display

from fa_lib.experiments.comparison import (
    PRESETS,
    STEPS,
    Comparison,
    ExplorerSettings,
    compare,
    formats_of_steps,
    products_for,
)
from fa_lib.kernels.algorithm import NAMES as ALGORITHMS
from fa_lib.kernels.inputs import DISTRIBUTIONS
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.rule import ALLOWED
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import BF16, E4M3, E5M2, FP16, FP32, FP64, TF32, Format
from fa_lib.plots.explorer_picture import COLORS, KERNELS, PRECISIONS, caption, png

FORMATS = [f.name for f in (BF16, FP16, TF32, FP32, FP64, E4M3, E5M2)]
CONTROLS = {  # of the steps
    "inputs": "Q, K, V", "scores": "scores S", "exponent": "exponent", "probs": "probs P",
    "maximum": "maximum m", "factors": "factors", "row_sum": "row sum l", "accumulator": "accumulator O",
    "output": "output",
}  # fmt: skip
SUMS = ("row_sum", "accumulator")  # that are carried from tile to tile; the menu "sums in" sets both
APART = "apart"  # its value where they differ
LONGEST = 1024  # N where products are not summed exactly: it takes as long as four times that N where they are
PRODUCTS = {"exact": "exact", "wide": "in order, wide", "narrow": "in order, narrow"}  # and GPUs by name
VERDICTS = {"passes": ("Passes", "#1b7837"), "fails": ("Fails", "#b2182b"), "silent": ("Outside", "#555555")}
BIASED = 3  # standard errors
IN_VIEW = Path(__file__).with_suffix(".js").read_text()
STYLE = f"<style>\n{Path(__file__).with_suffix('.css').read_text()}</style>"


def message(result: Comparison) -> str:
    """Say in one line how far Flash and Baseline are from the golden value."""
    for key, d in result.deviations.items():
        if d.nonfinite:
            return f"{KERNELS[key]} gives {d.nonfinite:,} of {d.count:,} values that are NaN or infinite"
    if not result.measured:
        return "Baseline is the golden value itself"
    if 0.95 <= result.times < 1.05:
        return "Flash is as far as Baseline from the golden value"
    if result.times < 1:
        return f"Flash is nearer than Baseline to the golden value: {result.times:.2f} × its largest error"
    return f"Flash is {result.times:.1f} × further than Baseline from the golden value"


def reasons(setting: ExplorerSettings, result: Comparison) -> Iterator[str]:
    """Yield the sentences beside the verdict: the formats that O and l are carried in, how often they are rescaled, and
    whether errors have a sign."""
    sums, flash = (setting.precision.accumulator, setting.precision.row_sum), result.deviations["flash"]
    low = any(fmt.precision < FP32.precision for fmt in sums)
    words = f"O in {sums[0]}, l in {sums[1]}: {'below FP32' if low else 'no less than kernels as shipped'}"
    if result.tiles == 1:
        yield f"One tile: nothing is carried or rescaled. It has {words}."
    else:
        yield f"From tile to tile it carries {words}."
        words = f"Of {result.tiles} tiles, {result.rescales:.1f} raise a row's maximum and rescale it (mean over rows)"
        yield words + ("; fa4 leaves out what is below 2⁸." if setting.algorithm == "fa4" else ".")
    ulp, away = 2 * setting.fmt.unit_roundoff, abs(flash.bias) / flash.bias_se if flash.bias_se else 0.0
    if math.isfinite(away):
        words = f"Mean signed error {flash.bias / ulp:+.3f} ± {flash.bias_se / ulp:.3f} ulp: "
        yield words + ("biased, for these K and V (compare seeds)." if away > BIASED else "no bias to be seen.")


def in_numbers(setting: ExplorerSettings, result: Comparison) -> str:
    """Write the errors of Flash and Baseline as an HTML table, with the picture's caption."""
    u = setting.fmt.unit_roundoff
    head = ("", "largest error", "99 % below", "rms", "mean signed error", "not finite")
    rows = [
        [f"<i style='background:{COLORS[key]}'></i><b>{KERNELS[key]}</b>"]
        + [f"{size / u:.3g} u" for size in (d.max, d.p99, d.rmse)]
        + [f"{d.bias / u / 2:+.3f} ± {d.bias_se / u / 2:.3f} ulp", f"{d.nonfinite:,}"]
        for key, d in result.deviations.items()
    ]
    heads = "".join(f"<th>{cell}</th>" for cell in head)
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    table = f"<table class='fa-numbers'><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>"
    return f"{table}<div class='fa-caption'>{caption(setting)}</div>"


def verdict_html(setting: ExplorerSettings, result: Comparison) -> str:
    """Write the verdict and its reasons as HTML."""
    word, color = VERDICTS[result.verdict]
    rule = f"Our rule: at most {ALLOWED['o']} × Baseline's largest error."
    items = "".join(f"<li>{sentence}</li>" for sentence in (rule, *reasons(setting, result)))
    return (
        f"<div class='fa-head' role='status'><span class='fa-verdict' style='background: {color}'>{word}</span>"
        f"<span>{message(result)}</span></div><ul class='fa-reasons'>{items}</ul>"
    )


def explore() -> widgets.VBox:
    """Build the panel: the verdict, below it the problem; then the kernel's controls, and beside them the picture and
    the numbers, computed again at every change.

    A preset sets every step, and "sums in" sets those of SUMS. A step set by hand makes the preset "custom" where no
    preset has these formats. With another format, a preset's steps change along; in a custom kernel, those that were in
    the old format do. The menu of products has the ways that fit the formats of Q, K, V and P; all but exact ones are
    for N up to LONGEST.

    Returns:
        An ipywidgets box. Its `controls` are the widgets by name, its `picture` an Image. It has the class fa-working
        while it computes.
    """
    groups = _controls(ExplorerSettings())
    controls = {name: control for group in groups.values() for name, control in group.items()}
    above, picture, below = widgets.HTML(), widgets.Image(layout=dict(width="100%")), widgets.HTML()
    following = []  # holds a change while other controls follow it, so that all are one change and one picture

    def values():
        return {name: control.value for name, control in controls.items()}

    def show():
        panel.add_class("fa-working")
        try:
            now = read(values())
            result = compare(now)
            above.value, below.value = verdict_html(now, result), in_numbers(now, result)
            picture.value = png(now, result)
        finally:
            panel.remove_class("fa-working")

    def changed(change):
        if not following:
            following.append(change)
            name = next(name for name, control in controls.items() if control is change.owner)
            for other, value in follow(name, change.old, values()).items():
                controls[other].value = value
            chosen, controls["products"].options = controls["products"].value, offered(values())
            controls["products"].value = chosen
            following.clear()
            show()

    for control in controls.values():
        control.observe(changed, "value")
    problem = groups.pop("The problem")
    kernel = []
    for heading, group in groups.items():
        kernel += [widgets.HTML(f"<b>{heading}</b>"), *group.values()]
    busy = widgets.HTML("<span>computing …</span>")
    busy.add_class("fa-busy")
    panel: Any = _box(
        widgets.VBox, "fa-panel", [
            widgets.HTML(STYLE, layout=dict(height="0", margin="0")),
            _box(widgets.VBox, "fa-above", [above, busy]),
            _box(widgets.HBox, "fa-problem", [widgets.HTML("<b>The problem</b>"), *problem.values()]),
            _box(widgets.HBox, "fa-body", [
                _box(widgets.VBox, "fa-kernel", kernel), _box(widgets.VBox, "fa-found", [picture, below]),
            ]),
        ],
    )  # fmt: skip
    panel.controls, panel.picture = controls, picture
    show()
    if get_ipython() is not None:
        display(Javascript(IN_VIEW))
    return panel


def _box(kind, name, children):
    box = kind(children)
    box.add_class(name)
    return box


def follow(name: str, old, values: dict) -> dict:
    """Compute how the other controls change with one of them.

    Args:
        name: of the control that changed.
        old: its value before.
        values: name -> value of all controls, after the change.

    Returns:
        dict of name -> new value, of the other controls that change.
    """
    preset, fmt, now = values["preset"], values["fmt"], {step: values[step] for step in STEPS}
    changes: dict = {}
    if name in ("preset", "fmt") and preset in PRESETS:
        changes = formats_of_steps(PRESETS[preset](fmt))
    elif name == "fmt":
        changes = {step: fmt for step in STEPS if now[step] == old}
    elif name == "sums" and values["sums"] != APART:
        changes = dict.fromkeys(SUMS, values["sums"])
    if name in ("fmt", "sums", *STEPS):
        changes["preset"] = read(values | changes | {"products": "exact"}).preset
    now |= changes
    if values["products"] not in products_for(now["inputs"], now["probs"]) or name == "n" and values["n"] > LONGEST:
        changes["products"] = "exact"
    elif name == "products" and values["products"] != "exact" and values["n"] > LONGEST:
        changes["n"] = LONGEST
    sums = {now[step] for step in SUMS}
    all_changes = changes | {"sums": sums.pop() if len(sums) == 1 else APART}
    return {other: value for other, value in all_changes.items() if value != values[other]}


def offered(values: dict) -> list[tuple[str, str]]:
    """List the menu of how products are summed, (label, key), for the controls' values."""
    return [(PRODUCTS.get(key, key), key) for key in products_for(values["inputs"], values["probs"])]


def read(values: dict) -> ExplorerSettings:
    """Make the ExplorerSettings of the controls' values, name -> value."""
    products = products_for(values["inputs"], values["probs"])[values["products"]]
    steps = {step: values[step] for step in STEPS}
    precision = replace(Precision.uniform(values["fmt"]), **steps, products=products)
    tiling = Tiling(values["block_q"], values["block_kv"])
    others = {name: values[name] for name in ("algorithm", "n", "head_dim", "distribution", "seed", "causal")}
    return ExplorerSettings(Format.of(values["fmt"]), precision, tiling=tiling, **others)


def _controls(setting):
    """Make groups of widgets: heading -> {name: widget}."""
    s, own = setting, formats_of_steps(setting.precision)

    def common(label, width):
        return dict(description=label, layout=dict(width=width), style=dict(description_width="initial"))

    def menu(label, options, value, width="auto", tooltip=""):
        return widgets.Dropdown(options=[*options], value=value, tooltip=tooltip, **common(label, width))

    def powers(label, low, high, value, tooltip="", width="auto"):
        options = [2**i for i in range(low, high + 1)]
        return widgets.SelectionSlider(options=options, value=value, tooltip=tooltip, **common(label, width))

    tip = "How Q Kᵀ and P V are summed, in Flash and in Baseline: exactly, in order, or as a GPU's tensor core does."
    rows_tip = "Rows are independent: B_r cannot change the result, though the emulator does work on B_r rows at once."
    groups = {
        "The kernel": dict(
            preset=menu("precision", [(label, key) for key, label in PRECISIONS.items()], s.preset),
            fmt=menu("format", FORMATS, s.fmt.name),
            sums=menu("sums in", [*zip(FORMATS, FORMATS), ("one each", APART)], s.precision.accumulator.name),
            products=menu("products", offered(own), "exact", tooltip=tip),
            algorithm=menu("algorithm", ALGORITHMS, s.algorithm),
            block_kv=powers("keys B_c", 4, 10, s.tiling.block_kv),
            block_q=powers("rows B_r", 7, 10, s.tiling.block_q, rows_tip),
        ),
        "Each step of it": {step: menu(CONTROLS[step], FORMATS, name) for step, name in own.items()},
        "The problem": dict(
            distribution=menu("inputs", DISTRIBUTIONS, s.distribution, "150px"),
            n=powers("N", 7, 12, s.n, width="140px"),
            head_dim=powers("head_dim", 4, 8, s.head_dim, width="168px"),
            seed=widgets.IntSlider(min=0, max=99, value=s.seed, **common("seed", "136px")),
            causal=widgets.Checkbox(value=s.causal, indent=False, **common("causal", "64px")),
        ),
    }  # fmt: skip
    for group in ("The kernel", "Each step of it"):
        for control in groups[group].values():
            control.style.description_width = "92px"
    return groups
