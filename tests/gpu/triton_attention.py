"""A flash attention kernel in Triton, written here."""

import triton
import triton.language as tl


@triton.jit
def flash(Q, K, V, O, scale, n_kv, D: tl.constexpr, block_q: tl.constexpr, block_kv: tl.constexpr):
    """O of block_q queries, of one head. Q, K, V, O: (heads, n, D), contiguous; n_q is a multiple of block_q."""
    head, row = tl.program_id(1), tl.program_id(0) * block_q + tl.arange(0, block_q)
    column = tl.arange(0, D)
    n_q = tl.num_programs(0) * block_q
    q = tl.load(Q + head * n_q * D + row[:, None] * D + column[None, :])
    m = tl.full([block_q], float("-inf"), tl.float32)
    l = tl.zeros([block_q], tl.float32)
    o = tl.zeros([block_q, D], tl.float32)
    for first in range(0, n_kv, block_kv):
        key = first + tl.arange(0, block_kv)
        place = head * n_kv * D + key[:, None] * D + column[None, :]
        there = key[:, None] < n_kv
        k = tl.load(K + place, mask=there, other=0.0)
        s = tl.dot(q, tl.trans(k)) * (scale * 1.4426950408889634)
        s = tl.where(key[None, :] < n_kv, s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp2(s - m_new[:, None])
        a = tl.exp2(m - m_new)
        v = tl.load(V + place, mask=there, other=0.0)
        l = l * a + tl.sum(p, 1)
        o = o * a[:, None] + tl.dot(p.to(v.dtype), v)
        m = m_new
    tl.store(O + head * n_q * D + row[:, None] * D + column[None, :], (o / l[:, None]).to(O.dtype.element_ty))


@triton.autotune([triton.Config({"block": 64}), triton.Config({"block": 128})], key=["n"])
@triton.jit
def doubled(x, y, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)
