"""Float64 as the carrier of shorter floats: bits of FP32, FP16 and BF16 into it, and results rounded out of it.

Products of two such numbers are exact in float64; sums are rounded to odd. What has been rounded to odd and is rounded
once more, to half the bits or fewer, is the correctly rounded result (Boldo and Melquiond, 2008).
"""

from collections.abc import Collection

import numpy as np

from ptx_machine.lanes import Lanes

ROUNDINGS = ("rn", "rz", "rm", "rp")  # to nearest, ties to even; toward zero; down; up
NAN = {"f16": np.uint16(0x7FFF), "bf16": np.uint16(0x7FFF), "f32": np.uint32(0x7FFFFFFF)}  # as PTX writes it
SMALLEST = {"f16": 2.0**-14, "bf16": 2.0**-126, "f32": 2.0**-126, "f64": 0.0}  # normal numbers; f64's are never flushed
PAIRS = {"f16x2": "f16", "bf16x2": "bf16", "f32x2": "f32"}


def numbers(bits: Lanes, kind: str, ftz: bool = False) -> Lanes:
    """Return lanes of a float type as numbers; bits of BF16 and of 8 bits become float32 or float16. ftz: whether
    subnormal numbers become zero of their sign."""
    x = bits
    if kind == "bf16":
        x = (bits.astype(np.uint32) << 16).view(np.float32)
    elif kind == "e5m2":
        x = (bits.astype(np.uint16) << 8).view(np.float16)
    elif kind == "e4m3":  # its exponents are 2**8 times those of FP16 with the same fields, and it has no infinity
        size, sign = (bits & mask for mask in (np.uint8(0x7F), np.uint8(0x80)))
        half = (size.astype(np.uint16) << 7 | sign.astype(np.uint16) << 8).view(np.float16)
        x = np.where(size == 0x7F, np.float32(np.nan), half.astype(np.float32) * 256)
    return flushed(x, kind) if ftz else x


def carried(bits: Lanes, kind: str, ftz: bool = False) -> Lanes:
    """Convert `numbers` to float64."""
    return numbers(bits, kind, ftz).astype(np.float64)


def flushed(x: Lanes, kind: str) -> Lanes:
    """Replace numbers of x, floats (32,), that are subnormal in a type by zero of their sign."""
    return np.where(np.abs(x) < SMALLEST[kind], np.copysign(0.0, x), x)


def clamped(x: Lanes, words: Collection[str]) -> Lanes:
    """Clamp x, floats (32,), as an instruction's words sat, to [0, 1], and relu, from 0 on, say: NaN is 0."""
    if "sat" in words:
        x = np.where(x > 0, np.minimum(x, 1.0), 0.0)
    return np.where(np.isnan(x) | (x > 0), x, 0.0) if "relu" in words else x


def odd_sum(a: Lanes, b: Lanes) -> Lanes:
    """Add a and b, float64 (32,), rounded to odd."""
    s = a + b
    b_part = s - a
    error = (a - (s - b_part)) + (b - b_part)  # exact (Knuth)
    bits = s.view(np.int64)
    inexact = np.isfinite(s) & (error != 0) & (bits & 1 == 0)
    return np.where(inexact, bits + np.where((error > 0) == (s > 0), 1, -1), bits).view(np.float64)


def bits_of(x: Lanes, kind: str, mode: str = "rn", ftz: bool = False) -> Lanes:
    """Round floats (32,) to f16, bf16 or f32: numbers of f16 and f32, bits of bf16.

    Args:
        x: float64 (32,), or numbers of float32. kind: "f16", "bf16" or "f32". mode: of ROUNDINGS.
        ftz: whether subnormal results become zero of their sign.
    """
    if kind == "bf16":
        return _bf16(x, mode, ftz)
    nearest = x.astype(np.float16 if kind == "f16" else np.float32)
    if mode != "rn":
        nearest = _directed(x, nearest, mode)
    if ftz:
        nearest = flushed(nearest, kind).astype(nearest.dtype)
    raw = nearest.view(NAN[kind].dtype)
    return np.where(np.isnan(nearest), NAN[kind], raw).view(nearest.dtype)


def _directed(x: Lanes, nearest: Lanes, mode: str) -> Lanes:
    """Correct the number nearest to x by one step where a directed rounding gives the other neighbour."""
    wide = nearest.astype(np.float64)
    toward = {"rz": 0.0, "rm": -np.inf, "rp": np.inf}[mode]
    wrong = {"rz": np.abs(wide) > np.abs(x), "rm": wide > x, "rp": wide < x}[mode]
    return np.where(wrong, np.nextafter(nearest, nearest.dtype.type(toward)), nearest)


def odd_single(x: Lanes) -> Lanes:
    """Round float64 (32,) to odd in float32: toward zero, with the last bit set where x has more bits."""
    cut = _directed(x, x.astype(np.float32), "rz")
    return (cut.view(np.uint32) | (cut.astype(np.float64) != x).astype(np.uint32)).view(np.float32)


def _bf16(x: Lanes, mode: str, ftz: bool) -> Lanes:
    bits = (x if x.dtype == np.float32 else odd_single(x)).view(np.uint32)
    rest, negative = bits & np.uint32(0xFFFF), (bits >> np.uint32(31)) == 1
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    half = np.uint32(0x8000)
    up = {
        "rn": (rest > half) | ((rest == half) & (odd == 1)), "rz": np.zeros(x.shape, bool),
        "rm": negative & (rest > 0), "rp": ~negative & (rest > 0),
    }[mode]  # fmt: skip
    out = ((bits >> np.uint32(16)) + up.astype(np.uint32)).astype(np.uint16)
    out = np.where(np.isinf(x), np.where(x > 0, np.uint16(0x7F80), np.uint16(0xFF80)), out)
    if ftz:
        out = np.where((out & np.uint16(0x7F80)) == 0, out & np.uint16(0x8000), out)
    return np.where(np.isnan(x), NAN["bf16"], out)
