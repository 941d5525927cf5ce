"""Two kernels whose difference is known: the wrong one and its mistake are named, and right ones differ by rounding."""

import json
import math
from functools import partial

import pytest
import torch
from in_a_folder import command
from own_kernels import emulated
from safetensors.torch import save_file

from attention_check.explain.compare import ComparisonInputs, compare, comparison_lines
from fa_lib import draw, kernels

pytestmark = pytest.mark.slow
DRAWN = ComparisonInputs(distribution="uniform", n=256, head_dim=16)


shipped, low = emulated, partial(emulated, steps=("accumulator",))  # carrying O in FP32, and in BF16
written_out = kernels.unfused


def noisy(q, k, v, **options):
    o = shipped(q, k, v, **options)
    return o + 0.01 * torch.randn(o.shape, generator=torch.Generator().manual_seed(0)).to(o)


def low_when_decoding(q, k, v, **options):
    return (low if q.shape[2] == 1 else shipped)(q, k, v, **options)


def nan(q, k, v, **options):
    return q * math.nan


def names(a, b, question=DRAWN):
    return compare(f"test_compare:{a}", f"test_compare:{b}", question)


def test_the_wrong_one_and_its_mistake_are_named_and_the_numbers_are_those_of_the_outputs():
    found = names("shipped", "low")
    right, wrong = (found.bounds[side] for side in "ab")
    assert right["times"] <= 1 < wrong["times"] and not found.is_rounding
    assert wrong["same"] and wrong["key"] in ("accumulator", "sums") and (wrong["fmt"], wrong["tiles"]) == ("BF16", 4)
    said = "\n".join(comparison_lines(found))
    assert "B is beyond its own bound" in said and "A is beyond" not in said and "carried in BF16" in said
    call = DRAWN.call()
    q, k, v, options = call.q, call.k, call.v, call.options
    golden = kernels.golden(q, k, v, inputs="BF16")
    a, b = (kernel(q, k, v, **options).double() for kernel in (shipped, low))
    assert found.errors["b"]["max"] == (b - golden).abs().max().item()
    assert found.apart["rmse"] == pytest.approx((a - b).square().mean().sqrt().item())
    assert found.apart["differing"] == ((a != b).double().mean().item()) > 0
    assert found.errors["b"]["times_max"] > found.errors["a"]["times_max"]


def test_right_ones_differ_by_rounding_or_not_at_all_and_noise_has_no_cause():
    same = names("shipped", "shipped")
    assert same.apart["max"] == 0 and same.is_rounding and "same bits" in comparison_lines(same)[-1]
    right = names("shipped", "written_out")
    assert right.is_rounding and right.apart["max"] > 0
    other = names("shipped", "noisy")
    assert other.bounds["b"]["times"] > 1 and not other.bounds["b"]["same"]
    assert any("no mistake and no rounding" in line for line in comparison_lines(other))


def test_a_kernel_that_decodes_otherwise_than_it_prefills():
    question = ComparisonInputs(distribution="uniform", n=256, heads=1, head_dim=16, decode=True)
    found = names("low_when_decoding", "low_when_decoding", question)
    assert found.bounds["a"]["times"] <= 1 < found.bounds["b"]["times"]
    assert comparison_lines(found)[0].endswith("token by token.")
    for n in (20, 96):  # fewer queries than are compared, and more
        alike = names("shipped", "shipped", ComparisonInputs(n=n, head_dim=16, decode=True))
        assert alike.apart["max"] == 0


def test_captured_inputs_with_a_mask_shared_heads_and_a_scale(tmp_path):
    q, k, v = (x.half() for x in draw("uniform", 0, (2, 4, 40, 16), (2, 2, 90, 16)))
    mask = torch.ones(40, 90, dtype=torch.bool).tril(45)
    path = tmp_path / "a.safetensors"
    save_file(dict(q=q, k=k, v=v, mask=mask, scale=torch.tensor(0.5)), path, metadata=dict(step="3", layer="h.2"))
    found = names("shipped", "written_out", ComparisonInputs(on=path))
    assert found.is_rounding and found.apart["max"] > 0
    assert any("step 3, layer h.2" in line for line in comparison_lines(found))
    with pytest.raises(ValueError, match="^decode: got fewer queries"):
        names("shipped", "shipped", ComparisonInputs(on=path, decode=True))


def test_what_is_no_kernel_is_told(tmp_path):
    with pytest.raises(ValueError, match="^kernel: test_compare:nan returns 8192 values .* of 8192"):
        names("shipped", "nan")
    words = ["compare", "test_compare:shipped", "test_compare:low", "--n", "128", "--distribution", "uniform"]
    done = command(*words, "--json", tmp_path / "a.json")
    assert done.exit_code == 0 and "beyond its own bound" in done.stdout, done.output
    held = json.loads((tmp_path / "a.json").read_text())
    assert not held["is_rounding"] and held["apart"]["max"] > 0 and "torch" in held["versions"]
