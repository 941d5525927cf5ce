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


def entropies(run: tuple[str, int, str | Path], heads: int) -> list[dict]:
    """Compute the spectral entropy of a run's updates of Q and K.

    Args:
        run: its arm, seed and folder.
        heads: of the transformer.

    Returns:
        list of dicts, one for each weights file but the first: arm, seed, step, since (the step of the file before),
        entropy (mean over layers and heads), least (the smallest of them).
    """
    arm, seed, folder = run
    steps, rows = steps_of(folder), []
    before = load_weights(weights(folder, steps[0]))
    for since, step in zip(steps, steps[1:]):
        now = load_weights(weights(folder, step))
        values = torch.cat([entropy(*of) for of in _projections(before, now, heads)])
        row = dict(arm=arm, seed=seed, step=step, since=since)
        rows.append(row | dict(entropy=values.mean().item(), least=values.min().item()))
        before = now
    return rows


def entropy(
    q: Float[Tensor, "heads head_dim width"], k: Float[Tensor, "heads head_dim width"],
    dq: Float[Tensor, "heads head_dim width"], dk: Float[Tensor, "heads head_dim width"],
) -> Float[Tensor, " heads"]:  # fmt: skip
    """Compute the spectral entropy of q^T dk + dq^T k for each head.

    Args:
        q, k: the projections' weights, float64 (heads, head_dim, width).
        dq, dk: their updates, of the same shape.

    Returns:
        (heads,), from 0 to 1; NaN where nothing moved.
    """
    first = q.mT @ dk + dq.mT @ k  # (heads, width, width)
    share = torch.linalg.svdvals(first).square()  # (heads, width)
    share = share / share.sum(-1, keepdim=True)
    rank = min(2 * q.shape[-2], q.shape[-1])  # the largest that the update can have
    return torch.special.entr(share).sum(-1) / math.log(rank)


def _projections(before, now, heads):
    """(W_Q, W_K, dW_Q, dW_K) of each layer's self-attention, float64 (heads, head_dim, width)."""
    layer = 0
    while (own := _LAYERS.format(layer)) + "to_q.weight" in now:
        q, k = (before[f"{own}to_{x}.weight"].double().unflatten(0, (heads, -1)) for x in "qk")
        new_q, new_k = (now[f"{own}to_{x}.weight"].double().unflatten(0, (heads, -1)) for x in "qk")
        yield q, k, new_q - q, new_k - k
        layer += 1
