"""The panel of notebook 00 without a browser: it finds what the library finds, and draws each change once."""

import io
import warnings
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from PIL import Image

from fa_lib import BF16, E4M3, FP16, FP32, FP64, Precision, Tiling, deviation, draw, kernels, microbenchmark, panel
from fa_lib.panel import STEPS, Setting, compare, explore, follow, in_numbers, in_words, message, read, reasons, verdict
from fa_lib.plots.panel import picture, png

SMALL = Setting(n=256)


def with_steps(setting, **formats):
    return replace(setting, precision=replace(setting.precision, **formats))


def shown(box):
    return Image.open(io.BytesIO(box.picture.value)).text["Description"]


@pytest.mark.parametrize("distribution, fmt, algorithm", [("uniform", "BF16", "fa1"), ("normal", "FP16", "fa2")])
def test_it_finds_what_the_microbenchmark_finds(distribution, fmt, algorithm):
    given = dict(distribution=distribution, seed=3, n=256, head_dim=32, algorithm=algorithm)
    rows = {row["kernel"]: row for row in microbenchmark.compare(heads=1, block_kv=64, fmt=fmt, **given)[:2]}
    found = compare(Setting(BF16.of(fmt), Precision.uniform(fmt), tiling=Tiling(128, 64), **given))
    for name, row in (("Flash", rows["flash"]), ("Baseline", rows["baseline"])):
        assert asdict(found.deviations[name]).items() <= row.items()
    assert (found.rescales, found.tiles) == (row["rescales"], row["tiles"])


def test_each_kernels_golden_value_takes_the_inputs_as_it_does():
    setting = with_steps(replace(SMALL, causal=True), inputs=FP32)
    q, k, v = draw("uniform", 0, (1, 1, 256, 64))
    o = kernels.tiled(q, k, v, tiling=setting.tiling, precision=setting.precision, algorithm="fa1", causal=True)
    base = kernels.reference(q, k, v, precision=Precision.materialized(BF16), causal=True)
    found = compare(setting)
    for name, out, inputs in (("Flash", o, FP32), ("Baseline", base, BF16)):
        golden = kernels.golden(q, k, v, inputs=inputs, causal=True)
        assert found.deviations[name] == deviation(out, golden, BF16)
        assert torch.equal(found.errors[name], (out - golden)[0, 0])


def test_the_rows_of_a_tile_change_nothing():
    first, *others = (compare(replace(SMALL, tiling=Tiling(rows, 64), causal=True)) for rows in (128, 256, 1024))
    assert all(torch.equal(other.errors["Flash"], first.errors["Flash"]) for other in others)


def test_what_the_notebook_says_to_try():
    """What is carried decides, and no other step does; normal inputs and fewer tiles are kinder."""
    first = Setting()
    assert verdict(compare(first)) == "fails" and 6 < compare(first).times < 9
    assert verdict(compare(with_steps(first, accumulator=FP32, stats=FP32))) == "passes"
    for step in STEPS:
        assert verdict(compare(with_steps(first, **{step: FP32}))) == "fails"
        shipped = with_steps(replace(first, precision=Precision.kernel(BF16)), **{step: BF16})
        assert verdict(compare(shipped)) == ("fails" if step in ("accumulator", "stats") else "passes")
    assert compare(replace(first, distribution="normal")).times < 0.5 * compare(first).times
    by_length = [compare(replace(first, n=n)).times for n in (256, 1024, 2048)]
    by_tile = [compare(replace(first, tiling=Tiling(128, keys))).times for keys in (256, 64, 16)]
    assert by_length == sorted(by_length) and by_tile == sorted(by_tile)


def test_presets_and_formats_take_the_steps_along():
    values = {name: control.value for name, control in explore().controls.items()}
    assert read(values) == Setting()
    shipped = follow("preset", "every step", values | {"preset": "as shipped"})
    assert shipped == {step: getattr(Precision.kernel(BF16), step).name for step in STEPS}
    assert follow("fmt", "BF16", values | {"fmt": "FP16"}) == dict.fromkeys(STEPS, "FP16")
    custom = values | {"stats": "FP32"}
    assert follow("stats", "BF16", custom) == {"preset": "custom"}
    moved = follow("fmt", "BF16", custom | {"preset": "custom", "fmt": "FP16"})
    assert moved == {step: "FP16" for step in STEPS if step != "stats"} | {"preset": "custom"}
    assert follow("stats", "FP32", values | {"preset": "custom"}) == {"preset": "every step"}
    assert follow("seed", 0, values | {"seed": 1}) == {}


