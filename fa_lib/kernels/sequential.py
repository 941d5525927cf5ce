"""Attention in torch's operations with every sum taken one term after the other: what FP32 costs at the least care."""

import math

import torch

from fa_lib.kernels.options import Keys, Outputs, Queries, Values, as_many_heads, validate


def sequential(q: Queries, k: Keys, v: Values, **options) -> Outputs:
    """Compute attention with sums, over head_dim and over keys, that are taken in order: each product and addition
    rounds.

    A library adds terms in many partial sums, so its FP32 sums are 5 to 7 times more accurate at 2,048 keys than those
    of a plain loop. Both are FP32. Its gradients are those of torch's own sums. A row that sees no key is 0.

    Arguments and result are those of `kernels.reference`, computed in q's dtype; dropout is refused.
    """
    settings = validate(q, k, v, **options)
    if settings.keep is not None:
        raise ValueError("keep: got a mask of dropout; accepted is a call without dropout")
    scale, softcap, added, blind = settings.scale or 1 / math.sqrt(q.shape[-1]), settings.softcap, None, None
    if settings.causal or settings.mask is not None or settings.window is not None:
        added = _added(q, k, settings)  # (..., n_q, n_kv)
        blind = added.amax(-1, keepdim=True) == -math.inf  # (..., n_q, 1)
        added = added.masked_fill(blind, 0.0)  # such a row sees all keys instead, and is 0 afterwards
    if settings.sinks is not None:
        k, v, added = _with_sink(q, k, v, added, settings.sinks)
    k, v = (as_many_heads(x, q) for x in (k, v))
    with torch.no_grad():
        o = _in_order(q, k, v, scale, added, softcap)
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        P = torch.softmax(_masked(q @ k.mT * scale, added, softcap), -1)
        o = _GradientsOf.apply(P @ v, o)
    return o if blind is None else o.masked_fill(blind, 0.0)


def _added(q, k, settings):
    """Make the tensor that is added to the scores: 0, a mask's values, or -inf where a key is hidden."""
    mask, added = settings.mask, q.new_zeros(q.shape[-2], k.shape[-2])
    if mask is not None:
        added = added.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else added + mask.to(q.dtype)
    return added.masked_fill(~settings.inside(q, k), -math.inf)


def _with_sink(q, k, v, added, sinks):
    """Add one more key, the last: its score is the sink's, and its value 0."""
    k, v = (torch.cat([x, torch.zeros_like(x[..., :1, :])], -2) for x in (k, v))
    scores = q.new_zeros(*q.shape[:-1], k.shape[-2])
    scores[..., :-1] = 0.0 if added is None else added
    scores[..., -1] = sinks.to(q)[:, None]
    return k, v, scores


def _masked(S, added, softcap):
    S = S if softcap is None else softcap * torch.tanh(S / softcap)
    return S if added is None else S + added


def _in_order(q, k, v, scale, added, softcap):
    S = 0.0
    for i in range(q.shape[-1]):
        S = S + q[..., i, None] * k[..., None, :, i]  # (..., n_q, n_kv)
    S = _masked(S * scale, added, softcap)
    P = torch.exp(S - S.amax(-1, keepdim=True))
    P = P.movedim(-1, 0)[..., None].contiguous()  # (n_kv, ..., n_q, 1)
    l, O = torch.zeros_like(P[0]), torch.zeros_like(P[0] * v[..., :1, :])  # (..., n_q, 1), (..., n_q, d_v)
    for j in range(k.shape[-2]):
        l += P[j]
        O += P[j] * v[..., j, None, :]
    return O / l


class _GradientsOf(torch.autograd.Function):
    """The second tensor, with the first one's gradients."""

    @staticmethod
    def forward(ctx, graph, value):
        return value.clone()

    @staticmethod
    def backward(ctx, dO):
        return dO, None
