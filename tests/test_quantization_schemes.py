"""Quantised tensors held to straight-line numpy and gfloat; attention with quantised operands."""

import math
from dataclasses import replace

import gfloat
import gfloat.formats
import numpy as np
import pytest
import torch

from fa_lib import BF16, FP64, Precision, Tiling, deviation, draw, kernels
from fa_lib.kernels.quantization_schemes import E8M0, SCHEMES, Scheme, smoothed
from fa_lib.kernels.quantized_attention import Quantization, attention
from fa_lib.numerics.formats import E2M1, E4M3

E2M1_INFO, E4M3_INFO = gfloat.formats.format_info_ocp_e2m1, gfloat.formats.format_info_ocp_e4m3
E5M2_INFO = gfloat.formats.format_info_ocp_e5m2
MX = {"MXFP8": (E4M3_INFO, 8), "MXFP8_E5M2": (E5M2_INFO, 15), "MXFP4": (E2M1_INFO, 2)}
TILING = Tiling(64, 64)


def one(values):
    return torch.tensor([values], dtype=torch.float64)


def mx(x, info, emax):
    """A row at a time, a block of 32 at a time."""
    out = np.zeros_like(x)
    for i, row in enumerate(x):
        for j in range(0, len(row), 32):
            block = row[j : j + 32]
            scale = 2.0 ** (math.floor(math.log2(np.abs(block).max())) - emax)
            out[i, j : j + 32] = gfloat.round_ndarray(info, block / scale, sat=True) * scale
    return out


def nvfp4(x, outer):
    """The same of NVFP4; outer: of each row."""
    out = np.zeros_like(x)
    for i, row in enumerate(x):
        for j in range(0, len(row), 16):
            block = row[j : j + 16]
            scale = outer[i] * gfloat.round_float(E4M3_INFO, np.abs(block).max() / (6 * outer[i]), sat=True)
            out[i, j : j + 16] = gfloat.round_ndarray(E2M1_INFO, block / scale, sat=True) * scale if scale else 0
    return out


@pytest.mark.parametrize("distribution", ["normal", "outliers"])
@pytest.mark.parametrize("name", MX)
def test_mx_is_straight_line_numpy_and_gfloat(name, distribution):
    x = draw(distribution, 1, (96, 128))[0]
    x *= 2.0 ** torch.randint(-20, 20, (96, 1), generator=torch.Generator().manual_seed(0)).double()
    assert np.array_equal(SCHEMES[name].apply(x).numpy(), mx(x.numpy(), *MX[name]))
    assert torch.equal(SCHEMES[name].apply(x, -2), SCHEMES[name].apply(x.mT).mT)


@pytest.mark.parametrize("distribution", ["normal", "outliers"])
def test_nvfp4_is_straight_line_numpy_and_gfloat(distribution):
    x = draw(distribution, 1, (40, 64))[0]
    rows = x.numpy()
    whole = np.full(40, np.float32(np.abs(rows).max() / (6 * 448)), dtype=np.float64)
    assert np.array_equal(SCHEMES["NVFP4"].apply(x).numpy(), nvfp4(rows, whole))
    assert np.array_equal(SCHEMES["NVFP4_ONE_LEVEL"].apply(x).numpy(), nvfp4(rows, np.ones(40)))
    each = np.float32(np.abs(rows).max(-1) / (6 * 448)).astype(np.float64)
    assert np.array_equal(SCHEMES["NVFP4_TWO_LEVEL"].apply(x).numpy(), nvfp4(rows, each))


def test_a_token_is_a_row_and_of_v_a_channel():
    x = draw("outliers", 2, (40, 64))[0]
    scale = np.float32(np.abs(x.numpy()).max(-1, keepdims=True) / 448).astype(np.float64)
    theirs = gfloat.round_ndarray(E4M3_INFO, x.numpy() / scale, sat=True) * scale
    assert np.array_equal(SCHEMES["FP8_TOKEN"].apply(x).numpy(), theirs)
    assert torch.equal(SCHEMES["FP8_TOKEN"].apply(x.mT, -2).mT, SCHEMES["FP8_TOKEN"].apply(x))
    assert torch.equal(SCHEMES["FP8"].apply(x), E4M3(x.clamp(-448, 448)))


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("MXFP8_UP", [1.9, 1.0, -0.3, 1e-6], [1.875, 1.0, -0.3125, 0.0]),  # 1.9 * 2^7 = 243 is 240
        ("MXFP8_UP", [1.75, 1.0, -0.3, 1e-6], [1.75, 1.0, -0.3125, 0.0]),  # 448 itself needs no larger scale
        ("MXFP4_UP", [7.9, 2.4, 0.25, -0.3], [8.0, 2.0, 0.0, -0.0]),  # scale 2: a fourth of 1 is half of the least
        ("NVFP4_ONE_LEVEL", [0.005, 0, 0, 0], [0, 0, 0, 0]),  # 0.005 / 6 is below half of E4M3's least number, 2^-9
        ("FP8_TENSOR", [448.0, 17.0, 0.3, 2.0**-10], [448.0, 16.0, 0.3125, 0.0]),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_groups_by_hand(name, values, expected):
    size = SCHEMES[name].size if SCHEMES[name].per == "group" else 4
    found = SCHEMES[name].apply(one([*values, *[0.0] * (size - 4)]))
    assert found[0, :4].tolist() == expected and (found[0, 4:] == 0).all()