def test_every_control_redraws_once_and_a_preset_too(monkeypatch):
    drawn = []
    monkeypatch.setattr(panel, "png", lambda *given: drawn.append(given) or png(*given))
    box = explore()
    assert shown(box) == str(Setting())
    others = dict(fmt="FP16", algorithm="fa4", block_kv=256, block_q=256, distribution="normal", n=128, head_dim=16)
    others |= dict(seed=5, causal=True, preset="as shipped") | dict.fromkeys(reversed(STEPS), "E4M3")
    assert others.keys() == box.controls.keys()
    for count, (name, value) in enumerate(others.items(), start=2):
        before = shown(box)
        box.controls[name].value = value
        assert len(drawn) == count, name
        now = read({name: control.value for name, control in box.controls.items()})
        assert shown(box) == str(now) != before and ("causal" if value is True else str(value)) in shown(box)
    assert box.controls["preset"].value == "custom"
    box.controls["preset"].value = "every step"
    assert {box.controls[step].value for step in STEPS} == {"FP16"} and len(drawn) == count + 1


def test_whatever_the_controls_say_is_drawn_without_a_warning():
    rng = np.random.default_rng(0)
    controls = explore().controls
    for i in range(60):
        values = {name: rng.choice(getattr(c, "options", [0, 1])).item() for name, c in controls.items()}
        values |= dict(n=128, causal=bool(values["causal"]))
        values |= dict.fromkeys(STEPS, values["fmt"]) if i % 2 else {}
        setting = read(values)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = compare(setting)
            assert png(setting, found, message(found)) and verdict(found) in panel.VERDICTS
        assert (
            str(setting)
            and "<table" in in_numbers(setting, found)
            and "the rule of the field" in in_words(setting, found)
        )


def altered(setting, value, name="Flash"):
    """What is found if one value of O is another."""
    found = compare(setting)
    errors = found.errors | {name: found.errors[name].clone()}
    errors[name][7, 7] = value
    golden = torch.zeros_like(errors[name])
    return replace(found, errors=errors, deviations=found.deviations | {name: deviation(errors[name], golden, BF16)})


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_is_said_and_never_passes(value):
    for name, said in (("Flash", "fails"), ("Baseline", "silent")):
        found = altered(SMALL, value, name)
        assert verdict(found) == said
        assert message(found) == f"{name} gives 1 of 16,384 values that are NaN or infinite"
        assert png(SMALL, found, message(found)) and ">1<" in in_numbers(SMALL, found)


def test_the_title_says_what_was_found():
    def title(setting):
        found = compare(setting)
        figure = picture(setting, found, message(found))
        assert figure._suptitle.get_text() == message(found)
        return message(found)

    paper = Setting(n=2048)
    assert title(paper) == f"Flash is {compare(paper).times:.1f} × further than Baseline from the golden value"
    assert "nearer than Baseline" in title(replace(SMALL, precision=Precision.kernel(BF16)))
    exact = replace(SMALL, fmt=FP64, precision=Precision.uniform(FP64))
    assert title(exact) == "Baseline is the golden value itself" and verdict(compare(exact)) == "silent"
    assert (
        replace(
            compare(SMALL), deviations=dict.fromkeys(("Flash", "Baseline"), compare(SMALL).deviations["Flash"])
        ).times
        == 1
    )


def test_the_reasons_name_what_is_carried():
    said = [*reasons(SMALL, compare(SMALL))]
    assert said[0] == "From tile to tile it carries O in BF16, m and l in BF16: below FP32."
    assert said[1].startswith("Of 4 tiles, ") and " ulp: " in said[2]
    assert "2⁸" in [*reasons(replace(SMALL, algorithm="fa4"), compare(SMALL))][1]
    shipped = replace(SMALL, fmt=FP16, precision=Precision.kernel(FP16))
    assert "no less than kernels as shipped" in next(reasons(shipped, compare(shipped)))
    one = replace(SMALL, tiling=Tiling(128, 1024), precision=Precision.uniform(E4M3))
    assert next(reasons(one, compare(one))).startswith("One tile: nothing is carried or rescaled. It has O in E4M3")
