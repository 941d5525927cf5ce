"""A kernel as one may write it: tile by tile, and in the inputs' dtype. Is it safe?
`fa-lib check kernel examples.my_kernel:attention` says what is wrong with it."""

import torch


def attention(q, k, v, causal=False, scale=None):
    S = (q @ k.mT) * (scale or q.shape[-1] ** -0.5)  # (batch, heads, n_q, n_kv)
    if causal:
        hidden = torch.ones(S.shape[-2:], dtype=torch.bool).triu(1 + S.shape[-1] - S.shape[-2])
        S = S.masked_fill(hidden, -torch.inf)
    m = S.amax(-1, keepdim=True)
    O, l = torch.zeros_like(q), torch.zeros_like(q[..., :1])
    for j in range(0, k.shape[-2], 32):
        P = torch.exp(S[..., j : j + 32] - m)
        O, l = O + P @ v[..., j : j + 32, :], l + P.sum(-1, keepdim=True)
    return O / l
