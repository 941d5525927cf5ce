"""Attention as somebody may mean it: every choice that people make differently is a field of Dialect."""

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

SOFTMAX_OVER = {"over_batch": 0, "over_heads": 1, "over_queries": 2}  # dimension of the scores, other than keys


class Unfit(ValueError):
    """A dialect in which the shapes make no call."""


@dataclass(frozen=True)
class Dialect:
    """A choice for each aspect of a call, "" where it is as the caller believes. The keys are those of
    `conventions.CONVENTIONS`.

    Attributes:
        layout, roles, heads: how the tensors are read; heads may be, for each query head, the head of the output that
            holds it. scale, causal, mask, window, softcap, sinks, alibi: the options;
            a window may be (left, right), of so many keys, None for all. scale, mask and alibi may be a number, so many
            times the believed scale, the mask and ALiBi's falling slopes; softcap one that scores are capped at. sinks
            may be a number, how often they count, or for each head, the head whose sink it has. mask may be who reads
            the mask of another, whose ("entries", "heads" or both), and for each of them, which one it reads.
        softmax: over what weights are normalised. keys: (first, end) of the keys that are seen; None is all.
        part: (first, end) of the keys for which alone roles, scale and values are not as believed; None is all.
        values: of these keys, as they count: so many times their own.
        sink: one more score of every row, without a value; None is none. exp(sink) keys of zeros make the same.
        hidden: the score that keys have which should be hidden; None is -inf. penalty: what is added to their scores.
        factor: the output is so many times attention's.
    """

    layout: str = ""
    roles: str = ""
    heads: str | tuple[int, ...] = ""
    scale: str | float = ""
    causal: str = ""
    mask: str | float | tuple[str | int, ...] = ""
    window: str | tuple[int | None, int | None] = ""
    softcap: str | float = ""
    sinks: str | float | tuple[int, ...] = ""
    alibi: str | float = ""
    softmax: str = ""
    keys: tuple[int, int] | None = None
    part: tuple[int, int] | None = None
    values: float = 1.0
    sink: float | None = None
    hidden: float | None = None
    penalty: float | None = None
    factor: float = 1.0

    def changes(self) -> dict[str, Any]:
        """aspect -> choice, of the aspects that are not as believed."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}

    @property
    def is_standard(self) -> bool:
        """Whether an ordinary kernel computes this dialect from its options: the softmax is over keys and divided by
        its sum, the softcap comes after the scale and before the mask, and keys have one scale. A factor does not
        count."""
        capped_before = isinstance(self.softcap, float) or self.softcap in ("", "ignored")
        return self.softmax in ("", "plus_one") and capped_before and (self.part is None or not self.scale)


@dataclass(frozen=True)
class Rows:
    """Sampled rows of a call under a Dialect, and of the output.

    Attributes:
        q, o: (entries, heads, rows, head_dim or d_v). k, v: (entries, heads, n_kv, head_dim or d_v), a head for each
            head of q.
        products: q k^T, (entries, heads, rows, n_kv).
        bias: what is added to the scores, -inf where a key is hidden, (entries, heads, rows, n_kv).
        sinks: (1, heads, 1, 1), -inf where there is none; with the 1 of "plus_one" in them.
        scale, softcap: numbers; softcap is None where there is none.
        places: the indices that were sampled of entries, heads and rows. shape: (batch, heads, n_q, n_kv).
        dialect: in which they were read.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    products: Tensor
    bias: Tensor
    sinks: Tensor
    scale: float
    softcap: float | None
    places: tuple[Tensor, Tensor, Tensor]
    shape: tuple[int, int, int, int]
    dialect: Dialect

    @property
    def seen(self) -> Tensor:
        """Whether a row sees a key: (entries, heads, rows, 1)."""
        return (self.bias > -math.inf).any(-1, keepdim=True)

    @cached_property
    def golden(self) -> Tensor:
        """What they are in their dialect, by `attend`."""
        return attend(self)

    @cached_property
    def counted(self) -> Tensor:
        """Rows that see a key, and are finite, as all that they see: bool (entries, heads, rows), like the next two."""
        return self.seen[..., 0] & self.golden.isfinite().all(-1) & self.o.isfinite().all(-1)

    @cached_property
    def nan(self) -> Tensor:
        """Rows that are not finite, though what they see is."""
        return self.seen[..., 0] & self.golden.isfinite().all(-1) & ~self.o.isfinite().all(-1)

    @cached_property
    def hidden_nan(self) -> Tensor:
        """Rows that are finite, though what they see is not."""
        return self.seen[..., 0] & ~self.golden.isfinite().all(-1) & self.o.isfinite().all(-1)

    def options(self) -> dict[str, Any]:
        """As a kernel takes them, with k and v: it makes the same output where the dialect is standard."""
        options: dict[str, Any] = dict(scale=self.scale, mask=self.bias)
        if self.softcap is not None:
            options["softcap"] = self.softcap
        if (self.sinks > -math.inf).all():
            options["sinks"] = self.sinks.reshape(-1)
        return options


