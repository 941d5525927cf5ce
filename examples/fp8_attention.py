"""Attention in FP8: Q, K and V in E4M3 with a scale a head, P in E4M3 without one. `unshifted` has a defect of two
public reports (ROCm/FlyDSL#1020, flashinfer-ai/flashinfer#5020): E4M3 ends at 2^-9, so that smaller weights are lost.

    fa-lib check kernel examples.fp8_attention:attention --arithmetic FP8_HEAD
"""

import torch

LARGEST = 448.0  # of E4M3


def rounded(x):
    """A tensor in FP32 (batch, heads, sequence, features), rounded to E4M3 with a scale for each head."""
    scale = x.float().abs().amax((-2, -1), keepdim=True).clamp(min=1e-30) / LARGEST
    return (x.float() / scale).to(torch.float8_e4m3fn).float() * scale


@torch.no_grad()
def attention(q, k, v, causal=False, scale=None, p_factor=256.0):
    """Attention (batch, heads, sequence, head_dim) of tensors in 16 bits; p_factor: what P is multiplied by."""
    scores = rounded(q) @ rounded(k).mT * (q.shape[-1] ** -0.5 if scale is None else scale)  # (batch, heads, n_q, n_kv)
    if causal:
        n_q, n_kv = scores.shape[-2:]
        scores.masked_fill_(torch.ones(n_q, n_kv, dtype=torch.bool).triu(1 + n_kv - n_q), -torch.inf)
    p = torch.exp(scores - scores.amax(-1, keepdim=True).clamp(min=-1e30))
    o = (p * p_factor).to(torch.float8_e4m3fn).float() @ rounded(v) / p_factor  # (batch, heads, n_q, head_dim)
    return (o / p.sum(-1, keepdim=True).clamp(min=1e-30)).to(q.dtype)


def unshifted(q, k, v, causal=False, scale=None):
    """`attention` whose small weights are lost."""
    return attention(q, k, v, causal, scale, p_factor=1.0)
