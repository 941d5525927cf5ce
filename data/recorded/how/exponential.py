"""How a GPU computes exponentials: ex2.approx over a whole binade, and exp at every 16-bit value.

Correctly rounded values come from FP64's exp2 and exp, rounded to FP32: wrong where FP64's own error decides a tie,
about once in 2^28 values.
"""

import numpy as np
import torch

SLICE = 1 << 20  # arguments at a time
LOWEST = -64.0
HALVING_STEP = 2.0**-18  # the grid on which x and x - 1 are both FP32 down to LOWEST
INT8 = (-128, 127)


def ex2_table(ex2, device="cpu", step=2.0**-23, halving_step=HALVING_STEP):
    """Measure the errors of a function 2^x on (-64, 0].

    Args:
        ex2: x -> 2^x, a function of FP32 tensors (n,) on `device`.
        device: where the arguments are made, and the FP64 reference is computed.
        step: the grid of the table on (-1, 0], a power of two of at least 2^-24.
        halving_step: the grid of the check that 2^(x - 1) is 2^x / 2, a power of two of at least 2^-18.

    Returns:
        dict of numbers and arrays, for np.savez_compressed: halving_checked, how many arguments x in (-63, 0];
        halving_exceptions, at how many ex2(x - 1) is not ex2(x) / 2; step; ulp, int8 (1 / step,), ex2(-i * step) less
        the correctly rounded value in FP32's units in the last place, cut to int8; ulps and counts, (values,), its
        histogram, not cut; largest_ulp, mean_ulp; at_zero, ex2(0).
    """
    exceptions = 0
    checked = round(-(LOWEST + 1) / halving_step)
    for x in _grid(checked, halving_step, device):
        exceptions += int((ex2(x - 1) != ex2(x) / 2).sum())
    ulp = [_ulps(ex2(x), x.double().exp2()) for x in _grid(round(1 / step), step, device)]
    at_zero = float(ex2(torch.zeros(1, device=device)))
    return {
        "halving_checked": checked,
        "halving_exceptions": exceptions,
        "step": step,
        "at_zero": at_zero,
        **_summary(np.concatenate(ulp)),
    }


def every_16_bit(exp, fmt, device="cpu"):
    """Measure the errors of a function exp(x) at every value of a 16-bit format in [-64, 0].

    Args:
        exp: a function of FP32 tensors (n,), as torch.exp. fmt: torch.bfloat16 or torch.float16.
        device: where the arguments are.

    Returns:
        dict: x, float32 (n,), -0.0 first and falling; ulp, ulps, counts, largest_ulp, mean_ulp, as of `ex2_table`.
    """
    lowest = torch.tensor(LOWEST, dtype=fmt).view(torch.int16).item()  # bit patterns from -0 (the smallest int16) up
    x = torch.arange(-(2**15), lowest + 1, dtype=torch.int32).to(torch.int16).view(fmt).to(torch.float32).to(device)
    return {"x": x.cpu().numpy(), **_summary(_ulps(exp(x), x.double().exp()))}


def _grid(count, step, device):
    """Yield 0, -step, ..., -(count - 1) step in FP32, in slices of SLICE values."""
    for first in range(0, count, SLICE):
        i = torch.arange(first, min(first + SLICE, count), dtype=torch.float64, device=device)
        yield (-step * i).to(torch.float32)


def _ulps(y, exact):
    """Count the FP32 values from `exact`, rounded to FP32, up to y; both (n,) and positive. Returns an int64 array."""
    right = exact.to(torch.float32)
    return (y.contiguous().view(torch.int32).long() - right.view(torch.int32).long()).cpu().numpy()


def _summary(ulp):
    ulps, counts = np.unique(ulp, return_counts=True)
    return {
        "ulp": ulp.clip(*INT8).astype(np.int8),
        "ulps": ulps,
        "counts": counts,
        "largest_ulp": int(abs(ulps).max()),
        "mean_ulp": float(ulp.mean()),
    }
