"""Q, K and V as an FP8 kernel loads them: scaled, rounded, and rotated so that outliers spread."""

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from fa_lib.formats import FP32, Format, FormatLike, round_to


def quantized(
    x: Float64[Tensor, "*lead n d"], fmt: FormatLike, per: str = "tensor", block: int = 64
) -> Float64[Tensor, "*lead n d"]:
    """x as an FP8 kernel loads it: each part divided by a scale that takes its largest value to the format's largest,
    rounded, and multiplied by the scale again. (A kernel keeps the scales, FP32, and multiplies S and O by them.)

    Args:
        x: float64 (..., sequence, head_dim). fmt: a Format.
        per: "tensor", one scale for all; "head", for each sequence; "block", for every `block` rows of a sequence
            (arXiv 2407.08608, section 3.3).

    Raises:
        ValueError: another `per`.
    """
    if per not in ("tensor", "head", "block"):
        raise ValueError(f"per: got {per!r}; accepted are tensor, head, block")
    fmt = Format.of(fmt)
    parts = x.split(block, -2) if per == "block" else [x]
    out = []
    for part in parts:
        largest = part.abs().amax() if per == "tensor" else part.abs().amax((-2, -1), keepdim=True)
        scale = round_to(torch.where(largest > 0, largest, 1.0) / fmt.max, FP32)
        out.append(round_to((part / scale).clamp(-fmt.max, fmt.max), fmt) * scale)
    return torch.cat(out, -2)


def rotated(
    q: Float64[Tensor, "*lead n_q d"], k: Float64[Tensor, "*kv_lead n_kv d"], seed: int
) -> tuple[Float64[Tensor, "*lead n_q d"], Float64[Tensor, "*kv_lead n_kv d"]]:
    """Q and K, each row multiplied by random signs and a Hadamard matrix: the same scores, and outliers spread over the
    row (incoherent processing, arXiv 2407.08608, section 3.3).

    Args:
        q, k: float64 (..., sequence, head_dim), head_dim a power of two. seed: of the signs.

    Raises:
        ValueError: head_dim is no power of two.
    """
    d = q.shape[-1]
    if d & (d - 1):
        raise ValueError(f"q: got head_dim {d}; accepted is a power of two")
    signs = torch.from_numpy(np.random.default_rng(seed).choice([-1.0, 1.0], d)).to(q)
    return _hadamard(q * signs) / d**0.5, _hadamard(k * signs) / d**0.5


def _hadamard(x):
    """Each row times the Hadamard matrix of its length, by sums and differences of halves."""
    half = 1
    while half < x.shape[-1]:
        pairs = x.unflatten(-1, (-1, 2, half))  # (..., groups, 2, half)
        a, b = pairs.unbind(-2)
        x = torch.stack((a + b, a - b), -2).flatten(-3)
        half *= 2
    return x
