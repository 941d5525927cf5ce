"""A flash attention kernel in Triton, judged without a GPU by

fa-lib check kernel examples/triton_attention.py:attention --gpu H100
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def flash(Q, K, V, O, scale, n_q, n_kv, D: tl.constexpr, causal: tl.constexpr, block_q: tl.constexpr,
          block_kv: tl.constexpr):  # fmt: skip
    """O of block_q queries, of one head. Q, O: (heads, n_q, D), K, V: (heads, n_kv, D), contiguous."""
    head, row = tl.program_id(1), tl.program_id(0) * block_q + tl.arange(0, block_q)
    column, there = tl.arange(0, D), row[:, None] < n_q
    q = tl.load(Q + head * n_q * D + row[:, None] * D + column[None, :], mask=there, other=0.0)
    m = tl.full([block_q], float("-inf"), tl.float32)
    l = tl.zeros([block_q], tl.float32)
    o = tl.zeros([block_q, D], tl.float32)
    last = tl.minimum(n_kv, (tl.program_id(0) + 1) * block_q + n_kv - n_q) if causal else n_kv
    for first in range(0, last, block_kv):
        key = first + tl.arange(0, block_kv)
        place = head * n_kv * D + key[:, None] * D + column[None, :]
        k = tl.load(K + place, mask=key[:, None] < n_kv, other=0.0)
        s = tl.dot(q, tl.trans(k)) * (scale * 1.4426950408889634)
        seen = key[None, :] < n_kv
        if causal:  # aligned bottom-right
            seen = seen & (key[None, :] <= row[:, None] + n_kv - n_q)
        s = tl.where(seen, s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        p = tl.exp2(s - safe[:, None])
        a = tl.exp2(m - safe)
        v = tl.load(V + place, mask=key[:, None] < n_kv, other=0.0)
        l = l * a + tl.sum(p, 1)
        o = o * a[:, None] + tl.dot(p.to(v.dtype), v)
        m = m_new
    o = tl.where(l[:, None] > 0, o / l[:, None], 0.0)
    tl.store(O + head * n_q * D + row[:, None] * D + column[None, :], o.to(O.dtype.element_ty), mask=there)


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    """(batch, heads, n, head_dim), in BF16 or FP16; head_dim 16, 32, 64 or 128; no gradients."""
    (batch, heads, n_q, d), n_kv = q.shape, k.shape[2]
    if q.dtype not in (torch.bfloat16, torch.float16) or d not in (16, 32, 64, 128) or k.shape[:2] != q.shape[:2]:
        raise ValueError("this kernel takes BF16 and FP16, head_dim 16, 32, 64 or 128, as many heads of K as of Q")
    q, k, v = (x.contiguous() for x in (q, k, v))
    o = torch.empty_like(q)
    grid = triton.cdiv(n_q, 64), batch * heads
    flash[grid](q, k, v, o, d**-0.5 if scale is None else scale, n_q, n_kv, d, causal, 64, 64, num_warps=4)
    return o
