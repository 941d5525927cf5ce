"""Defects that two other authors planted and that the judge missed at first sight, rebuilt as steps of the skeleton;
and one of their right kernels, which it failed."""

import math

import torch

from benchmarks.mutants.controls import scores
from benchmarks.mutants.gradients import Altered
from benchmarks.mutants.skeleton import Steps, attention, changed, valued, visible

LEAST = 2**-14  # the smallest normal number of FP16
RIGHT = Steps()


def sink_in_every_split(q, k, v, sinks=None, **options):
    splits = -(-k.shape[-2] // 256)  # of 256 keys; the merge counts the sink's mass once for each
    return attention(q, k, v, **options, sinks=None if sinks is None else sinks + math.log(splits))


def never_infinite(m, S):
    m = RIGHT.maximum(m, S)
    return m.where(m > -math.inf, 0)  # of a tile that is hidden; it stays


guard_kept_as_max = changed(
    "guard_kept_as_max", __name__, maximum=never_infinite, tiles=lambda n, tile: RIGHT.tiles(n, tile)[::-1]
)
half_pv_hardcoded = changed(
    "half_pv_hardcoded", __name__,
    read=lambda q, k, v: (q, k, valued(v, v.half())), probs=lambda P, dtype: RIGHT.probs(P, torch.float16),
)  # fmt: skip


def flushed(x):
    return valued(x, x.where(x.abs() >= LEAST, 0))


def subnormals_flushed(q, k, v, **options):
    def probs(P, dtype):
        return flushed(RIGHT.probs(P, dtype))

    steps = Steps(read=lambda *tensors: map(flushed, tensors), probs=probs)
    return attention(q, k, v, **options, steps=steps if q.dtype == torch.float16 else RIGHT)


def saved_lse_backward(q, k, v, causal=False, scale=None):
    """P of the backward pass has a wrong factor for each row, and so has all that comes of dO."""
    lse = scores(q, k, v, causal, scale)[0].detach().logsumexp(-1, keepdim=True)
    lse = lse.where(lse > -math.inf, 0)
    factor = torch.exp(lse - lse.to(q.dtype))
    return Altered.apply(attention(q, k, v, causal, scale), lambda dO: dO * factor.to(dO.dtype))


def flat_heads_mask(q, k, v, causal=False, scale=None, mask=None):
    if mask is not None:
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape).flatten(0, 1)
        mask = mask[torch.arange(q.shape[0] * q.shape[1]) % len(mask)].unflatten(0, q.shape[:2])
    return attention(q, k, v, causal, scale, mask)


def nan_backward(O, l):
    return Altered.apply(RIGHT.divide(O, l), lambda dO: dO.where(l > 0, math.nan))


recompute_backward = changed("recompute_backward", __name__, divide=nan_backward)


def tiles_counted(n_q, n_kv, causal, window):
    """Of 256 queries, a key too few where the last one's own key begins a tile of 64."""
    seen = visible(n_q, n_kv, causal, window)
    for first in range(0, n_q if causal else 0, 256):
        last = min(first + 256, n_q) - 1 + n_kv - n_q
        seen[first : first + 256, max(1, -(-last // 64)) * 64 :] = False
    return seen


causal_tile_count = changed("causal_tile_count", __name__, seen=tiles_counted)


def right_smooth_k(q, k, v, causal=False, scale=None, mask=None, window=None):
    """It takes no sinks, to which it would have to add what it takes off the scores."""
    steps = Steps(read=lambda q, k, v: (q, k - k.mean(-2, keepdim=True), v))
    return attention(q, k, v, causal, scale, mask, window, steps=steps)