@pytest.mark.parametrize("name", SCHEMES)
def test_zeros_stay_and_what_is_not_finite_makes_its_own_part_nan(name):
    scheme = SCHEMES[name]
    assert (scheme.apply(torch.zeros(2, 64, 64).double()) == 0).all()
    if scheme.per == "none":
        return
    for bad in (math.nan, math.inf, -math.inf):
        x = torch.ones(2, 128, 64).double()
        x[0, 0, 0] = bad
        share = {"tensor": 1.0, "head": 1 / 2, "block": 1 / 4, "token": 1 / 256, "group": scheme.size / (256 * 64)}
        rows = 1.0 if scheme.outer == "tensor" else 1 / 256 if scheme.outer == "token" else share[scheme.per]
        assert scheme.apply(x).isnan().double().mean() == rows


def test_errors_name_what_came():
    x = torch.ones(4, 40).double()
    for call, words in (
        (lambda: Scheme(E4M3, "row"), "per: got 'row'"),
        (lambda: Scheme(E4M3, "group", 0), "size: got 0"),
        (lambda: Scheme(E4M3, "tensor", outer="tensor"), "outer: got 'tensor' with 'tensor'"),
        (lambda: Scheme(E2M1, "group", 32, E8M0, "tensor"), "outer: got 'tensor'"),
        (lambda: Scheme(E4M3, up=True), "up: got True .*FP32; .*E8M0"),
        (lambda: SCHEMES["MXFP8"].apply(x), "x: got 40 values .* 32$"),
        (lambda: SCHEMES["MXFP8"].apply(x, 0), "axis: got 0"),
        (lambda: Quantization(p="NVFP4"), "p: got scales per 'group' with outer 'tensor'"),
        (lambda: Quantization(p="FP8_TENSOR"), "p: got scales per 'tensor'"),
    ):
        with pytest.raises(ValueError, match=words.replace("(", r"\(")):
            call()
    q, k, v = draw("normal", 0, (1, 2, 64, 64))
    p = Quantization(p="MXFP8")
    for call, words in (
        (lambda: attention(q, k, v, p, tiling=Tiling(64, 48)), "tiling: got 48 keys a tile; accepted is a multiple"),
        (lambda: attention(q, k[..., :63, :], v[..., :63, :], p, tiling=TILING), "k: got 63 keys; accepted is"),
        (lambda: attention(q, k, v, Quantization(smooth=True), tiling=TILING, softcap=5.0), "smooth: got True with"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


@pytest.mark.parametrize("options", [{}, dict(causal=True), dict(window=(30, 4))], ids=str)
def test_with_nothing_quantised_it_is_the_kernel_in_bf16(options):
    q, k, v = draw("outliers", 3, (1, 2, 100, 64))
    shipped = kernels.tiled(q, k, v, tiling=TILING, precision=Precision.kernel(BF16), **options)
    assert torch.equal(attention(q, k, v, Quantization(), tiling=TILING, **options), shipped)


def test_smoothing_and_rotating_leave_the_result_before_rounding():
    q, k, v = draw("outliers", 3, (1, 2, 96, 64))
    k = k + 3
    golden = kernels.golden(q, k, v, inputs=FP64)
    smooth = kernels.golden(q, smoothed(k), v, inputs=FP64)
    assert deviation(smooth, golden).max < 1e-6  # FP32's
    exact = Precision.uniform(FP64)
    how = Quantization(smooth=True, rotate=True)
    there = [x.abs().amax().item() for x in how.loaded(q, k, v)]
    assert there[1] < 0.5 * k.abs().amax()
    near = attention(q, k, v, how, tiling=TILING, precision=exact)
    assert deviation(near, golden).max < 1e-6


def test_baseline_quantises_p_by_its_scheme_too():
    """P is quantised by the products, whoever calls them: here by `reference`, which divides P first."""
    q, k, v = (BF16(x) for x in draw("normal", 5, (64, 64)))
    steps = Quantization(p="MXFP8").steps(replace(Precision.uniform(FP64), output=FP64))
    P = torch.softmax(q @ k.mT / 8, -1)
    ours = kernels.reference(q, k, v, precision=steps)
    assert deviation(ours, Scheme.of("MXFP8").apply(P) @ v).max < 1e-12 < deviation(ours, P @ v).max
    o = kernels.reference(q.requires_grad_(), k, v, precision=steps)
    with pytest.raises(ValueError, match=r"^precision: got products"):
        o.sum().backward()


def test_rows_do_not_meet_and_the_dtype_is_that_of_q():
    q, k, v = (x.bfloat16() for x in draw("normal", 5, (1, 2, 64, 64)))
    how = Quantization(k="NVFP4", v="NVFP4", p="NVFP4_TWO_LEVEL")
    o = attention(q, k, v, how, tiling=TILING)
    assert o.dtype == torch.bfloat16
    assert torch.equal(attention(q[..., 5:9, :], k, v, how, tiling=TILING), o[..., 5:9, :])
