"""What somebody has of a call: its tensors, and what they believe it computes."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fa_lib.numerics.formats import Format

ENTRIES, HEADS, ROWS = 2, 8, 48  # of the batch, of each entry, of each head: so many are looked at


@dataclass(frozen=True)
class Evidence:
    """A call of attention, and an output that is said to be its.

    Attributes:
        q: (batch, heads, n_q, head_dim). k, v: (batch, kv_heads, n_kv, head_dim), V with head_dim d_v.
        o: (batch, heads, n_q, d_v), or in another order of its dimensions.
        options: what the caller believes: causal, scale, mask, window, softcap, sinks of `kernels.options`.
        others: what else is there of the call: lse, the log-sum-exp of each row's scores (batch, heads, n_q); dO, the
            gradient of o, like it; dq, dk and dv, like q, k and v. In another order of dimensions, too.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    options: dict[str, Any] = field(default_factory=dict)
    others: dict[str, Tensor] = field(default_factory=dict)

    @property
    def fmt(self) -> Format:
        """The format of the inputs."""
        return Format.of(self.q.dtype)


def taken(x: Tensor, entries: Tensor, heads: Tensor, rows: Tensor) -> Tensor:
    """Of a tensor (batch, heads, rows, ...), what stands at these indices: (entries, heads, rows, ...)."""
    return x[entries[:, None, None], heads[:, None], rows]


def spread(count: int, most: float) -> Tensor:
    """Indices of up to `most` of `count` things, evenly spread, the first and the last among them: int64."""
    if count <= most:
        return torch.arange(count)
    return torch.linspace(0, count - 1, int(most), dtype=torch.float64).round().long().unique()
