"""Exponentials that real kernels use instead of a correctly rounded one."""

import math

import torch

from fa_lib.formats import FP32

# Minimax coefficients of 2**f - 1 - f on [0, 1), lowest power first, as ATen has them.
_COEFFICIENTS = (0.00010703434948458272, 0.30354260500649682, -0.22433836478672356, -0.079204240219773236)
_LOG2_E = FP32(torch.tensor(math.log2(math.e), dtype=torch.float64))
_SMALLEST = -87.33654022216797  # below it the result is 0


def fast_exp(x):
    """exp(x) as torch's flash kernel on CPU computes it for BF16 and FP16: `fexp_u20` of ATen's vector library.

    After Malossi, Ineichen, Bekas, Curioni (2015), "Fast exponential computation on SIMD architectures": 2**y is put
    together as the bits of a float32, its exponent from floor(y) and its mantissa from y's fraction f, corrected by a
    cubic of f. Every operation is one of FP32. The relative error is up to 1e-4, some 800 ulp of FP32: small beside
    BF16's unit roundoff of 3.9e-3, and not beside FP16's of 4.9e-4.

    Args:
        x: float64 tensor with FP32 values, x <= 0 (the arguments of softmax).

    Returns:
        float64 tensor with FP32 values.
    """
    c0, c1, c2, c3 = (FP32(x.new_tensor(c)) for c in _COEFFICIENTS)
    y = FP32(x * _LOG2_E.to(x.device))
    f = y - torch.floor(y)  # exact
    correction = FP32(f * FP32(f * FP32(f * c3 + c2) + c1) + c0)  # by fused multiply-adds: one rounding each
    bits = FP32(FP32(y - correction) * 2.0**23 + 127 * 2.0**23)  # exponent and mantissa field of the result
    result = bits.clamp(0).nan_to_num(nan=0).to(torch.int32).view(torch.float32).double()
    return torch.where(x < _SMALLEST, 0.0, result)
