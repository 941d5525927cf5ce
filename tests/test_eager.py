"""Baseline and Flash in torch's own operations: what the emulator emulates, bit for bit but for the order of sums."""

import pytest
import torch

from fa_lib import BF16, FP16, FP64, Precision, Tiling, deviation, draw, kernels

TILED = dict(fn=kernels.tiled, tiling=Tiling(300, 64), algorithm="fa1")
EMULATED = {
    "unfused": lambda fmt: dict(fn=kernels.reference, precision=Precision.materialized(fmt)),
    "stepwise": lambda fmt: TILED | dict(precision=Precision.uniform(fmt)),
}


def run(fn, tensors, dO, **options):
    tensors = [x.detach().requires_grad_() for x in tensors]
    o = fn(*tensors, **options)
    return o.detach(), *torch.autograd.grad(o, tensors, dO.to(o.dtype))


@pytest.mark.parametrize("name", EMULATED)
@pytest.mark.parametrize("fmt", [BF16, FP16], ids=str)
@pytest.mark.parametrize("distribution", ["uniform", "normal"])
def test_they_are_what_is_emulated(name, fmt, distribution):
    tensors = [x.to(fmt.dtype) for x in draw(distribution, seed=0, shape=(2, 300, 32))]
    dO = torch.randn(2, 300, 32, generator=torch.Generator().manual_seed(1)).to(fmt.dtype)
    emulated = EMULATED[name](fmt)
    theirs = run(emulated.pop("fn"), tensors, dO, **emulated)
    ours = run(kernels.get(name), tensors, dO)
    exact = run(kernels.golden, [x.double() for x in tensors], dO, inputs=FP64)
    for tensor, a, b, golden in zip(("o", "dq", "dk", "dv"), ours, theirs, exact):
        if tensor == "o":  # in gradients, one delta rounded otherwise moves a whole row
            assert (a == b).double().mean() > 0.98
        # torch's gradient of a scaled product multiplies by the scale in a rounding of its own
        twice = name == "unfused" and tensor in ("dq", "dk")
        assert deviation(a, golden).rmse < (1.15 if twice else 1.03) * deviation(b, golden).rmse, tensor


@pytest.mark.parametrize("options", [{}, dict(causal=True), dict(scale=0.3), dict(mask=True), dict(mask=1.0)], ids=str)
def test_unfused_has_the_options_and_heads_of_the_reference(options):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, h, n, 16, generator=generator).double() for h, n in ((4, 9), (2, 17), (2, 17)))
    if "mask" in options:
        mask = torch.randn(4, 9, 17, generator=generator).double()
        options = dict(mask=mask > 0 if options["mask"] is True else mask)
    golden = kernels.golden(q, k, v, inputs=FP64, **options)
    torch.testing.assert_close(kernels.unfused(q, k, v, **options), golden, rtol=1e-13, atol=1e-14)


@pytest.mark.slow
def test_stepwise_in_fp64_is_attention_and_so_are_its_gradients():
    q, k, v = (torch.randn(1, h, 19, 4).double().requires_grad_() for h in (4, 2, 2))
    golden = kernels.golden(q, k, v, inputs=FP64, scale=0.3)
    torch.testing.assert_close(kernels.stepwise(q, k, v, scale=0.3, block_kv=8), golden, rtol=1e-13, atol=1e-14)
    torch.autograd.gradcheck(lambda *x: kernels.stepwise(*x, block_kv=8), (q, k, v))


def test_what_stepwise_lacks_is_named():
    q = torch.randn(1, 1, 4, 8)
    with pytest.raises(ValueError, match=r"^causal: got True; .*'stepwise' has none"):
        kernels.stepwise(q, q, q, causal=True)
    with pytest.raises(ValueError, match=r"^mask: got .*; .*'stepwise' has none"):
        kernels.stepwise(q, q, q, mask=torch.ones(4, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match="head_dim"):
        kernels.unfused(q, q[..., :4], q)
