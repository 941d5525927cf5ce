"""Kernels of another convention behind f(q, k, v, ...) as it is asked for: their own scale, their output's layout, the
polarity of their masks. The keys are those of `check.dialect.conventions`."""

import math
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor

from fa_lib.kernels.layouts import heads_before_rows
from fa_lib.kernels.option_names import OwnNames


def scaled(fn: Callable, power: float) -> Callable:
    """Adapt a kernel whose own scale is head_dim^(-1/2 - power), where 1 / sqrt(head_dim) is asked for.

    One that takes a scale is given it. Of others Q is multiplied by head_dim^power, where that rounds nothing.

    Raises:
        NotImplementedError: at a call without a scale; head_dim^power is no power of two.
    """
    takes = OwnNames.of(fn).options.get("scale", "scale")

    @wraps(fn)
    def kernel(q, k, v, **options):
        d = q.shape[-1]
        if options.get("scale") is not None:
            return fn(q, k, v, **options)
        if takes:
            return fn(q, k, v, **options | dict(scale=d**-0.5))
        factor = d**power
        if math.frexp(factor)[0] != 0.5:
            raise NotImplementedError(f"its own scale, without rounding Q, at head_dim {d}")
        return fn(q * factor, k, v, **options)

    return kernel


def turned_output(fn: Callable) -> Callable:
    """Adapt a kernel that returns (batch, sequence, heads, head_dim) for inputs (batch, heads, sequence, head_dim)."""

    @wraps(fn)
    def kernel(q, k, v, **options):
        return heads_before_rows(fn(q, k, v, **options))

    return kernel


def inverted_mask(fn: Callable) -> Callable:
    """Adapt a kernel for which True in a boolean mask is a hidden key; here it is one that is seen."""

    @wraps(fn)
    def kernel(q, k, v, **options: Any):
        mask = options.get("mask")
        if isinstance(mask, Tensor) and mask.dtype == torch.bool:
            options["mask"] = ~mask
        return fn(q, k, v, **options)

    return kernel


READINGS: Mapping[str, Callable[[Callable], Callable]] = {
    "scale_one": partial(scaled, power=-0.5), "scale_one_over_d": partial(scaled, power=0.5),
    "layout_o_bshd": turned_output, "mask_inverted": inverted_mask,
}  # fmt: skip
