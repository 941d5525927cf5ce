"""The panel without a browser: it finds what its notebook says, and draws each change once."""

import io
import warnings
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from fa_lib import BF16, FP32, Precision
from fa_lib.plots import explorer
from fa_lib.plots.explorer import PRESETS, STEPS, compare, explore, message, png, precision_of, setting_line

FIRST = {name: control.value for name, control in explorer._controls().items()}


def verdict(**changed):
    return message(compare(FIRST | changed)[1])


def of(precision):
    return {step: getattr(precision, step).name for step in STEPS}


def shown(box):
    return Image.open(io.BytesIO(box.picture.value)).text["Description"]


def test_what_the_notebook_says_to_try():
    """What is carried decides, and no other step does; normal inputs and fewer tiles are kinder."""
    tried = [verdict(), verdict(row_sum="FP32", accumulator="FP32"), verdict(distribution="normal"), verdict(n=2048)]
    assert [words.split(":")[0] for words in tried] == ["Fails", "Passes", "Passes", "Fails"]
    assert [words.split()[3] for words in tried] == ["7.4", "0.9", "1.9", "11.4"]
    shipped = of(Precision.kernel(BF16))
    for step in STEPS:
        assert verdict(**{step: "FP32"}).startswith("Fails")
        decides = step in ("accumulator", "row_sum")
        assert verdict(**shipped | {step: "BF16"}).startswith("Fails" if decides else "Passes")


def test_every_control_redraws_once_and_a_preset_sets_all_steps(monkeypatch):
    drawn = []
    monkeypatch.setattr(explorer, "png", lambda values: drawn.append(values) or png(values))
    box = explore()
    assert shown(box).endswith(f"; {setting_line(FIRST)}") and precision_of(FIRST) == Precision.uniform(BF16)
    others = dict(fmt="FP16", algorithm="fa4", block_kv=256, distribution="normal", n=128, head_dim=16, seed=5)
    others |= dict(causal=True, preset="as shipped") | dict.fromkeys(STEPS, "E4M3")
    assert others.keys() == box.controls.keys()
    for count, (name, value) in enumerate(others.items(), start=2):
        before = shown(box)
        box.controls[name].value = value
        assert len(drawn) == count and shown(box) != before, name
    assert {box.controls[step].value for step in STEPS} == {"E4M3"}
    box.controls["preset"].value = "sums in FP32"
    assert drawn[-1]["row_sum"] == drawn[-1]["accumulator"] == FP32.name and len(drawn) == count + 1
    assert {step for step in STEPS if drawn[-1][step] == "FP16"} == {*STEPS} - {"row_sum", "accumulator"}
    assert precision_of(drawn[-1]).probs == PRESETS["every step"]("FP16").probs


@pytest.mark.slow
def test_whatever_the_controls_say_is_drawn_without_a_warning():
    rng, controls = np.random.default_rng(0), explore().controls
    for _ in range(8):
        values = {name: rng.choice([*getattr(control, "options", [0, 1])]) for name, control in controls.items()}
        values = {name: x.item() if isinstance(x, np.generic) else x for name, x in values.items()}
        values |= dict(n=128, causal=bool(values["causal"]))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert png(values) and message(compare(values)[1])


def test_what_is_not_finite_is_said():
    deviations = compare(FIRST)[1]
    broken = deviations | {"Flash": replace(deviations["Flash"], nonfinite=1)}
    assert message(broken) == "Flash gives 1 of 65,536 values that are NaN or infinite"
