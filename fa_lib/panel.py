"""The panel of notebook 00: every choice a control, and what it does to the deviation, drawn at once."""

import math
from collections.abc import Iterator
from dataclasses import replace

import ipywidgets as widgets

from fa_lib.experiments.comparison import PRESETS, STEPS, Found, Setting, compare, formats_of_steps
from fa_lib.experiments.rule import ALLOWED
from fa_lib.formats import BF16, E4M3, E5M2, FP16, FP32, FP64, TF32, Format
from fa_lib.inputs import DISTRIBUTIONS
from fa_lib.kernels.algorithm import NAMES as ALGORITHMS
from fa_lib.plots.panel import COLORS, KERNELS, PRECISIONS, png
from fa_lib.precision import Precision
from fa_lib.tiling import Tiling

FORMATS = [f.name for f in (BF16, FP16, TF32, FP32, FP64, E4M3, E5M2)]
CONTROLS = {  # of the steps
    "inputs": "Q, K, V", "scores": "scores S", "exponent": "exponent", "probs": "probs P",
    "maximum": "maximum m", "factors": "factors", "row_sum": "row sum l", "accumulator": "accumulator O",
    "output": "output",
}  # fmt: skip
VERDICTS = {"passes": ("Passes", "#1b7837"), "fails": ("Fails", "#b2182b"), "silent": ("Outside", "#555555")}
BIASED = 3  # standard errors


def message(found: Found) -> str:
    """What a comparison says, in one line."""
    for key, d in found.deviations.items():
        if d.nonfinite:
            return f"{KERNELS[key]} gives {d.nonfinite:,} of {d.count:,} values that are NaN or infinite"
    if not found.measured:
        return "Baseline is the golden value itself"
    if 0.95 <= found.times < 1.05:
        return "Flash is as far as Baseline from the golden value"
    if found.times < 1:
        return f"Flash is nearer than Baseline to the golden value: {found.times:.2f} × its largest error"
    return f"Flash is {found.times:.1f} × further than Baseline from the golden value"


def reasons(setting: Setting, found: Found) -> Iterator[str]:
    """Sentences beside the verdict: what is carried from tile to tile, how often it is rescaled, and whether errors
    have a sign."""
    carried, flash = (setting.precision.accumulator, setting.precision.row_sum), found.deviations["flash"]
    low = any(fmt.precision < FP32.precision for fmt in carried)
    words = f"O in {carried[0]}, l in {carried[1]}: {'below FP32' if low else 'no less than kernels as shipped'}"
    if found.tiles == 1:
        yield f"One tile: nothing is carried or rescaled. It has {words}."
    else:
        yield f"From tile to tile it carries {words}."
        words = f"Of {found.tiles} tiles, {found.rescales:.1f} raise a row's maximum and rescale it (mean over rows)"
        yield words + ("; fa4 leaves out what is below 2⁸." if setting.algorithm == "fa4" else ".")
    ulp, away = 2 * setting.fmt.unit_roundoff, abs(flash.bias) / flash.bias_se if flash.bias_se else 0.0
    if math.isfinite(away):
        words = f"Mean signed error {flash.bias / ulp:+.3f} ± {flash.bias_se / ulp:.3f} ulp: "
        yield words + ("biased, for these K and V (compare seeds)." if away > BIASED else "no bias to be seen.")


def in_numbers(setting: Setting, found: Found) -> str:
    """Flash and Baseline in numbers, as HTML."""
    u = setting.fmt.unit_roundoff
    head = ("", "largest error", "99 % are below", "root mean square", "mean signed error", "not finite")
    rows = [
        [f"<b style='color:{COLORS[key]}'>{KERNELS[key]}</b>"]
        + [f"{size / u:.3g} u" for size in (d.max, d.p99, d.rmse)]
        + [f"{d.bias / u / 2:+.3f} ± {d.bias_se / u / 2:.3f} ulp", f"{d.nonfinite:,}"]
        for key, d in found.deviations.items()
    ]
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in [head, *rows])
    style = "<style>.fa-numbers td {padding: 0 14px 0 0; line-height: 1.5}</style>"
    return f"{style}<table class='fa-numbers'>{lines}</table>"


def in_words(setting: Setting, found: Found) -> str:
    """The verdict and its reasons, as HTML."""
    said, color = VERDICTS[found.verdict]
    rule = f"{said} the rule of the field: at most {ALLOWED['o']} × Baseline's largest error"
    return (
        f"<div class='fa-verdict' style='border-left: 6px solid {color}; padding-left: 10px; line-height: 1.45'>"
        f"<b style='color: {color}; font-size: 130%'>{rule}</b><br>{'<br>'.join(reasons(setting, found))}</div>"
    )


