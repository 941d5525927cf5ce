"""FlashAttention-4's exponentials, for `tiled` to use in place of the exact ones: polynomials, for some keys or all."""

from collections.abc import Callable

import torch
from torch import Tensor

from fa_lib.kernels.exponentials import LOG2_E
from fa_lib.numerics.formats import FP32

# FlashAttention-4's polynomials of 2**f on [0, 1), lowest power first (flash_attn/cute/utils.py). The first coefficient
# is exactly 1, so that the row's maximum has P = 1.
_EXP2 = {
    3: (1.0, 0.695146143436431884765625, 0.227564394474029541015625, 0.077119089663028717041015625),
    4: (1.0, 0.693042695522308349609375, 0.2412912547588348388671875, 0.052225358784198760986328125,
        0.013434938155114650726318359375),
    5: (1.0, 0.693151414394378662109375, 0.24016360938549041748046875, 0.055802188813686370849609375,
        0.00901452265679836273193359375, 0.00186810153536498546600341796875),
}  # fmt: skip


def polynomial_exp(degree: int) -> Callable[[Tensor], Tensor]:
    """Make exp as FlashAttention-4 computes some of its exponentials, in FP32: 2**y = 2**floor(y) times a polynomial of
    degree 3, 4 or 5 of the fraction of y (Cody and Waite's range reduction), by fused multiply-adds. It is a function
    of a float64 tensor of any shape, with FP32 values up to about 100.

    The largest relative errors are 8.8e-5, 3.1e-6 and 1.4e-7 for these degrees (arXiv 2603.05451).
    """
    power = polynomial_exp2(degree)
    return lambda x: power(FP32.round_(x * LOG2_E))


def polynomial_exp2(degree: int) -> Callable[[Tensor], Tensor]:
    """Make 2**y by the polynomial of `polynomial_exp`, with that function's argument, result and error."""
    if degree not in _EXP2:
        raise ValueError(f"degree: got {degree!r}; accepted are {', '.join(map(str, _EXP2))}")
    highest, *lower = _EXP2[degree][::-1]

    def exp2(y):
        y = y.clamp(min=-200)  # -inf gives 0
        exponent = torch.floor(y)
        f, result = y - exponent, torch.full_like(y, highest)  # f exact
        for c in lower:
            result = FP32.round_(result.mul_(f).add_(c))
        return FP32.round_(result.mul_(torch.exp2(exponent)))

    return exp2


RUN, SHARE = 32, 4  # keys of a tile that FlashAttention-4 converts together; keys of a period with the polynomial


def mixed_exp2(period: int) -> Callable[[Tensor], Tensor]:
    """Make 2**y of a tile, float64 (rows, B_c) with FP32 values, as FlashAttention-4 computes it on Blackwell: a
    polynomial of degree 3 for some keys, `ex2.approx` for the others.

    A tile's keys are taken RUN at a time. In each run but the first and the last one, key k has the polynomial where k
    mod period >= period - SHARE; k counts pairs of keys by their even member (`apply_exp2_convert` of
    flash_attn/cute/softmax.py). The rest is 2**y exactly, in place of `ex2.approx`, whose table is not published.
    period: even, above SHARE; 10 and 16 in the source.
    """
    if period % 2 or period <= SHARE:
        raise ValueError(f"period: got {period}; accepted is an even number above {SHARE}")
    polynomial = polynomial_exp2(3)

    def exp2(y):
        key = torch.arange(y.shape[-1], device=y.device)
        run, pair = key // RUN, key % RUN // 2 * 2
        by_polynomial = (pair % period >= period - SHARE) & (run >= 1) & (run < y.shape[-1] // RUN - 1)
        return torch.where(by_polynomial, polynomial(y), torch.exp2(y))

    return exp2
