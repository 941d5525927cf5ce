"""Attention in MXFP8, MXFP4 and NVFP4 whose products a B200's unit sums, elements and scales apart."""

import math
from dataclasses import fields, replace

import pytest
import torch

from fa_lib.kernels import tiled
from fa_lib.kernels.algorithm import Algorithm
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.quantization_schemes import Scheme
from fa_lib.kernels.quantized_attention import Quantization, attention
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import BF16, FP32, FP64
from fa_lib.numerics.tensor_cores import ScaledCore, TensorCore

MXFP8 = TensorCore.of("B200", "MXFP8")
TILING = Tiling(64, 64)
UNIT_AND_SCHEMES = {
    "MXFP8": ("MXFP8", "MXFP8"), "scales rounded up": ("MXFP8", "MXFP8_UP"), "MXFP4": ("MXFP4", "MXFP4"),
    "NVFP4": ("NVFP4", "NVFP4"), "two-level P": ("NVFP4", "NVFP4", "NVFP4_TWO_LEVEL"),
}  # fmt: skip


class Exact(ScaledCore):
    """A unit that adds without rounding."""

    def matmul(self, A, B, C=None, scales=None):
        a, b = (x.repeat_interleave(self.inputs.size, axis) for x, axis in zip(scales, (-1, -2)))
        return (A * a) @ (B * b) + (0 if C is None else C)


def summed_by(core, **more):
    return replace(Precision.kernel(BF16), products=core, **more)


@pytest.mark.parametrize("key", UNIT_AND_SCHEMES)
def test_attention_quantises_as_without_the_unit(key):
    """A unit that adds without rounding gives the attention of the quantised values; a B200's is close to it. (Products
    of four bits, a tile of them, fit FP32: their sums are often exact.)"""
    name, *schemes = UNIT_AND_SCHEMES[key]
    q, k, v = draw("outliers", 3, (1, 2, 40, 64), (1, 2, 192, 64))
    core, how = TensorCore.of("B200", name), Quantization.of(*schemes, smooth=True)
    exact = Exact(**{field.name: getattr(core, field.name) for field in fields(core)})
    for more in ({}, dict(causal=True, algorithm=Algorithm("fa2", accumulate_in_mma=True))):
        due, found, on_b200 = (
            attention(q, k, v, how, tiling=TILING, precision=precision, **more)
            for precision in (Precision.kernel(BF16), summed_by(exact), summed_by(core, output=FP64))
        )  # fmt: skip
        assert torch.equal(found, due)
        unrounded = attention(q, k, v, how, tiling=TILING, precision=summed_by(exact, output=FP64), **more)
        away = (on_b200 - unrounded).abs().max() / unrounded.abs().max()
        assert away < 1e-5 and (away > 0 or name != "MXFP8")


def test_attention_is_a_straight_line_with_the_units_sums():
    q, k, v = draw("normal", 5, (64, 64), (128, 64))
    how, scheme = Quantization.of("MXFP8"), Scheme.of("MXFP8")

    def product(A, B, C):
        (a, s, _), (b, t, _) = scheme.groups(A), scheme.groups(B, -2)
        columns = [MXFP8(a, b[:, i], C[:, i], (s, t[:, i])) for i in range(b.shape[1])]
        return torch.stack(columns, -1)

    m, l, O = torch.full((64, 1), -math.inf).double(), torch.zeros(64, 1).double(), torch.zeros(64, 64).double()
    for j in (0, 64):
        S = FP32(product(q, k[j : j + 64].mT, torch.zeros(64, 64).double()) / 8)
        new = torch.maximum(m, S.amax(-1, keepdim=True))
        P, a = FP32(torch.exp(FP32(S - new))), FP32(torch.exp(FP32(m - new)))
        l, O, m = FP32(FP32(a * l) + FP32(P.sum(-1, keepdim=True))), product(P, v[j : j + 64], FP32(a * O)), new
    algorithm = Algorithm("fa2", accumulate_in_mma=True)
    found = attention(q, k, v, how, tiling=TILING, precision=summed_by(MXFP8), algorithm=algorithm)
    assert torch.equal(found, BF16(FP32(O / l)))


def test_groups_are_what_apply_multiplies():
    x = draw("outliers", 2, (48, 64))[0]
    for scheme in (Scheme.of(name) for name in ("MXFP8", "MXFP4_UP", "NVFP4", "NVFP4_ONE_LEVEL", "NVFP4_TWO_LEVEL")):
        for axis in (-1, -2) if scheme.size == 16 else (-1,):
            elements, scales, outer = scheme.groups(x, axis)
            assert torch.equal(elements, scheme.element(elements)) and torch.equal(scales, scheme.scale(scales))
            assert torch.equal(elements * (outer * scales).repeat_interleave(scheme.size, axis), scheme.apply(x, axis))
        halves = [scheme.groups(half, outer=scheme.outer_scale(x)[-24:])[1] for half in (x[:24], x[24:])]
        if scheme.outer != "token":
            assert torch.equal(torch.cat(halves), scheme.groups(x)[1])  # a tile of them, its outer scale known


def test_wrong_arguments_are_named():
    q = torch.zeros(1, 1, 64, 64, dtype=torch.float64)
    mxfp8, nvfp4 = Quantization.of("MXFP8"), Quantization.of("NVFP4")
    for how, core, told in (
        (
            nvfp4,
            "MXFP8",
            r"^q: got Scheme.* B200 in MXFP8; .*E4M3 in groups of 32",
        ),
        (replace(mxfp8, p=None), "MXFP8", r"^p: got None .*B200 in MXFP8; "),
        (replace(mxfp8, cached=True), "MXFP8", r"^quantization: got a cache"),
        (replace(nvfp4, v="NVFP4_TWO_LEVEL"), "NVFP4", r"^v: got outer 'token' .*ScaledCore"),
    ):
        with pytest.raises(ValueError, match=told):
            attention(q, q, q, how, tiling=TILING, precision=summed_by(TensorCore.of("B200", core)))
    with pytest.raises(ValueError, match=r"^scales: got None; .*kernels\.quantized_attention"):
        tiled(q, q, q, tiling=TILING, precision=summed_by(MXFP8))