def explore() -> widgets.HBox:
    """The panel: controls on the left; verdict, picture and numbers on the right, made anew at every change.

    A preset sets every step; a step set by hand makes the preset "custom" where it agrees with none. Another format
    takes a preset's steps along, and of a custom kernel those that were in the old format.

    Returns:
        an ipywidgets box. Its `controls` are the widgets by name, its `picture` an Image.
    """
    groups = _controls(Setting())
    controls = {name: control for group in groups.values() for name, control in group.items()}
    above, picture, below = widgets.HTML(), widgets.Image(layout=dict(width="100%")), widgets.HTML()
    following = []  # holds a change while other controls follow it, so that all are one change and one picture

    def values():
        return {name: control.value for name, control in controls.items()}

    def show():
        now = read(values())
        found = compare(now)
        above.value, below.value = in_words(now, found), in_numbers(now, found)
        picture.value = png(now, found, message(found))

    def changed(change):
        if not following:
            following.append(change)
            name = next(name for name, control in controls.items() if control is change.owner)
            for other, value in follow(name, change.old, values()).items():
                controls[other].value = value
            following.clear()
            show()

    for control in controls.values():
        control.observe(changed, "value")
    show()
    left = []
    for heading, group in groups.items():
        left += [widgets.HTML(f"<b>{heading}</b>", layout=dict(height="24px")), *group.values()]
    right = widgets.VBox([above, picture, below], layout=dict(flex="1 1 0", max_width="920px", margin="0 0 0 16px"))
    panel = widgets.HBox([widgets.VBox(left, layout=dict(flex="none")), right])
    panel.controls, panel.picture = controls, picture
    return panel


def follow(name: str, old, values: dict) -> dict:
    """The other controls' values that a change of the one called `name` brings with it."""
    preset, fmt, now = values["preset"], values["fmt"], {step: values[step] for step in STEPS}
    if name in ("preset", "fmt") and preset in PRESETS:
        return formats_of_steps(PRESETS[preset](fmt))
    moved = {step: fmt for step in STEPS if now[step] == old} if name == "fmt" else {}
    return moved | {"preset": read(values | moved).preset} if name in ("fmt", *STEPS) else {}


def read(values: dict) -> Setting:
    """The Setting of the controls' values."""
    precision = replace(Precision.uniform(values["fmt"]), **{step: values[step] for step in STEPS})
    tiling = Tiling(values["block_q"], values["block_kv"])
    rest = {name: values[name] for name in ("algorithm", "n", "head_dim", "distribution", "seed", "causal")}
    return Setting(Format.of(values["fmt"]), precision, tiling=tiling, **rest)


def _controls(setting):
    """Rows of widgets by name: a heading, and the choices below it."""
    s, own, layout = setting, formats_of_steps(setting.precision), dict(width="272px", height="26px", margin="1px")
    common = dict(layout=layout, style=dict(description_width="96px"))

    def menu(label, options, value):
        return widgets.Dropdown(description=label, options=[*options], value=value, **common)

    def powers(label, low, high, value, tooltip=""):
        options = [2**i for i in range(low, high + 1)]
        return widgets.SelectionSlider(description=label, options=options, value=value, tooltip=tooltip, **common)

    inert = "Rows are independent: B_r cannot change the result, though the emulator does work on B_r rows at once."
    return {
        "The kernel": dict(
            preset=menu("precision", [(label, key) for key, label in PRECISIONS.items()], s.preset),
            fmt=menu("format", FORMATS, s.fmt.name),
            algorithm=menu("algorithm", ALGORITHMS, s.algorithm),
            block_kv=powers("keys B_c", 4, 10, s.tiling.block_kv),
            block_q=powers("rows B_r", 7, 10, s.tiling.block_q, inert),
        ),
        "Each step of it": {step: menu(CONTROLS[step], FORMATS, name) for step, name in own.items()},
        "The problem": dict(
            distribution=menu("inputs", DISTRIBUTIONS, s.distribution),
            n=powers("N", 7, 12, s.n),
            head_dim=powers("head_dim", 4, 8, s.head_dim),
            seed=widgets.IntSlider(description="seed", min=0, max=99, value=s.seed, **common),
            causal=widgets.Checkbox(description="causal", value=s.causal, **common),
        ),
    }
