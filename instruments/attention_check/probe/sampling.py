"""Rows of Q that stand for all of a call's: which ones, with the mask that fits them, and how far results are there."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fa_lib.kernels.options import within


@dataclass(frozen=True)
class Sample:
    """A part of a call to attention.

    Attributes:
        q, k, v: (entries, heads, rows, head_dim), and all of the keys and values of these entries.
        options: causal, mask, and what else the call has, for these rows.
        taken: a function that takes the same entries and rows of a tensor like Q.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    options: dict
    taken: Callable[[Tensor], Tensor]

    def seeing(self, golden: Tensor) -> Tensor:
        """(entries, heads, rows, 1): whether a row sees a key."""
        seen, mask = torch.ones_like(golden[..., :1], dtype=torch.bool), self.options["mask"]
        return seen if mask is None else seen & shown(mask).any(-1, keepdim=True)


def sampled(
    q: Tensor, k: Tensor, v: Tensor, queries: int | None, causal: bool = False, mask: Tensor | None = None,
    window: tuple | None = None, **options,
) -> Sample:  # fmt: skip
    """The Sample of a call: `queries` rows of Q for each head (None: all), spread evenly over the sequence and over up
    to sqrt(queries) entries of the batch."""
    batch, n_q, n_kv = q.shape[0], q.shape[2], k.shape[2]
    entries = batch if queries is None else min(batch, math.isqrt(queries))
    rows = n_q if queries is None else min(n_q, queries // entries)
    at, places = (
        torch.linspace(n - 1, 0, of, dtype=torch.float64).round().long().flip(0).to(q.device)  # the last row too
        for n, of in ((batch, entries), (n_q, rows))
    )

    def taken(x):
        x = x[(None,) * (4 - x.ndim)]
        x = x if x.shape[0] == 1 else x[at]
        return x if x.shape[2] == 1 else x[:, :, places]

    mask = None if mask is None else taken(mask)
    if window is not None or causal and rows < n_q:  # rows that are left out move the others
        left, right = window or (None, None)
        near = within(n_q, n_kv, left, 0 if causal else right, q.device)[places]  # (rows, n_kv)
        causal, mask = False, both(near, mask)
    return Sample(taken(q), k[at], v[at], dict(options, causal=causal, mask=mask), taken)


def shown(mask: Tensor) -> Tensor:
    """Which keys a mask, boolean or added, does not hide: a boolean one like it."""
    return mask if mask.dtype == torch.bool else mask > -math.inf


def both(visible: Tensor, mask: Tensor | None) -> Tensor:
    """A mask (..., n_q, n_kv), boolean or added, with what is not visible (n_q, n_kv) hidden too."""
    if mask is None or mask.dtype == torch.bool:
        return visible if mask is None else visible & mask
    return mask.masked_fill(~visible, -math.inf)


def size(x: Tensor, seen: Tensor) -> Tensor:
    """Largest absolute value and root mean square of each head of x (entries, heads, rows, features), over the rows
    that see a key (entries, heads, rows, 1): (2, heads)."""
    x = x.where(seen, 0.0)
    count = seen.sum((0, 2, 3)) * x.shape[-1]
    largest = x.abs().amax((0, 2, 3)).nan_to_num(nan=math.inf, posinf=math.inf)
    return torch.stack([largest, (x.square().sum((0, 2, 3)) / count).sqrt()])


def not_finite(q: Tensor, k: Tensor, v: Tensor, o: Tensor, options: dict) -> str | None:
    """The name of the first tensor of a call that holds NaN or an infinity, or None. A mask may hold -inf; o counts
    where the inputs are finite, in rows that see a key."""
    mask = options.get("mask")
    right = [x.isfinite().all() for x in (q, k, v, o)]
    right.append(torch.ones_like(right[0]) if mask is None or mask.dtype == torch.bool else (mask < math.inf).all())
    *inputs, output, masked = torch.stack(right).tolist()
    if not all(inputs):
        return "qkv"[inputs.index(False)]
    if not masked:
        return "mask"
    if output:
        return None
    seen = sampled(q, k, v, None, **options).seeing(o)
    return None if o.masked_fill(~seen, 0.0).isfinite().all() else "o"


def shares_seen(q: Tensor, k: Tensor, options: dict) -> dict[str, float]:
    """Of a call, masked: the share of pairs of row and key that its mask hides or adds something to, NaN without a
    mask. Of one with as many queries as keys, later: the share of rows that see a key behind their own; own: the share
    that see their own; else NaN."""
    n_q, n_kv = q.shape[-2], k.shape[-2]
    mask, masked = options.get("mask"), math.nan
    visible = torch.ones(n_q, n_kv, dtype=torch.bool, device=q.device)
    if mask is not None:
        masked = (~mask if mask.dtype == torch.bool else mask != 0).double().mean().item()
        visible = shown(mask).expand(*mask.shape[:-2], n_q, n_kv)
    if n_q != n_kv or n_q < 2:
        return dict(masked=masked, later=math.nan, own=math.nan)
    if options.get("causal"):
        visible = visible & within(n_q, n_kv, None, 0, q.device)
    later = visible.triu(1).any(-1)[..., :-1]  # the last row has none behind it
    own = visible.diagonal(dim1=-2, dim2=-1)
    return dict(masked=masked, later=later.double().mean().item(), own=own.double().mean().item())
