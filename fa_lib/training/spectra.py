"""Spectral entropy of the updates of Q and K: a signal that is said to warn before a loss explodes.

A step moves the projections W_Q and W_K of a head, and so the matrix W_Q^T W_K that makes its scores, to first order by
W_Q^T dW_K + dW_Q^T W_K. arXiv 2606.28116 watches the spectral entropy of that term. Its normalisation is not in what we
could read of it; here the entropy is that of the squared singular values, divided by their sum, over the logarithm of
how many of them can be other than zero: 1 where the update has no direction, 0 where it has one alone.
"""

import math
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from fa_lib.training.run_folder import load_weights, steps_of, weights

_LAYERS = "transformer.transformer_blocks.{}.attn1."


def entropies(folder: str | Path, heads: int) -> list[dict]:
    """Rows of a run, one for each of its weights files but the first: step, since (the step of the one before),
    entropy (mean over layers and heads) and least (the smallest of them)."""
    steps, rows = steps_of(folder), []
    before = load_weights(weights(folder, steps[0]))
    for since, step in zip(steps, steps[1:]):
        now = load_weights(weights(folder, step))
        each = torch.cat([entropy(*of) for of in _projections(before, now, heads)])
        rows.append(dict(step=step, since=since, entropy=each.mean().item(), least=each.min().item()))
        before = now
    return rows


def entropy(
    q: Float[Tensor, "heads head_dim width"], k: Float[Tensor, "heads head_dim width"],
    dq: Float[Tensor, "heads head_dim width"], dk: Float[Tensor, "heads head_dim width"],
) -> Float[Tensor, " heads"]:  # fmt: skip
    """Spectral entropy of q^T dk + dq^T k for each head, 0 to 1; NaN where nothing moved."""
    first = q.mT @ dk + dq.mT @ k  # (heads, width, width)
    share = torch.linalg.svdvals(first).square()  # (heads, width)
    share = share / share.sum(-1, keepdim=True)
    most = min(2 * q.shape[-2], q.shape[-1])  # of its rank
    return torch.special.entr(share).sum(-1) / math.log(most)


def _projections(before, now, heads):
    """(W_Q, W_K, dW_Q, dW_K) of each layer's self-attention, float64 (heads, head_dim, width)."""
    layer = 0
    while (own := _LAYERS.format(layer)) + "to_q.weight" in now:
        q, k = (before[f"{own}to_{x}.weight"].double().unflatten(0, (heads, -1)) for x in "qk")
        new_q, new_k = (now[f"{own}to_{x}.weight"].double().unflatten(0, (heads, -1)) for x in "qk")
        yield q, k, new_q - q, new_k - k
        layer += 1
