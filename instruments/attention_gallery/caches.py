"""What kernels of few bits hold of K and V, and how far a kernel is from the golden value beside what these bits cost.

Our rule is meant for kernels that hold K and V in the format. A cache of 4 or 8 bits makes a larger error before any
kernel computes, so that its kernel is held to that: at most twice the error of exact attention on what the
cache holds.
"""

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from attention_check.conventions.low_bits import by_row, q8_0, q_0
from fa_lib import kernels
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.precision import Precision
from fa_lib.numerics.formats import BF16, FP16, Format
from fa_lib.numerics.metrics import over_baseline

LENGTHS = (128, 1024)  # keys that kernels are asked for
Q_ROWS, K_ROWS = 128, 64  # of a block that has one scale in SageAttention 1


def with_zero_points(x: Tensor, steps: int, fmt: Format) -> Tensor:
    """Return x (..., n, head_dim), float64, as LMDeploy's cache holds it: whole numbers from 0 to `steps` in each row,
    and a scale and a zero point in the model's format (fill_kv_cache.py, lines 23 to 43)."""
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    scale = (high - low) / steps
    zero = -low / scale
    whole = (x / scale + zero + 0.5).floor().clamp(0, steps)
    return (whole - fmt(zero)) * fmt(scale)


def by_blocks(x: Tensor, rows: int) -> Tensor:
    """Return x (..., n, head_dim), float64, as whole numbers up to 127 times a scale for each block of rows."""
    blocks = (by_row(block.flatten(-2), 127).unflatten(-1, block.shape[-2:]) for block in x.split(rows, -2))
    return torch.cat([*blocks], -2)


def _both(hold: Callable[[Tensor, Format], Tensor]):
    return lambda q, k, v, fmt: (q, hold(k, fmt), hold(v, fmt))


Q8_0, Q4_0 = _both(lambda x, fmt: q8_0(x)), _both(lambda x, fmt: q_0(x, 4))
QUANTISED_INPUTS: dict[str, Callable[[Tensor, Tensor, Tensor, Format], tuple[Tensor, Tensor, Tensor]]] = {
    "ggml_q8_0": Q8_0, "ggml_q4_0": Q4_0, "llama_cuda_q8_0": Q8_0, "llama_cuda_q4_0": Q4_0,
    "lmdeploy_decode_int8": _both(lambda x, fmt: with_zero_points(x, 255, fmt)),
    "lmdeploy_decode_int4": _both(lambda x, fmt: with_zero_points(x, 15, fmt)),
    "sageattention_a100": lambda q, k, v, fmt: (by_blocks(q, Q_ROWS), by_blocks(k - k.mean(-2, True), K_ROWS), v),
}  # fmt: skip


def over_bits(key: str, kernel: Callable) -> float:
    """Return how many times as large as the error of its bits a kernel's error is, the largest of calls: with one
    query, or as many as keys where Q is held in few bits too; BF16 and FP16, uniform and normal inputs, LENGTHS keys.
    The error of its bits is the larger of two: that of exact attention on what is held, and Baseline's. key: of
    QUANTISED_INPUTS. kernel: f(q, k, v) on (1, 1, n, 64)."""
    calls = product((BF16, FP16), LENGTHS, ("uniform", "normal"))
    return max(_over_bits(key, kernel, *call) for call in calls)


def _over_bits(key, kernel, fmt, n, distribution):
    n_q = n if key.startswith("sage") else 1
    q, k, v = draw(distribution, 0, (1, 1, n_q, 64), (1, 1, n, 64))
    q, k, v = (fmt(x) for x in (q, k, v))
    golden = kernels.golden(q, k, v, inputs=fmt)
    exact = kernels.reference(*QUANTISED_INPUTS[key](q, k, v, fmt), precision=Precision.uniform("FP64"), scale=64**-0.5)
    baseline = kernels.reference(q, k, v, precision=Precision.materialized(fmt))
    o = kernel(*(x.to(fmt.dtype) for x in (q, k, v)))
    error, bits, rounding = ((each.double() - golden).abs().max().item() for each in (o, exact, baseline))
    return over_baseline(error, max(bits, rounding))
