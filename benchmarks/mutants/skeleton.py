"""The right kernel that mutants are made of: FlashAttention-2 in FP32, tile by tile, with a place for each defect.

A mutant has one other step, and is right in every other respect: `changed` makes it, or it calls `attention` itself.
"""

import csv
import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor


@dataclass(frozen=True)
class Mutant:
    """A kernel of the gallery: with one defect, or a control with none.

    Attributes:
        kernel: f(q, k, v, causal=False, scale=None, ...), a function of a module.
        defect: one plain sentence; of a control, its style.
        source: a public thread or paper that tells of such a defect; "" where it is ours.
        unseen: why no judge from outside could see it, or not always; "" where one should.
        told: why it is told, and does not count; "" where it should count.
        needs: what shows it, and the calls of `other_judges` do not have.
    """

    kernel: Callable
    defect: str
    source: str = ""
    unseen: str = ""
    told: str = ""
    needs: str = ""

    @property
    def key(self) -> str:
        """The function's name."""
        return self.kernel.__name__

    @property
    def name(self) -> str:
        """For `kernels.get`: package.module:function."""
        return f"{self.kernel.__module__}:{self.key}"


def listed(package: str) -> tuple[tuple[Mutant, ...], ...]:
    """The right kernels of a package, and its mutants, as its kernels.csv lists them."""
    with open(Path(__file__).parents[1] / package / "kernels.csv") as file:
        rows = [*csv.DictReader(file)]

    def of(row):
        kernel = getattr(import_module(f"benchmarks.{package}.{row['module']}"), row["kernel"])
        return Mutant(kernel, row["text"], row["source"], row["unseen"], row["told"], row["needs"])

    return tuple(tuple(of(row) for row in rows if row["kind"] == kind) for kind in ("right", "mutant"))


def valued(x: Tensor, value: Tensor) -> Tensor:
    """x with another value, near its own, and its own gradient: as a kernel's cast has it. It is exact where value is x
    rounded."""
    return x + (value.to(x.dtype) - x).detach()


