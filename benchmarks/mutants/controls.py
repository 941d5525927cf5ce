"""Right kernels of every style: none may fail."""

import math

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.mutants.skeleton import Steps, attention, changed, repeated, scale_of, valued, visible
from examples import my_kernel_mended


def fa2(q, k, v, **options):
    return attention(q, k, v, **options)


fa2_reversed = changed("fa2_reversed", __name__, tiles=lambda n, tile: Steps().tiles(n, tile)[::-1])
tiles_of_16 = changed("tiles_of_16", __name__, tile=16)
tiles_of_128 = changed("tiles_of_128", __name__, tile=128)
tiles_of_512 = changed("tiles_of_512", __name__, tile=512)
p_unrounded = changed("p_unrounded", __name__, probs=lambda P, dtype: P)


def key_by_key(q, k, v, **options):
    few = q.shape[-2] <= 4  # as in decoding; more queries go in tiles
    return attention(q, k, v, **options, steps=Steps(tile=1 if few else 64, probs=lambda P, dtype: P))


def power_of_2(x):
    """2^x by a polynomial of degree 6 on [-1/2, 1/2]: Taylor's, whose rest is below 2^-22; exact at 0."""
    whole = x.clamp(min=-150).round()
    part, value = x.clamp(min=-150) - whole, 0.0
    for i in reversed(range(7)):
        value = value * part + math.log(2) ** i / math.factorial(i)
    return torch.ldexp(value, whole.detach()).where(x > -150, 0)


polynomial_exp = changed("polynomial_exp", __name__, exp=lambda x: power_of_2(x * math.log2(math.e)))


def folded_scale(q, k, v, causal=False, scale=None, window=None):
    """exp2 of scores that have log2(e) in their scale. It takes no mask and no sinks, which would need it too."""

    def folded(d, scale):
        return math.log2(math.e) * scale_of(d, scale)

    steps = Steps(scale=folded, exp=torch.exp2, factor=torch.exp2)
    return attention(q, k, v, causal, scale, window=window, steps=steps)


def rows_in_chunks(q, k, v, causal=False, scale=None):
    """50 queries at a time, each with its own part of the causal mask."""
    n_q, n_kv, done = q.shape[-2], k.shape[-2], []
    for i in range(0, n_q, 50):
        last = i + len(range(n_q)[i : i + 50])
        mask = visible(n_q, n_kv, causal, None)[i:last]
        done.append(attention(q[..., i:last, :], k, v, scale=scale, mask=mask))
    return torch.cat(done, -2)


def fa1(q, k, v, causal=False, scale=None):
    """O is divided by l at every tile, as in FlashAttention's first paper (arXiv 2205.14135)."""
    dtype, (S, v) = q.dtype, scores(q, k, v, causal, scale)
    m, l, O = torch.full_like(S[..., :1], -math.inf), torch.zeros_like(S[..., :1]), 0.0
    for S_j, v_j in zip(S.split(64, -1), v.split(64, -2)):
        m_new = torch.maximum(m, S_j.amax(-1, keepdim=True)).detach()
        at = m_new.where(m_new > -math.inf, 0)
        P, old = torch.exp(S_j - at), l * torch.exp(m - at)
        m, l = m_new, old + P.sum(-1, keepdim=True)
        O = (old * O + P.to(dtype).to(P.dtype) @ v_j) / l.where(l > 0, 1)
    return O.to(dtype)


def splits_in_fp32(q, k, v, causal=False, scale=None):
    """8 parts of the keys, each with its own output and log-sum-exp, merged in FP32."""
    dtype, (S, v) = q.dtype, scores(q, k, v, causal, scale)
    size = -(-k.shape[-2] // 8)
    parts = [(S_i.logsumexp(-1, keepdim=True), S_i, v_i) for S_i, v_i in zip(S.split(size, -1), v.split(size, -2))]
    L = torch.cat([each[0] for each in parts], -1).logsumexp(-1, keepdim=True)
    at = L.where(-math.inf < L, 0)
    O = 0.0
    for L_i, S_i, v_i in parts:
        P = torch.exp(S_i - L_i.where(L_i > -math.inf, 0))
        O = O + torch.exp(L_i - at) * (P.to(dtype).to(P.dtype) @ v_i)
    return O.to(dtype)


def scores(q, k, v, causal, scale):
    """Masked scores (..., n_q, n_kv) and V in FP32, with as many heads as Q."""
    wide = torch.promote_types(q.dtype, torch.float32)
    q, k, v = (x.to(wide) for x in (q, k, v))
    k, v = repeated(k, q.shape[-3]), repeated(v, q.shape[-3])
    S = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    return S.masked_fill(~visible(q.shape[-2], k.shape[-2], causal, None), -math.inf), v


def naive_fp32(q, k, v, causal=False, scale=None):
    dtype, (S, v) = q.dtype, scores(q, k, v, causal, scale)
    return (torch.softmax(S, -1).nan_to_num() @ v).to(dtype)


def each_operation_rounds(q, k, v, causal=False, scale=None):
    """In the inputs' dtype, as a framework runs it unfused."""
    k, v = repeated(k, q.shape[-3]), repeated(v, q.shape[-3])
    S = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    S = S.masked_fill(~visible(q.shape[-2], k.shape[-2], causal, None), -math.inf)
    return torch.softmax(S, -1).nan_to_num() @ v


def sums_in_order(q, k, v, causal=False, scale=None):
    """l and O in FP32, one key after the other, none apart."""
    dtype, (S, v) = q.dtype, scores(q, k, v, causal, scale)
    o = torch.softmax(S, -1).nan_to_num() @ v  # its gradient
    m = S.detach().amax(-1, keepdim=True)
    P = torch.exp(S.detach() - m.where(m > -math.inf, 0)).movedim(-1, 0)[..., None].contiguous()  # (n_kv, ..., n_q, 1)
    l, O = torch.zeros_like(P[0]), torch.zeros_like(o)
    for j in range(len(P)):
        l += P[j]
        O += P[j] * v.detach()[..., j, None, :]
    return valued(o, O / l.where(l > 0, 1)).to(dtype)


def by_torch(backend, q, k, v, causal=False, scale=None, mask=None):
    if causal and q.shape[-2] != k.shape[-2]:
        raise NotImplementedError("it aligns its causal mask top-left")
    with sdpa_kernel(backend):
        given = dict(attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=q.shape[-3] != k.shape[-3])
        return scaled_dot_product_attention(q, k, v, **given)


def torch_math(q, k, v, **options):
    return by_torch(SDPBackend.MATH, q, k, v, **options)


def torch_flash(q, k, v, **options):
    return by_torch(SDPBackend.FLASH_ATTENTION, q, k, v, **options)


def scores_in_16_bits(q, k, v, causal=False, scale=None):
    k, v = (repeated(x, q.shape[-3]) for x in (k, v))
    return my_kernel_mended.attention(q, k, v, causal, scale)
