"""Two kernels whose difference is known: the changes that make it are found, and no other ones."""

import json
import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from attention_check.explain.compare import ComparisonInputs, compare, comparison_lines
from attention_check.explain.emulations import FIELDS, Emulation, changed
from benchmarks.mutants import controls
from fa_lib import draw, kernels
from fa_lib.commands.cli import app

pytestmark = pytest.mark.slow
DRAWN = ComparisonInputs(distribution="uniform", n=256, head_dim=16)


def emulated(**fields):
    """A kernel f(q, k, v, ...) that does as an Emulation does."""
    emulation = Emulation(**fields)
    return lambda q, k, v, **options: emulation(q, k, v, **options).to(q.dtype)


shipped = emulated()
low = emulated(carried="BF16")
low_reverse = emulated(carried="BF16", order="reverse")
wide_probs = emulated(probs="FP32")
rounds_inputs = emulated(probs="FP32", inputs="BF16")
on_a_hopper, one_by_one = emulated(products="hopper"), emulated(products="sequential")
small_tiles_low = emulated(tile=32, carried="BF16")
parts = emulated(splits=8, partial="BF16")
written_out = kernels.unfused
rounds_scores_twice = controls.each_operation_rounds


def noisy(q, k, v, **options):
    o = shipped(q, k, v, **options)
    return o + 0.01 * torch.randn(o.shape, generator=torch.Generator().manual_seed(0)).to(o)


def decodes_in_splits(q, k, v, **options):
    return (parts if q.shape[2] == 1 else shipped)(q, k, v, **options)


def nan(q, k, v, **options):
    return q * math.nan


LONG = ComparisonInputs(n=1024)  # where products in another order turn the last bit of some output


def names(a, b, question=DRAWN):
    return compare(f"test_compare:{a}", f"test_compare:{b}", question)


@pytest.mark.parametrize(
    "a, b, changes",
    [
        ("shipped", "low", {"carried"}),
        ("shipped", "wide_probs", {"probs"}),
        ("shipped", "low_reverse", {"carried", "order"}),
        ("shipped", "parts", {"splits", "partial"}),
        ("low", "low_reverse", {"order"}),
        ("wide_probs", "rounds_inputs", {"inputs"}),
    ],
)
def test_the_changes_from_one_to_the_other_are_found(a, b, changes):
    found = names(a, b, replace(DRAWN, fmt="FP32") if b == "rounds_inputs" else DRAWN)
    assert {*found.changes} == changes and found.explained == pytest.approx(1) and found.is_explained
    assert [found.fits[side]["explained"] for side in "ab"] == pytest.approx([1, 1])
    said = comparison_lines(found)
    assert "(100.0% of" in said[-len(changes) - 1]
    assert {*said[-len(changes) :]} == {f"  {changed(found.fits['a'], found.fits['b'], name)}" for name in changes}
    carried = [found.fits[side]["carried"] for side in "ab"]
    assert carried == ["BF16" if name.startswith("low") else "FP32" for name in (a, b)]


@pytest.mark.parametrize("a, b", [("shipped", "on_a_hopper"), ("one_by_one", "on_a_hopper")])
def test_how_products_are_summed_is_a_cause(a, b):
    found = names(a, b, LONG)
    assert found.changes == ("products",) and found.explained == pytest.approx(1)
    assert found.fits["b"]["products"] == "hopper"
    assert comparison_lines(found)[-1].endswith(f"{FIELDS['products'][1]('hopper')} in B")


def test_scores_that_are_rounded_before_their_scale_too_are_a_cause():
    found = names("written_out", "rounds_scores_twice", ComparisonInputs(n=256, head_dim=96))
    assert found.changes == ("products",) and found.explained > 0.99
    assert found.fits["b"]["products"] == "written"
    assert comparison_lines(found)[-1].endswith(f"{FIELDS['products'][1]('written')} in B")


def test_the_numbers_are_those_of_the_outputs():
    found = names("shipped", "low")
    q, k, v, options, _ = DRAWN.tensors()
    golden = kernels.golden(q, k, v, inputs="BF16")
    a, b = (kernel(q, k, v, **options).double() for kernel in (shipped, low))
    assert found.errors["b"]["max"] == (b - golden).abs().max().item()
    assert found.apart["rmse"] == pytest.approx((a - b).square().mean().sqrt().item())
    assert found.apart["differing"] == ((a != b).double().mean().item()) > 0
    assert found.errors["b"]["times_max"] > found.errors["a"]["times_max"]


def test_the_same_bits_need_no_explanation_and_noise_has_none():
    same = names("shipped", "shipped")
    assert same.apart["max"] == 0 and same.explained is None and not same.is_explained
    assert "same bits" in comparison_lines(same)[-1]
    other = names("shipped", "noisy")
    assert not other.is_explained and other.explained < 0.1
    assert any(line.startswith("Not explained: ") for line in comparison_lines(other))


def test_a_kernel_that_decodes_otherwise_than_it_prefills():
    question = ComparisonInputs(distribution="uniform", n=96, heads=1, head_dim=16, decode=True)
    found = names("decodes_in_splits", "decodes_in_splits", question)
    assert {*found.changes} == {"splits", "partial"} and found.explained > 0.95
    assert comparison_lines(found)[0].endswith("token by token.")
    for n in (20, 96):  # fewer queries than are compared, and more
        alike = names("shipped", "shipped", ComparisonInputs(n=n, head_dim=16, decode=True))
        assert alike.apart["max"] == 0
    few = names("shipped", "low", ComparisonInputs(distribution="uniform", n=20, head_dim=16, decode=True))
    assert few.apart["max"] > 0 and few.is_explained  # one tile alone: O and l are rounded once


def test_captured_inputs_with_a_mask_shared_heads_and_a_scale(tmp_path):
    q, k, v = (x.half() for x in draw("uniform", 0, (2, 4, 40, 16), (2, 2, 90, 16)))
    mask = torch.ones(40, 90, dtype=torch.bool).tril(45)
    path = tmp_path / "a.safetensors"
    save_file(dict(q=q, k=k, v=v, mask=mask, scale=torch.tensor(0.5)), path, metadata=dict(step="3", layer="h.2"))
    found = names("shipped", "written_out", ComparisonInputs(on=path))
    assert found.is_explained and found.fits["a"]["tile"] == 64 and found.fits["b"]["tile"] == 0
    assert any("step 3, layer h.2" in line for line in comparison_lines(found))
    with pytest.raises(ValueError, match="^decode: got fewer queries"):
        names("shipped", "shipped", ComparisonInputs(on=path, decode=True))


def test_what_is_no_kernel_is_told(tmp_path):
    with pytest.raises(ValueError, match="^kernel: test_compare:nan returns 8192 values .* of 8192"):
        names("shipped", "nan")
    words = ["compare", "test_compare:shipped", "test_compare:low", "--n", "128", "--distribution", "uniform"]
    done = CliRunner().invoke(app, [*words, "--json", str(tmp_path / "a.json")], prog_name="fa-lib")
    assert done.exit_code == 0 and "What makes the difference" in done.stdout, done.output
    held = json.loads((tmp_path / "a.json").read_text())
    assert held["changes"] == ["carried"] and held["is_explained"] and "torch" in held["versions"]
