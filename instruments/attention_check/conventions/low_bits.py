"""Q, K and V in 8 bits with their scales, and what a right kernel makes of them; and in whole numbers, as caches hold
them: llama.cpp's Q8_0 and Q4_0, and rows with a scale each."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fa_lib import kernels
from fa_lib.kernels import quantized_attention
from fa_lib.kernels.algorithm import Algorithm
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.quantized_attention import Quantization
from fa_lib.kernels.rule import baseline_for
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import E4M3, E5M2, FP16, FP32, Format

EIGHT_BITS = {torch.float8_e4m3fn: "E4M3", torch.float8_e5m2: "E5M2", torch.int8: "INT8"}
SCALES = ("q_scale", "k_scale", "v_scale")  # by which a tensor is multiplied
GROUP = 32  # values with one scale, of llama.cpp's caches
FEWEST = 64  # values of q and of k that are not 0, and
DISTINCT = 16  # of different size: a few round numbers lie on any grid


def _shifted(fmt):
    """A format of P, up to 1, times the power of two that uses all of the format."""
    return replace(fmt, emin=fmt.emin - fmt.emax, emax=0, max=fmt.max / 2.0**fmt.emax)


OF_P = {  # format of q, k and v -> that of P in a right kernel; integers have one step, 1 / 128
    "E4M3": _shifted(E4M3), "E5M2": _shifted(E5M2), "INT8": Format("INT8", 8, 8, 0, 0, 1.0, False),
}  # fmt: skip


def dequantised(found: Mapping[str, Tensor], scales: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    """q, k and v times their scales, and the format of the kernel that takes them.

    Args:
        found: q, k and v, (batch, heads, sequence, features). scales: of SCALES; one number, one of each head
            (heads,) or (batch, heads), of each block of a head's rows or each row (batch, heads, blocks), or of groups
            of features too (batch, heads, blocks, groups); of each feature alone (batch, heads, head_dim).

    Returns:
        The tensors, in FP32 where one is in 8 bits or scaled; and a key of OF_P, or a format's name, in which the
        kernel computes: "" where none is in 8 bits.

    Raises:
        ValueError: a scale does not fit its tensor, or a tensor of integers has none.
    """
    low = {name: EIGHT_BITS[x.dtype] for name, x in found.items() if x.dtype in EIGHT_BITS}
    if not low and not scales:
        return dict(found), ""
    for name, fmt in low.items():
        if fmt == "INT8" and f"{name}_scale" not in scales:
            raise ValueError(f"{name}: got INT8 without {name}_scale; accepted is it with one")
    values = {
        name: (_scaled(name, x, scales[f"{name}_scale"]) if f"{name}_scale" in scales else x).float()
        for name, x in found.items()
    }
    wide = [x.dtype for name, x in found.items() if name not in low]
    kernel = Format.of(wide[0]).name if wide else low["v"]  # integers for q k^T alone: P is in v's
    return values, kernel


def _scaled(name, x, scale):
    """A tensor of up to four dimensions times its scales."""
    scale, shape = scale.double(), (1,) * (4 - x.ndim) + tuple(x.shape)
    if scale.numel() == 1:
        return x.double() * scale.reshape(())
    scale = scale[None] if scale.ndim == 1 else scale
    if scale.ndim == 3 and shape[2] != scale.shape[2] == shape[3]:
        scale = scale[:, :, None]
    full = scale.reshape(*scale.shape, *(1,) * (4 - scale.ndim)) if scale.ndim <= 4 else scale
    if name == "q" and full.ndim == 4 and shape[1] % full.shape[1] == 0:  # one a head of k, as FlashAttention-3 has it
        full = full.repeat_interleave(shape[1] // full.shape[1], 1)
    if full.ndim != 4 or full.shape[0] not in (1, shape[0]) or full.shape[1] not in (1, shape[1]):
        got = f"{name}_scale: got shape {tuple(scale.shape)} for {name} {shape}"
        raise ValueError(f"{got}; accepted is one number, (heads,), or (batch, heads, blocks, groups) without the last")
    for axis in (2, 3):
        n, blocks = shape[axis], full.shape[axis]
        if not 1 <= blocks <= n:
            raise ValueError(f"{name}_scale: got {blocks} blocks of {n}; accepted are as many as {name} has, or fewer")
        if blocks > 1:
            full = full.repeat_interleave(-(-n // blocks), axis).narrow(axis, 0, n)
    return (x.double() * full).reshape(x.shape)


def on_grid(q: Tensor, k: Tensor, v: Tensor) -> str:
    """A format of 8 bits on whose grid all values of wider tensors lie, as of a kernel that takes it; "" if none."""
    if any(int((x != 0).sum()) < FEWEST or len(x.abs().unique()) < DISTINCT for x in (q, k)):
        return ""
    for fmt in (E4M3, E5M2):
        if all(torch.equal(fmt(x.double()), x.double()) for x in (q, k, v)):
            return fmt.name
    return ""


def precision_of(fmt: Format, inputs: Format, output: Format) -> Precision:
    """Of a right kernel that computes in a format, of inputs that are as they are held."""
    return replace(Precision.kernel(fmt), inputs=inputs, output=output)


def baseline_in(arithmetic: str, fmt: Format | str) -> Callable[..., Tensor]:
    """Baseline of kernels of a format that round Q, K, V and P to fewer bits, as `Scheme.of` names them: "FP8_HEAD" has
    a scale a head; "" is none, `rule.baseline_for`. P is multiplied by 2**8 first where it has no scale, as
    FlashAttention-3 does. A ValueError where there is no such arithmetic."""
    if not arithmetic:
        return baseline_for(fmt)
    how = Quantization.of(arithmetic)
    algorithm = Algorithm("fa2", p_exponent_offset=8 if how.p and how.p.per == "none" else None)
    settings: dict[str, Any] = dict(tiling=Tiling(64, 64), precision=Precision.kernel(fmt), algorithm=algorithm)
    return partial(quantized_attention.attention, quantization=how, **settings)


def baseline_of(fmt: Format, output: Format) -> Callable[..., Tensor]:
    """Baseline (`rule.baseline_for`) of q, k and v in FP32 or wider, rounded to its format; in 8 bits emulated."""
    if fmt.name in OF_P:
        return partial(kernels.tiled, tiling=Tiling(64, 64), precision=precision_of(fmt, FP32, output))
    rounded = baseline_for(fmt)
    return lambda q, k, v, **options: rounded(*(x.to(fmt.dtype) for x in (q, k, v)), **options)


def q8_0(x: Tensor) -> Tensor:
    """Values as llama.cpp's Q8_0 holds them: integers to 127, times a scale in FP16 for each GROUP of the last
    dimension."""
    return by_row(x.unflatten(-1, (-1, GROUP)), 127, FP16).flatten(-2)


def q_0(x: Tensor, bits: int) -> Tensor:
    """Values as llama.cpp's Q4_0 and Q5_0 hold them: integers of so many bits, of which the largest value is the least,
    times a scale."""
    parts, most = x.unflatten(-1, (-1, GROUP)), 2 ** (bits - 1)
    largest = parts.gather(-1, parts.abs().argmax(-1, keepdim=True))
    scale = FP32(largest / -most)  # as it is; FP16 is what is kept of it
    steps = (parts / scale.where(scale != 0, 1.0) + most + 0.5).floor().clamp(0, 2 * most - 1) - most
    return (steps * FP16(scale)).flatten(-2)


def q_1(x: Tensor, bits: int) -> Tensor:
    """Values as llama.cpp's Q4_1 and Q5_1 hold them: from the least to the largest, in equal steps."""
    parts, most = x.unflatten(-1, (-1, GROUP)), 2**bits - 1
    least = parts.amin(-1, keepdim=True)
    scale = FP32((parts.amax(-1, keepdim=True) - least) / most)
    steps = ((parts - least) / scale.where(scale != 0, 1.0) + 0.5).floor().clamp(0, most)
    return (steps * FP16(scale) + FP16(least)).flatten(-2)


