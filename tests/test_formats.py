"""round_to against gfloat, bit for bit."""

import math
from dataclasses import replace

import gfloat
import gfloat.formats
import numpy as np
import pytest
import torch
from gfloat import RoundMode

from fa_lib import BF16, E4M3, E5M2, FP16, FP32, FP64, TF32, Format, round_to
from fa_lib.numerics import formats
from fa_lib.numerics.formats import E2M1, _nearest_torch, stochastic, truncated

NARROW = gfloat.FormatInfo(
    "E5P3", k=8, precision=3, bias=15, is_signed=True, domain=gfloat.Domain.Extended, has_nz=True, num_high_nans=3,
    has_subnormals=True, is_twos_complement=False,
)  # fmt: skip
TF32_INFO = gfloat.FormatInfo(
    "TF32", k=19, precision=11, bias=127, is_signed=True, domain=gfloat.Domain.Extended, has_nz=True,
    num_high_nans=2**10 - 1, has_subnormals=True, is_twos_complement=False,
)  # fmt: skip
ORACLE = {
    BF16: gfloat.formats.format_info_bfloat16,
    FP16: gfloat.formats.format_info_binary16,
    FP32: gfloat.formats.format_info_binary32,
    TF32: TF32_INFO,
    E4M3: gfloat.formats.format_info_ocp_e4m3,
    E5M2: gfloat.formats.format_info_ocp_e5m2,
    E2M1: gfloat.formats.format_info_ocp_e2m1,
    Format.of((5, 3)): NARROW,
}
MODES = {"nearest": RoundMode.TiesToEven, "toward_zero": RoundMode.TowardZero}


@pytest.fixture(autouse=True, scope="module")
def compiled():
    """The compiled loops are tested, and torch's operations, which a process begins with, against them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "WORTH", 0)
        yield


def bits(x):
    """Float64 values as integers, all NaN alike."""
    x = np.asarray(x, dtype=np.float64)
    return np.where(np.isnan(x), -1, x.view(np.int64))


def expected(x, fmt, mode="nearest", **draws):
    """gfloat's rounding; for a format without infinity, with saturation."""
    x = np.asarray(x)
    with np.errstate(all="ignore"):
        return gfloat.round_ndarray(ORACLE[fmt], x, MODES.get(mode, RoundMode.Stochastic), not fmt.has_inf, **draws)


def all_values(fmt):
    """Every finite value of a 16-bit format, ascending, -0 and +0 both."""
    codes = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    x = codes.view(fmt.dtype).double()
    return x[x.isfinite()].sort().values.numpy()


def random_bits(count, seed):
    """Float64 of random bit patterns: every exponent, subnormals, infinities and NaN."""
    return np.random.default_rng(seed).integers(-(2**63), 2**63, count).view(np.float64)


def near_the_range(fmt, count, seed):
    """Random mantissas with exponents around the format's range."""
    rng = np.random.default_rng(seed)
    exponents = rng.integers(fmt.emin - fmt.precision - 3, fmt.emax + 3, count)
    return np.ldexp(rng.choice([-1.0, 1.0], count) * (1 + rng.random(count)), exponents)


