"""Attention of quantised operands: FP8, block scales, and integers as caches hold them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from fa_lib import kernels
from fa_lib.check.measure import mistakes
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.quantization_schemes import SCHEMES
from fa_lib.kernels.quantized_attention import Quantization, attention
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import FP16, FP32, Format
from fa_lib.theory.tolerance import BLOCK

FLOATS = ("FP8_HEAD", "FP8_TOKEN", "MXFP8", "NVFP4")  # of kernels.SCHEMES
SMOOTH = "INT8_SMOOTH"  # K less its mean over keys: all scores of a row change by one number, and the softmax stays
GROUP = 32  # values with one scale, of llama.cpp's caches


def q8_0(x: Tensor) -> Tensor:
    """Values as llama.cpp's Q8_0 holds them: integers to 127, times a scale in FP16 for each GROUP of the last
    dimension."""
    return _integers(x.unflatten(-1, (-1, GROUP)), 127, FP16).flatten(-2)


def q4_0(x: Tensor) -> Tensor:
    """Values as llama.cpp's Q4_0 holds them: integers from -8 to 7, the largest value being -8 times its scale."""
    parts = x.unflatten(-1, (-1, GROUP))
    largest = parts.gather(-1, parts.abs().argmax(-1, keepdim=True))
    scale = FP16(FP32(largest / -8))
    steps = (parts / scale.where(scale != 0, 1.0) + 8.5).floor().clamp(0, 15) - 8
    return (steps * scale).flatten(-2)


def by_row(x: Tensor, most: int) -> Tensor:
    """Integers up to `most`, times a scale in FP32 for each row."""
    return _integers(x, most, FP32)


def _integers(parts: Tensor, most: int, fmt: Format) -> Tensor:
    """Parts (..., values) as integers times a scale in a format."""
    scale = fmt(FP32(parts.abs().amax(-1, keepdim=True) / most))
    return (parts / scale.where(scale != 0, 1.0)).round().clamp(-most, most) * scale


INTEGERS: dict[str, Callable[[Tensor], Tensor]] = {
    "Q8_0": q8_0, "Q4_0": q4_0, "INT8": partial(by_row, most=127), "INT4": partial(by_row, most=7),
}  # fmt: skip


def quantized(rows: mistakes.Rows, fmt: Format, bias: Tensor) -> Iterator[tuple[str, str, Tensor]]:
    """Attention of rows in few bits: "quantized" (Q, K, V and P), "quantized_qkv", "quantized_kv" or "quantized_qk";
    the key of SCHEMES or INTEGERS, or SMOOTH; and the output.

    Args:
        fmt: of the inputs. bias: added to the scores, (rows, n_kv).
    """
    settings: dict[str, Any] = dict(mask=bias, scale=rows.options["scale"], softcap=rows.options["softcap"])
    settings |= dict(tiling=Tiling(64, BLOCK), precision=Precision.kernel(fmt))
    for key in FLOATS:
        group = SCHEMES[key].size if SCHEMES[key].per == "group" else 1
        if rows.q.shape[-1] % group or rows.v.shape[-1] % group or rows.k.shape[0] % group:
            continue
        of_all = Quantization.of(key)
        for name, quantization in (
            ("quantized", of_all), ("quantized_qkv", replace(of_all, p=None)),
            ("quantized_kv", Quantization.cache(key)),
        ):  # fmt: skip
            yield name, key, attention(rows.q, rows.k, rows.v, quantization, **settings)
    for key, integers in INTEGERS.items():
        if key.endswith("_0") and (rows.q.shape[-1] % GROUP or rows.v.shape[-1] % GROUP):
            continue
        q, k, v = (integers(x) for x in (rows.q, rows.k, rows.v))
        for name, tensors in (
            ("quantized_kv", (rows.q, k, v)), ("quantized_qkv", (q, k, v)), ("quantized_qk", (q, k, rows.v)),
        ):  # fmt: skip
            yield name, key, kernels.tiled(*tensors, **settings)
    q, k = by_row(rows.q, 127), by_row(rows.k - rows.k.mean(0), 127)  # as SageAttention takes its mean off K
    yield "quantized_qk", SMOOTH, kernels.tiled(q, k, rows.v, **settings)
