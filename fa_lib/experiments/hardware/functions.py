"""The special functions of a GPU, as tables: every result over whole binades, and whether the other binades follow from
these; samples everywhere.

The references are FP64's functions, rounded to FP32. A table keeps the distance of each result from its reference in
units of FP32's last place, which compresses well, and the CRC of the results themselves.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

BINADE = 1 << 23
FRACTION = BINADE - 1


@dataclass(frozen=True)
class Function:
    """A special function.

    Attributes:
        key: its launcher in instructions.cu. exactly: in FP64. exponents: of the binades [2^e, 2^(e+1)) that are kept.
        stride: which of their numbers are: each, or each so-manieth.
    """

    key: str
    exactly: Callable[[Tensor], Tensor]
    exponents: tuple[int, ...]
    stride: int = 1


FUNCTIONS = (
    Function("ex2_ftz", torch.exp2, (0,)),
    Function("rcp_ftz", torch.reciprocal, (0,)),
    Function("rsqrt_ftz", torch.rsqrt, (0, 1)),
    Function("sqrt_ftz", torch.sqrt, (0, 1)),
    Function("lg2_ftz", torch.log2, (-1, 0, 1, 3)),
    Function("tanh_f32", torch.tanh, tuple(range(-13, 4)), 64),
    Function("sin_ftz", torch.sin, (-3, -1, 0, 1, 2), 8),
    Function("cos_ftz", torch.cos, (-3, -1, 0, 1, 2), 8),
)
SAMPLED = (*(each.key for each in FUNCTIONS), "ex2", "lg2_f32", "rcp_f32", "rsqrt_f32", "sqrt_f32")
BINARY = ("div_ftz", "div_f32", "div_full_ftz", "div_full")
SHORT = ("ex2_f16", "ex2_ftz_bf16", "tanh_f16", "tanh_bf16")
SAMPLES = 1 << 16
ROUNDED = {"down": torch.floor, "toward zero": torch.trunc, "to nearest": torch.round}  # of x in units of 2^-23


def binade(exponent: int, stride: int, device: str) -> Tensor:
    """All FP32 numbers of [2^e, 2^(e+1)), or each so-manieth: (2^23 / stride,)."""
    first = (exponent + 127) << 23
    return torch.arange(first, first + BINADE, stride, dtype=torch.int32, device=device).view(torch.float32)


def table(function: Callable[[Tensor], Tensor], each: Function, exponent: int, device: str) -> dict[str, np.ndarray]:
    """Make the table of one binade: ulp, int8 or wider (2^23 / stride,), and crc of the results' bytes."""
    x = binade(exponent, each.stride, device)
    y = function(x).cpu()
    right = each.exactly(x.cpu().double()).to(torch.float32)
    ulp = (y.view(torch.int32).long() - right.view(torch.int32).long()).numpy()
    return dict(ulp=_narrow(ulp), crc=np.array(zlib.crc32(y.numpy().tobytes())))


def scaled(function: Callable[[Tensor], Tensor], period: int, power: float, device: str) -> np.ndarray:
    """Count in which binades f(2^(period i) x) is not f(x) 2^(power period i): int64 rows (sign, e, exceptions), where
    both are normal numbers. rcp has period 1 and power -1, sqrt 2 and 1/2, rsqrt 2 and -1/2.
    """
    rows = []
    base = [function(binade(e, 1, device)).double() for e in range(period)]
    for e in range(-126, 128):
        x = binade(e, 1, device)
        for sign in (1, -1) if period == 1 else (1,):
            y, i = function(sign * x).double(), e // period
            due = sign * base[e % period] * 2.0 ** (power * period * i)
            normal = due.abs() >= 2.0**-126
            rows.append((sign, e, int(((y != due) & normal).sum())))
    return np.array(rows)


def powers(ex2: Callable[[Tensor], Tensor], device: str) -> tuple[np.ndarray, np.ndarray]:
    """Look how ex2 takes arguments that are no multiples of 2^-23: whether its result is that of the table for [1, 2) at
    the fraction of x, in units of 2^-23 rounded in one of the ways of ROUNDED, times a power of two.

    Returns:
        counts: int64 rows (sign, e, exceptions for each of ROUNDED), of all x in (-126, 128) above 2^-40 in size.
        examples: float32 rows (x, ex2(x)), some of those for which none of ROUNDED is right.
    """
    base = (ex2(binade(0, 1, device)) / 2).double()
    rows, examples = [], []
    for sign in (1, -1):
        for e in range(-40, 7):
            x = sign * binade(e, 1, device)
            x = x[x > -126]
            if not len(x):
                continue
            y, wrong = ex2(x).double(), torch.ones_like(x, dtype=torch.bool)
            counts = []
            for rounded in ROUNDED.values():
                steps = rounded(x.double() * BINADE).long()
                due = torch.ldexp(base[steps & FRACTION], steps >> 23)
                counts.append(int((y != due).sum()))
                wrong &= y != due
            rows.append((sign, e, *counts))
            if wrong.any():
                some = x[wrong][:: max(int(wrong.sum()) // 500, 1)][:500]
                examples.append(torch.stack([some, ex2(some)], 1).cpu())
    return np.array(rows), torch.cat(examples or [torch.zeros(0, 2)]).numpy()


def operands(count: int) -> list[np.ndarray]:
    """Draw `count` operands for `sampled`: float32 (2 SAMPLES,) each, first of any bits, then of sizes 2^-30 to 2^30."""
    chance, drawn = np.random.default_rng(0), []
    for _ in range(count):
        anything = chance.integers(0, 1 << 32, SAMPLES, dtype=np.uint32)
        sizes = np.ldexp(chance.uniform(1, 2, SAMPLES), chance.integers(-30, 30, SAMPLES)).astype(np.float32)
        usual = sizes * chance.choice([-1, 1], SAMPLES).astype(np.float32)
        drawn.append(np.concatenate([anything.view(np.float32), usual]))
    return drawn


def sampled(function: Callable[..., Tensor], count: int, device: str) -> dict[str, np.ndarray]:
    """Return y, the results' bits for `operands`, uint32 (2 SAMPLES,)."""
    y = function(*(torch.from_numpy(x).to(device) for x in operands(count)))
    return dict(y=y.cpu().numpy().view(np.uint32))


def _narrow(values: np.ndarray) -> np.ndarray:
    for dtype in (np.int8, np.int16, np.int32):
        if np.array_equal(values.astype(dtype), values):
            return values.astype(dtype)
    return values
