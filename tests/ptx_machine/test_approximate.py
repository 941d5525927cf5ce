"""Approximate instructions that are off by any amount within their documented bounds."""

import mpmath
import numpy as np
import pytest
import torch
from small_ptx import elementwise

from ptx_machine.device import GPU

TRUTH = {
    "ex2.approx.ftz.f32": lambda x: mpmath.power(2, x), "lg2.approx.ftz.f32": lambda x: mpmath.log(x, 2),
    "rcp.approx.ftz.f32": lambda x: 1 / x, "rsqrt.approx.ftz.f32": lambda x: 1 / mpmath.sqrt(x),
    "sqrt.approx.ftz.f32": mpmath.sqrt, "sin.approx.ftz.f32": mpmath.sin, "cos.approx.ftz.f32": mpmath.cos,
    "tanh.approx.f32": mpmath.tanh,
}  # fmt: skip
MOST = {  # of PTX's text, for the arguments below: (units in the last place, relative, absolute)
    "ex2": (2, 0, 0), "lg2": (0, 2**-22, 2**-22), "rcp": (1, 0, 0), "rsqrt": (0, 2**-22.9, 0), "sqrt": (0, 2**-23, 0),
    "sin": (0, 0, 2**-20.5), "cos": (0, 0, 2**-20.5), "tanh": (0, 2**-11, 0),
}  # fmt: skip


def run(instruction, x, gpu, machine=True):
    words = instruction if "{" in instruction else f"{instruction} {{out}}, {{0}}"
    return torch.from_numpy(elementwise(words, [x.numpy()], np.float32, gpu, machine, threads=x.numel()))


@pytest.mark.parametrize("instruction", TRUTH)
def test_they_stay_within_their_bound_use_it_and_are_functions_of_their_operand(instruction):
    x = torch.rand(512, generator=torch.Generator().manual_seed(0)) * 6 + 0.01
    x[:4] = 0.75
    exact = [TRUTH[instruction](mpmath.mpf(float(each))) for each in x]
    ulps, relative, absolute = MOST[instruction.split(".")[0]]
    rooms = [max(ulps * float(np.spacing(np.float32(abs(y)))), relative * abs(y), absolute) for y in exact]
    used, all_found = 0.0, []
    for seed in (1, 2):
        found = run(instruction, x, f"A100~{seed}")
        used = max(used, *(float(abs(mpmath.mpf(float(y)) - due) / room) for y, due, room in zip(found, exact, rooms)))
        assert len({*found[:4].tolist()}) == 1
        assert torch.equal(found, run(instruction, x, f"A100~{seed}", machine=False))
        all_found.append(found)
    assert 0.6 < used <= 1
    assert not torch.equal(*all_found)


def test_a_quotient_that_is_joined_to_a_sum_is_off_as_the_quotient_is():
    """2 - 2 / x: the sum is exact, so that the quotient's error is all of it."""
    x = torch.rand(512, generator=torch.Generator().manual_seed(1)) + 1
    joined = "mov.f32 %f4, 0f40000000; div.full.f32 %f3, %f4, {0}; sub.f32 {out}, %f4, %f3"
    for gpu in ("A100~1", "A100~2"):
        found = run(joined, x, gpu)
        off = (found.double() - (2 - 2 / x.double())).abs() / 2.0**-23  # ulp of a quotient in [1, 2)
        assert torch.equal(found, run(joined, x, gpu, machine=False))
        assert 1 < off.max() <= 2.5 and (off > 0.5).any()


def test_what_is_special_stays_exact_and_what_is_not_approximate_too():
    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan")])
    assert run("ex2.approx.f32", special, "H100~1").tolist()[:4] == [1, 1, float("inf"), 0]
    assert run("rcp.approx.f32", special, "H100~1").tolist()[:4] == [float("inf"), -float("inf"), 0, 0]
    x = torch.rand(64)
    for instruction in ("rcp.rn.f32", "sqrt.rn.f32"):
        assert torch.equal(run(instruction, x, "H100~1"), run(instruction, x, "H100"))


def test_a_gpu_is_named_with_its_wobble():
    assert GPU.of("H100~12").wobble == 12 and GPU.of("H100").wobble is None
    for wrong in ("H100~", "H100~x", "P100~1"):
        with pytest.raises(ValueError, match=f"^gpu: got '{wrong}'; accepted are A100.* ~"):
            GPU.of(wrong)
