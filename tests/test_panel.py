"""The panel of notebook 00 without a browser: it finds what the library finds, and draws each change once."""

import io
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from fa_lib import BF16, FP32, Precision, Tiling, deviation
from fa_lib.experiments.comparison import STEPS, ExplorerSettings, compare, products_for
from fa_lib.kernels.rule import ALLOWED
from fa_lib.plots import explorer
from fa_lib.plots.explorer import APART, explore, follow, in_numbers, message, read, verdict_html
from fa_lib.plots.explorer_picture import PRECISIONS, png, setting_line

SMALL, NORMAL = ExplorerSettings(n=256), dict(distribution="normal")


def with_steps(setting, **formats):
    return replace(setting, precision=replace(setting.precision, **formats))


def shown(box):
    return Image.open(io.BytesIO(box.picture.value)).text["Description"]


def test_what_the_notebook_says_to_try():
    """What is carried decides, and no other step does; normal inputs and fewer tiles are kinder. It says how much."""
    first = ExplorerSettings()
    carried = with_steps(first, accumulator=FP32, row_sum=FP32)
    tried = [compare(each) for each in (first, carried, *(replace(first, **c) for c in (NORMAL, dict(n=2048))))]
    assert [each.verdict for each in tried] == ["fails", "passes", "passes", "fails"]
    assert [round(each.times, 1) for each in tried] == [7.4, 0.9, 1.9, 11.4]
    for step in STEPS:
        assert compare(with_steps(first, **{step: FP32})).verdict == "fails"
        shipped = with_steps(replace(first, precision=Precision.kernel(BF16)), **{step: BF16})
        assert compare(shipped).verdict == ("fails" if step in ("accumulator", "row_sum") else "passes")
    by_length = [compare(replace(first, n=n)).times for n in (256, 1024, 2048)]
    by_tile = [compare(replace(first, tiling=Tiling(128, keys))).times for keys in (256, 64, 16)]
    assert by_length == sorted(by_length) and by_tile == sorted(by_tile)


def test_presets_and_formats_take_the_steps_along():
    values = {name: control.value for name, control in explore().controls.items()}
    assert read(values) == ExplorerSettings()
    shipped = follow("preset", "every_step", values | {"preset": "as_shipped"})
    kernel = {step: getattr(Precision.kernel(BF16), step).name for step in STEPS}
    assert shipped == {step: name for step, name in kernel.items() if name != "BF16"} | {"sums": "FP32"}
    assert follow("fmt", "BF16", values | {"fmt": "FP16"}) == dict.fromkeys((*STEPS, "sums"), "FP16")
    custom = values | {"row_sum": "FP32"}
    assert follow("row_sum", "BF16", custom) == {"preset": "custom", "sums": APART}
    moved = follow("fmt", "BF16", custom | {"preset": "custom", "sums": APART, "fmt": "FP16"})
    assert moved == {step: "FP16" for step in STEPS if step != "row_sum"}
    assert follow("row_sum", "FP32", values | {"preset": "custom"}) == {"preset": "every_step"}
    assert follow("seed", 0, values | {"seed": 1}) == {}


def test_the_menu_of_products_has_what_fits_the_formats_of_q_k_v_and_p():
    box = explore()
    box.controls["n"].value, products = 128, box.controls["products"]
    assert options(products) == ["exact", "wide", "narrow", "A100", "L40S", "H100", "H200", "B200"]
    products.value = "H100"
    box.controls["fmt"].value = "FP16"
    assert options(products)[3:] == ["V100", "A100", "L40S", "H100", "H200", "B200"] and products.value == "H100"
    box.controls["probs"].value = "E4M3"  # no tensor core multiplies FP16 and E4M3
    assert options(products) == ["exact", "wide"] and products.value == "exact"
    box.controls["inputs"].value = "E4M3"
    assert options(products)[3:] == ["L40S", "H100", "H200", "B200"]
    box.controls["fmt"].value = "FP32"
    assert set(products_for("FP32", "FP32")) == {"exact", "wide"}


def test_every_control_redraws_once_and_a_preset_too(monkeypatch):
    drawn = []
    monkeypatch.setattr(explorer, "png", lambda *given: drawn.append(given) or png(*given))
    box = explore()
    assert shown(box) == setting_line(ExplorerSettings())
    others = dict(fmt="FP16", algorithm="fa4", block_kv=256, block_q=256, distribution="normal", n=128, head_dim=16)
    others |= dict(seed=5, causal=True, preset="as_shipped", sums="TF32", products="H100") | dict.fromkeys(
        reversed(STEPS), "E4M3"
    )
    assert others.keys() == box.controls.keys()
    for count, (name, value) in enumerate(others.items(), start=2):
        before = shown(box)
        box.controls[name].value = value
        assert len(drawn) == count, name
        now = read({name: control.value for name, control in box.controls.items()})
        words = "causal" if value is True else PRECISIONS.get(value, str(value))
        assert shown(box) == setting_line(now) != before and words in shown(box)
    assert box.controls["preset"].value == "custom"
    box.controls["preset"].value = "every_step"
    assert {box.controls[step].value for step in STEPS} == {"FP16"} and len(drawn) == count + 1


def options(control):
    """The values that a control can take."""
    return [each[1] if isinstance(each, tuple) else each for each in getattr(control, "options", [0, 1])]


@pytest.mark.slow
def test_whatever_the_controls_say_is_drawn_without_a_warning():
    rng = np.random.default_rng(0)
    controls = explore().controls
    for i in range(8):
        values = {name: rng.choice(options(control)).item() for name, control in controls.items()}
        values |= dict(n=128, causal=bool(values["causal"]))
        values |= dict.fromkeys(STEPS, values["fmt"]) if i % 2 else {}
        values["products"] = rng.choice([*products_for(values["inputs"], values["probs"])]).item()
        setting = read(values)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = compare(setting)
            assert png(setting, found) and found.verdict in explorer.VERDICTS
        assert setting_line(setting) and "<table" in in_numbers(setting, found)
        html = verdict_html(setting, found)
        assert message(found) in html and f"{ALLOWED['o']} × Baseline" in html


def altered(setting, value, key="flash"):
    """What is found if one value of O is another."""
    found = compare(setting)
    errors = found.errors | {key: found.errors[key].clone()}
    errors[key][7, 7] = value
    golden = torch.zeros_like(errors[key])
    return replace(found, errors=errors, deviations=found.deviations | {key: deviation(errors[key], golden, BF16)})


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_is_said_and_never_passes(value):
    for key, name, said in (("flash", "Flash", "fails"), ("baseline", "Baseline", "silent")):
        found = altered(SMALL, value, key)
        assert found.verdict == said
        assert message(found).startswith(f"{name} gives 1 of 16,384 ")
        assert png(SMALL, found) and ">1<" in in_numbers(SMALL, found)