def scaled(x: Tensor, power: float, fmt: Format = E4M3) -> Tensor:
    """x in a format with one scale, 2**power times the least with which it does not overflow."""
    scale = x.abs().amax().clamp(min=1e-300) / fmt.max * 2.0**power
    return fmt((x / scale).clamp(-fmt.max, fmt.max)) * scale


def by_row(x: Tensor, most: int, fmt: Format = FP32) -> Tensor:
    """Integers up to `most`, times a scale in a format for each row (..., values)."""
    scale = FP32(x.abs().amax(-1, keepdim=True) / most)
    return (x / scale.where(scale != 0, 1.0)).round().clamp(-most, most) * fmt(scale)


def between(x: Tensor, bits: int, size: int) -> Tensor:
    """x (..., n, features) in 2**bits equal steps from the least to the largest of each `size` values of a feature."""
    parts = x.split(size, -2)
    low, high = (torch.cat([getattr(part, end)(-2, keepdim=True).expand_as(part) for part in parts], -2)
                 for end in ("amin", "amax"))  # fmt: skip
    step = (high - low) / (2**bits - 1)
    return ((x - low) / step.where(step != 0, 1.0)).round() * step + low


def in_blocks(x: Tensor, rows: int) -> Tensor:
    """x (n, features) as integers to 127, times a scale in FP32 for each block of so many rows."""
    return torch.cat([by_row(block.flatten(), 127).reshape(block.shape) for block in x.split(rows)])