def attend(rows: Rows) -> Tensor:
    """The output of the sampled rows in their dialect, float64 (entries, heads, rows, d_v); 0 in rows that see no key,
    NaN in rows that see a key or a value that is not finite."""
    if math.isfinite(rows.k.detach().sum() + rows.v.detach().sum()):
        return rows.dialect.factor * (weights(rows) @ rows.v)
    unfit = ~(rows.k.isfinite().all(-1) & rows.v.isfinite().all(-1))  # (entries, heads, n_kv)
    clean = replace(rows, products=rows.products.masked_fill(unfit[:, :, None], 0.0))
    O = rows.dialect.factor * (weights(clean) @ rows.v.nan_to_num(0.0, 0.0, 0.0))
    return O.masked_fill((unfit[:, :, None] & (rows.bias > -math.inf)).any(-1, keepdim=True), math.nan)


def scores(rows: Rows) -> Tensor:
    """What the softmax is of, in their dialect, (entries, heads, rows, n_kv), -inf where a key is hidden."""
    S, cap, bias, how = rows.products, rows.softcap, rows.bias, rows.dialect.softcap
    if how == "before_scale" and cap:
        return capped(S, cap) * rows.scale + bias
    S, hidden = S * rows.scale, bias.isneginf()
    if how == "after_mask" and cap:  # a hidden key has the score -softcap
        return capped(S, cap).masked_fill(hidden, -cap)
    if how == "after_bias" and cap:
        return capped(S + bias.masked_fill(hidden, 0.0), cap).masked_fill(hidden, -math.inf)
    if how == "of_scores" and cap:
        return S * torch.tanh(S / cap) + bias
    return (S.clamp(-cap, cap) if how == "clipped" and cap else capped(S, cap)) + bias


def log_sum_exp(rows: Rows) -> Tensor:
    """Of the scores and the sink of each row, (entries, heads, rows); -inf where it sees no key."""
    S = scores(rows)
    sinks = rows.sinks.expand(*S.shape[:-1], 1)
    return torch.logsumexp(torch.cat([S, sinks], -1), -1).where(rows.seen[..., 0], -math.inf)


def capped(S: Tensor, softcap: float | None) -> Tensor:
    """Scores of any shape, capped where there is a softcap."""
    return S if softcap is None else softcap * torch.tanh(S / softcap)


def with_hidden(rows: Rows, score: float) -> Rows:
    """The rows, where hidden keys have a score."""
    due = score - capped(rows.products.nan_to_num(0.0, 0.0, 0.0) * rows.scale, rows.softcap)
    return replace(rows, bias=rows.bias.where(rows.bias > -math.inf, due))


def weights(rows: Rows) -> Tensor:
    """P of the sampled rows in their dialect, (entries, heads, rows, n_kv)."""
    S = scores(rows)
    if (over := SOFTMAX_OVER.get(rows.dialect.softmax)) is not None:
        return torch.softmax(S, over).nan_to_num(nan=0.0)
    m = torch.maximum(S.detach().amax(-1, keepdim=True), rows.sinks)
    m = m.where(m > -math.inf, 0.0)
    P = torch.exp(S - m)
    if rows.dialect.softmax == "not_divided":
        return P
    l = P.sum(-1, keepdim=True) + torch.exp(rows.sinks - m)
    P = P / l.where(l > 0, 1.0)
    if not rows.dialect.softmax.startswith("twice"):
        return P
    hidden = rows.bias.isneginf() & (rows.dialect.softmax == "twice_of_seen")
    return torch.softmax(P.masked_fill(hidden, -math.inf), -1).nan_to_num(0.0)


def changed(dialect: Dialect, aspect: str, choice: Any) -> Dialect:
    """A dialect with another choice of one aspect."""
    return replace(dialect, **{aspect: choice})