@pytest.mark.parametrize("fmt", [BF16, FP16], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_16_bit_formats_exhaustively(fmt, mode):
    values = all_values(fmt)
    middles = (values[:-1] + values[1:]) / 2
    beyond = np.array([fmt.max * (1 + 2.0 ** -(fmt.precision + 1)), fmt.max * 1.5])
    x = np.concatenate([values, middles, beyond, -beyond])
    x = np.concatenate([x, np.nextafter(middles, np.inf), np.nextafter(middles, -np.inf)])
    ours = round_to(torch.from_numpy(x), fmt, mode).numpy()
    assert (bits(ours) == bits(expected(x, fmt, mode))).all()
    assert (bits(round_to(torch.from_numpy(values), fmt, mode).numpy()) == bits(values)).all()


@pytest.mark.parametrize("fmt", ORACLE, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_random_bit_patterns(fmt, mode):
    x = np.concatenate([random_bits(200_000, 1), near_the_range(fmt, 200_000, 2)])
    x = np.concatenate([x, [0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, -5e-324, 1.7e308]])
    ours = round_to(torch.from_numpy(x), fmt, mode).numpy()
    wrong = bits(ours) != bits(expected(x, fmt, mode))
    assert not wrong.any(), (x[wrong][:5], ours[wrong][:5], expected(x, fmt, mode)[wrong][:5])


@pytest.mark.parametrize("fmt", ORACLE, ids=str)
def test_stochastic_is_gfloat_given_the_same_draw(fmt):
    x = near_the_range(fmt, 50_000, 3)
    ours = round_to(torch.from_numpy(x), fmt, "stochastic", torch.Generator().manual_seed(4)).numpy()
    draw = torch.rand(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4)).numpy()
    # gfloat rounds up where the fraction and its draw make 1, ours where the draw is below the fraction
    theirs = expected(x, fmt, "stochastic", srbits=2**53 - 1 - (draw * 2**53).astype(np.int64), srnumbits=53)
    assert (bits(ours) == bits(theirs)).all()


@pytest.mark.parametrize("fmt", ORACLE, ids=str)
def test_torch_operations_round_as_the_compiled_loops_do(fmt):
    x = torch.from_numpy(np.concatenate([random_bits(50_000, 5), near_the_range(fmt, 50_000, 6)]))
    assert (bits(fmt(x).numpy()) == bits(_nearest_torch(x, fmt).numpy())).all()


def test_large_and_strided_tensors():
    x = torch.randn(3, 1 << 20, dtype=torch.float64)  # large enough for more than one thread
    before = x.clone()
    assert (bits(round_to(x, FP16).numpy()) == bits(expected(x.numpy(), FP16))).all()
    assert torch.equal(round_to(x.T, BF16), round_to(x, BF16).T)
    assert torch.equal(x, before)
    assert round_to(x, FP64) is x


@pytest.mark.parametrize("fmt", [*ORACLE, stochastic(BF16, seed=3), truncated(FP16)], ids=str)
def test_rounding_in_place_has_the_same_bits(fmt):
    x = torch.from_numpy(np.concatenate([random_bits(50_001, 5), near_the_range(fmt, 50_000, 6)]))
    for each in (x, x[:100_000].view(1000, 100).T, x[:0], x.repeat(24)):  # strided; large enough for two threads
        due = bits(fmt(each).numpy())
        given = each.clone()
        ours = fmt.round_(given)
        assert (bits(ours.numpy()) == due).all() and ours.shape == each.shape
        assert ours is given or not given.is_contiguous() or fmt.mode != "nearest"
    assert FP64.round_(x) is x
    with pytest.raises(ValueError, match="x: got torch.float32; accepted is torch.float64"):
        fmt.round_(x.float())


@pytest.mark.parametrize("fmt", [BF16, FP16, FP32, E4M3], ids=str)
def test_ulp_is_the_gap_to_the_next_value(fmt):
    x = round_to(torch.from_numpy(np.abs(near_the_range(fmt, 10_000, 10))), fmt)
    x = x[x < fmt.max]
    gap = fmt.ulp(x)
    assert torch.equal(round_to(x + gap, fmt), x + gap)
    assert torch.equal(round_to(x + gap * 0.49, fmt), x)


def test_ulp_of_fp64():
    assert FP64.ulp(torch.tensor([1.0, 0.75, -2.0], dtype=torch.float64)).tolist() == [2**-52, 2**-53, 2**-51]


@pytest.mark.parametrize("fmt", [BF16, FP16, FP32], ids=str)
def test_attributes_are_torchs(fmt):
    info = torch.finfo(fmt.dtype)
    assert fmt.max == info.max and 2.0**fmt.emin == info.smallest_normal and 2 * fmt.unit_roundoff == info.eps


def test_names():
    assert Format.of("bfloat16") is Format.of("BF16") is Format.of(torch.bfloat16) is BF16
    assert Format.of((8, 24)).max == FP32.max
    assert Format.of("ocp_e4m3").max == E4M3.max == 448
    assert Format.of("ocp_e2m1").max == 6
    assert BF16(torch.tensor(1.003, dtype=torch.float64)).item() == 1.0


UNKNOWN = ["bf17", 16, (1, 8), (8, 25), (11, 20), "ocp_e8m0", "ocp_int8", None, "round_ndarray", (8, 7.5), (True, 8)]


@pytest.mark.parametrize("spec", [*UNKNOWN, "MXFP8", "NVFP4"])
def test_unknown_formats_are_refused(spec):
    with pytest.raises(ValueError, match="format: got.*accepted"):
        Format.of(spec)


def test_a_formats_own_mode_is_how_every_way_to_round_rounds():
    """There is one kind of Format, whose mode `round_to`, a call and `round_` follow alike."""
    assert Format.__subclasses__() == []
    x = torch.randn(1000, dtype=torch.float64)
    low = truncated(BF16)
    due = round_to(x, BF16, "toward_zero")
    assert torch.equal(low(x), due) and torch.equal(low.round_(x.clone()), due) and torch.equal(round_to(x, low), due)
    assert torch.equal(round_to(x, low, "nearest"), BF16(x))
    drawn = stochastic(BF16, seed=1)
    assert torch.equal(round_to(x, drawn), drawn(x)) and torch.equal(drawn.round_(x.clone()), drawn(x))
    with pytest.raises(ValueError, match="mode: got 'up'"):
        replace(BF16, mode="up")


def test_bad_calls_are_refused():
    x = torch.ones(3, dtype=torch.float64)
    with pytest.raises(ValueError, match="x: got torch.float32"):
        round_to(x.float(), BF16)
    with pytest.raises(ValueError, match="x: requires a gradient"):
        round_to(x.clone().requires_grad_(), BF16)
    assert math.isnan(round_to(x * math.nan, E4M3)[0].item())