def repeated(x: Tensor, heads: int) -> Tensor:
    """K or V (..., kv_heads, n_kv, d), each head repeated for the heads of Q that share it."""
    return x.repeat_interleave(heads // x.shape[-3], -3)


def scale_of(head_dim: int, scale: float | None) -> float:
    """Of the scores."""
    return head_dim**-0.5 if scale is None else scale


def visible(n_q: int, n_kv: int, causal: bool, window: tuple | None) -> Tensor:
    """Boolean (n_q, n_kv), True where a query sees a key; aligned bottom-right. window: (left, right) keys beside its
    own, None has no limit."""
    left, right = window or (None, None)
    right = 0 if causal else right
    ahead = torch.arange(n_kv) - torch.arange(n_q)[:, None] - (n_kv - n_q)  # of the query's own place
    seen = torch.ones(n_q, n_kv, dtype=torch.bool)
    seen = seen if left is None else seen & (ahead >= -left)
    return seen if right is None else seen & (ahead <= right)


def begun(sinks: Tensor | None, l: Tensor) -> tuple[Tensor, Tensor]:
    """m and l (..., n_q, 1) before the first tile. sinks: a logit for each head, whose mass joins l."""
    if sinks is None:
        return torch.full_like(l, -math.inf), l
    return sinks.to(l)[..., None, None].expand_as(l), torch.ones_like(l)


@dataclass(frozen=True)
class Steps:
    """What the kernel does at each step. A mutant changes one.

    Attributes:
        read: Q, K, V in FP32, or FP64 -> as they are used. heads, scale, seen, begin: the functions above.
        clear: V (..., B_c, d_v), and who sees its keys (..., n_q, B_c) -> V without those that no query sees: 0 times
            NaN would be NaN.
        scores: S of a tile, and the number of its first key -> S.
        exp, factor: of scores less their maximum, of the maximum less a new one.
        probs: P, and the inputs' dtype -> P as it multiplies V.
        maximum: m, S of a tile -> the maximum so far. rescale: O, factor -> O for the new maximum.
        carry: O (..., n_q, d_v), l (..., n_q, 1) -> as they are carried from tile to tile.
        divide: O, l -> O / l, 0 where a row sees no key. store: that, and the inputs' dtype -> the output.
        part: P V of a tile, and the inputs' dtype -> as it is added to O.
        tiles: n_kv, tile -> first and last + 1 key of each tile, in their order.
        hide: the score of a key that is not seen.
        tile: keys at a time.
    """

    read: Callable = lambda q, k, v: (q, k, v)
    heads: Callable = repeated
    scale: Callable = scale_of
    seen: Callable = visible
    clear: Callable = lambda v, seen: v.masked_fill(~seen.any(-2)[..., None], 0)
    begin: Callable = begun
    scores: Callable = lambda S, first: S
    exp: Callable = torch.exp
    factor: Callable = torch.exp
    probs: Callable = lambda P, dtype: valued(P, P.to(dtype))
    part: Callable = lambda O, dtype: O
    maximum: Callable = lambda m, S: torch.maximum(m, S.amax(-1, keepdim=True))
    rescale: Callable = lambda O, factor: O * factor
    carry: Callable = lambda O, l: (O, l)
    tiles: Callable = lambda n, tile: [(j, min(j + tile, n)) for j in range(0, n, tile)]
    divide: Callable = lambda O, l: O / l.where(l > 0, 1)
    store: Callable = lambda O, dtype: O.to(dtype)
    hide: float = -math.inf
    tile: int = 64


def attention(q, k, v, causal=False, scale=None, mask=None, window=None, sinks=None, steps=Steps()):  # noqa: B008
    """Attention on (batch, heads, sequence, head_dim); K and V may have fewer heads. Gradients by autograd, in FP32.

    Args:
        mask: boolean, True visible, or added to the scores. window: (left, right). sinks: a logit for each head.
    """
    p, dtype = steps, q.dtype
    wide = torch.promote_types(dtype, torch.float32)
    q, k, v = p.read(*(x.to(wide) for x in (q, k, v)))
    k, v = p.heads(k, q.shape[-3]), p.heads(v, q.shape[-3])
    n_q, n_kv = q.shape[-2], k.shape[-2]
    q = q * p.scale(q.shape[-1], scale)
    seen = p.seen(n_q, n_kv, causal, window).to(q.device)
    bias = None
    if mask is not None and mask.dtype == torch.bool:
        seen = seen & mask
    elif mask is not None:
        bias = mask.to(wide).expand(*mask.shape[:-2], n_q, n_kv)
    m, l = p.begin(sinks, q.new_zeros(*q.shape[:-1], 1))  # (..., n_q, 1)
    O = torch.zeros_like(q[..., :1] * v[..., :1, :])  # (..., n_q, d_v)
    for first, last in p.tiles(n_kv, p.tile):
        S = q @ k[..., first:last, :].mT  # (..., n_q, B_c)
        S = S if bias is None else S + bias[..., first:last]
        S = p.scores(S, first).masked_fill(~seen[..., first:last], p.hide)
        m_new = p.maximum(m, S).detach()
        at = m_new.where(m_new > -math.inf, 0)  # of rows that see no key yet
        P, factor = p.exp(S - at), p.factor(m - at)
        l = l * factor + P.sum(-1, keepdim=True)
        PV = p.probs(P, dtype) @ p.clear(v[..., first:last, :], seen[..., first:last])  # (..., n_q, d_v)
        O = p.rescale(O, factor) + p.part(PV, dtype)
        (O, l), m = p.carry(O, l), m_new
    return p.store(p.divide(O, l), dtype)


def changed(key: str, module: str, **steps) -> Callable:
    """The kernel with other steps, as the function `key` of a module."""
    own = Steps(**steps)

    def kernel(q, k, v, **options):
        return attention(q, k, v, **options, steps=own)

    kernel.__name__ = kernel.__qualname__ = key
    kernel.__module__ = module
    return kernel
