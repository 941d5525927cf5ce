"""Exponentials, and a row maximum, of real kernels, for `tiled` to use in place of the exact ones."""

import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from fa_lib.numerics.formats import FP32

# Minimax coefficients of 2**f - 1 - f on [0, 1), lowest power first, as ATen has them.
_COEFFICIENTS = (0.00010703434948458272, 0.30354260500649682, -0.22433836478672356, -0.079204240219773236)


LOG2_E = float(np.float32(math.log2(math.e)))


_SMALLEST = -87.33654022216797  # below it the result is 0


def fast_exp(x: Float64[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
    """Compute exp(x) as torch's flash kernel on CPU does for BF16 and FP16: `fexp_u20` of ATen's vector library.

    After Malossi, Ineichen, Bekas, Curioni (2015), "Fast exponential computation on SIMD architectures": 2**y is put
    together as the bits of a float32, its exponent from floor(y) and its mantissa from y's fraction f, corrected by a
    cubic of f. Every operation is one of FP32. The relative error is up to 1e-4, some 800 ulp of FP32: small beside
    BF16's unit roundoff of 3.9e-3, and not beside FP16's of 4.9e-4.

    Args:
        x: float64, any shape, with FP32 values, x <= 0 (the arguments of softmax); so is the result.
    """
    c0, c1, c2, c3 = (FP32(x.new_tensor(c)) for c in _COEFFICIENTS)
    y = FP32.round_(x * LOG2_E)
    f = y - torch.floor(y)  # exact
    correction = FP32.round_(f * FP32.round_(f * FP32.round_(f * c3 + c2) + c1) + c0)  # fused: one rounding each
    bits = FP32.round_(FP32.round_(y - correction) * 2.0**23 + 127 * 2.0**23)  # exponent and mantissa field
    result = bits.clamp(0).nan_to_num(nan=0).to(torch.int32).view(torch.float32).double()
    return torch.where(x < _SMALLEST, 0.0, result)


def dynamic_maximum(beta: float) -> Callable[[Tensor], Tensor]:
    """Make the row maximum of arXiv 2510.04212, section 4, for `Algorithm.maximum`: where several keys attain it, it is
    replaced by beta times itself if it is positive, and by 0 if it is negative, so that no P is exactly 1. beta: above
    1; from 2 to 8 in the paper.

    As printed it has no bound: a repeated maximum m above some 87 / (beta - 1) makes every P of the row 0 in FP32, and
    the row 0 / 0. It leaves a repeated maximum of 0 as it is.
    """

    def maximum(S):
        m = S.amax(-1, keepdim=True)
        repeated = (m == S).sum(-1, keepdim=True) > 1
        return torch.where(repeated & (m > 0), beta * m, torch.where(repeated & (m < 0), 0.0, m))

    return maximum
