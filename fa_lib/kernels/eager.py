"""Attention in torch's operations on tensors of their own dtype, each operation rounding once: nothing is emulated.

For training and for GPUs, where carrying float64 takes too long. Products are what torch makes them: summed in FP32
for BF16 and FP16, and rounded.
"""

import math
from types import SimpleNamespace

import torch
from torch import Tensor

from fa_lib.kernels.algorithm import Algorithm
from fa_lib.kernels.backward import differentiable
from fa_lib.kernels.options import Keys, Outputs, Queries, Values, as_many_heads, validate
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.tiled import fa1_tile
from fa_lib.numerics.dots import EXACT


def unfused(
    q: Queries, k: Keys, v: Values, *, causal: bool = False, scale: float | None = None, mask: Tensor | None = None
) -> Outputs:
    """Compute Baseline Attention as a framework runs it unfused: S, P and O are written in q's dtype, gradients are
    autograd's. S is scaled before it is rounded, as torch.baddbmm does with its alpha.

    `reference` with `Precision.materialized` is its emulation. A row that sees no key is NaN, as in a framework.
    Arguments and result are otherwise those of `reference`.
    """
    settings = validate(q, k, v, causal=causal, scale=scale, mask=mask)
    k, v = (as_many_heads(x, q) for x in (k, v))
    S = _scaled_product(q, k, scale or 1 / math.sqrt(q.shape[-1]))  # (..., n_q, n_kv)
    if mask is not None:
        S = S.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else S + mask.to(S.dtype)
    if causal:
        S = S.masked_fill(~settings.inside(q, k), -math.inf)
    return torch.softmax(S, -1) @ v


def stepwise(
    q: Queries,
    k: Keys,
    v: Values,
    *,
    causal: bool = False,
    scale: float | None = None,
    mask: Tensor | None = None,
    block_kv: int = 64,
) -> Outputs:
    """Compute Flash Attention by a loop over tiles in q's dtype, as `tiled` with `Precision.uniform` and "fa1" does: m,
    l and O are carried in that dtype, and every operation rounds once. Its gradients are FlashAttention's, too.

    Args:
        q, k, v, scale: as `reference`; so is the result.
        causal, mask: it has none; accepted are False and None, and a ValueError says so of others.
        block_kv: keys of a tile.
    """
    validate(q, k, v, scale=scale)
    for name, value in (("causal", causal), ("mask", None if mask is None else tuple(mask.shape))):
        if value:
            raise ValueError(f"{name}: got {value!r}; the kernel 'stepwise' has none: use 'tiled'")
    scale = scale or 1 / math.sqrt(q.shape[-1])
    k, v = (as_many_heads(x, q) for x in (k, v))
    wide = torch.promote_types(q.dtype, torch.float32)
    how = Algorithm("fa1")
    p = SimpleNamespace(**dict.fromkeys(Precision.steps(), Unrounded()), products=EXACT)

    def forward(q, k, v):
        m = q.new_full((*q.shape[:-1], 1), -math.inf)  # (..., n_q, 1)
        l, O = torch.zeros_like(m), torch.zeros_like(q[..., :1] * v[..., :1, :])  # (..., n_q, head_dim)
        for k_j, v_j in zip(k.split(block_kv, -2), v.split(block_kv, -2)):
            S = _scaled_product(q, k_j, scale)  # (..., n_q, B_c)
            m, l, O = fa1_tile(p, how, lambda P: P, S, v_j, S.amax(-1, keepdim=True), (m, l, O))
        return O, m + torch.log(l)  # o; log-sum-exp (..., n_q, 1)

    def backward(q, k, v, o, L, dO):
        delta = (dO.to(wide) * o).sum(-1, keepdim=True).to(o.dtype)  # (..., n_q, 1), rounded once
        dQ, dK, dV = torch.zeros_like(q), [], []
        for k_j, v_j in zip(k.split(block_kv, -2), v.split(block_kv, -2)):
            P = torch.exp(_scaled_product(q, k_j, scale) - L)  # (..., n_q, B_c)
            dS = P * (dO @ v_j.mT - delta)  # (..., n_q, B_c)
            dQ = _scaled_product(dS, k_j.mT, scale, dQ)
            dK.append(_scaled_product(dS.mT, q.mT, scale))
            dV.append(P.mT @ dO)
        return dQ, torch.cat(dK, -2), torch.cat(dV, -2)

    return differentiable(q, k, v, forward, backward)


class Unrounded:
    """A step whose values the dtype itself rounds."""

    def __call__(self, x: Tensor) -> Tensor:
        return x

    round_ = __call__


def _scaled_product(a, b, scale, add=None):
    """scale * a bᵀ, and what it is added to, rounded once."""
    a3, b3 = (x.reshape(-1, *x.shape[-2:]) for x in (a, b))
    start = a.new_zeros(()) if add is None else add.reshape(-1, *add.shape[-2:])
    out = torch.baddbmm(start, a3, b3.mT, beta=0 if add is None else 1, alpha=scale)
    return out.reshape(*a.shape[:-1], b.shape[-2])
