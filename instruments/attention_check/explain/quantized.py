"""Attention of quantised operands: FP8, block scales, and integers as caches hold them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from attention_check.explain.integer_caches import GROUP, by_row, q4_0, q8_0
from attention_check.measure import mistakes
from attention_check.tolerance import BLOCK
from fa_lib import kernels
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.quantization_schemes import SCHEMES
from fa_lib.kernels.quantized_attention import Quantization, attention
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import Format

FLOATS = ("FP8_HEAD", "FP8_TOKEN", "MXFP8", "NVFP4")  # of kernels.SCHEMES
SMOOTH = "INT8_SMOOTH"  # K less its mean over keys: all scores of a row change by one number, and the softmax stays


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
