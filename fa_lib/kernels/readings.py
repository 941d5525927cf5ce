"""Kernels of another convention behind f(q, k, v, ...) as it is asked for: their own scale, their output's layout, the
polarity of their masks, one query a call, a V of another head_dim. The keys of the first are those of
`check.dialect.conventions`."""

import math
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor

from fa_lib.execution.lookup import lookup
from fa_lib.kernels.layouts import LAYOUTS, first_output, heads_before_rows
from fa_lib.kernels.option_names import OwnNames, standard, with_precision


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


def one_query(fn: Callable) -> Callable:
    """Adapt a kernel that takes one query a call, as in decoding: it gets one after the other, under a causal mask with
    the keys up to its own.

    Raises:
        NotImplementedError: at a call with a window or for gradients, or where a query sees no key.
    """

    @wraps(fn)
    def kernel(q, k, v, causal: bool = False, mask: Tensor | None = None, **options: Any):
        if options.get("window") is not None:
            raise NotImplementedError("a window, of one query at a time")
        if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
            raise NotImplementedError("gradients, of one query at a time")
        (n_q, n_kv), outputs = (q.shape[2], k.shape[2]), []
        for i in range(n_q):
            keys = n_kv - n_q + i + 1 if causal else n_kv
            if keys < 1:
                raise NotImplementedError("causal: a query would see no key")
            parts = (_part(q, slice(i, i + 1)), _part(k, slice(keys)), _part(v, slice(keys)))
            if mask is not None:
                options["mask"] = mask[..., i : i + 1, :keys] if mask.shape[-2] > 1 else mask[..., :keys]
            outputs.append(first_output(fn(*parts, **options)))
            if not isinstance(outputs[-1], Tensor):
                return outputs[-1]
        return torch.cat(outputs, 2)

    return kernel


def values_at_a_time(fn: Callable, width: int) -> Callable:
    """Adapt a kernel whose V has a head_dim of its own, `width`: it gets so many values of a wider V at a time.

    Raises:
        NotImplementedError: at a call whose V has fewer.
    """

    @wraps(fn)
    def kernel(q, k, v, **options):
        d, outputs = v.shape[-1], []
        if d < width:
            raise NotImplementedError(f"{width} values")
        for first in range(0, d, width):
            start = min(first, d - width)
            o = first_output(fn(q, k, v[..., start : start + width].contiguous(), **options))
            if not isinstance(o, Tensor) or o.shape[-1] != width:
                return o
            outputs.append(o[..., first - start :])
        return torch.cat(outputs, -1)

    return kernel


def _part(x, rows):
    part = x[:, :, rows]
    return part.contiguous() if x.is_contiguous() else part


READINGS: Mapping[str, Callable[[Callable], Callable]] = {
    "scale_one": partial(scaled, power=-0.5), "scale_one_over_d": partial(scaled, power=0.5),
    "layout_o_bshd": turned_output, "mask_inverted": inverted_mask, "one_query": one_query,
    "v_128": partial(values_at_a_time, width=128), "v_512": partial(values_at_a_time, width=512),
}  # fmt: skip


def is_layout(reading: str) -> bool:
    """Return whether a text is a key of LAYOUTS, and not of READINGS.

    Raises:
        ValueError: it is of neither.
    """
    return reading not in READINGS and bool(lookup("layout", reading, LAYOUTS))


def read_as(fn: Callable, reading: str) -> Callable:
    """Return a kernel of another layout of LAYOUTS, or of another convention of READINGS, adapted to what is asked for
    here.

    Raises:
        ValueError: there is no such layout.
    """
    if not is_layout(reading):
        return READINGS[reading](standard(fn))
    if reading in ("varlen", "paged"):  # called under flash-attn's names
        return LAYOUTS[reading](with_precision(fn))
    return fn if reading == "bhsd" else LAYOUTS[reading](standard(fn, heads=-2))
