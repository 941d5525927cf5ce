"""An output of which a part of the keys, those before some key or from it on, was taken otherwise than the rest."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_check.conventions.attention import Rows, scores

TINY = 1e-30
Part = tuple[int, int]  # the first key of it, and the one behind its last


def nearest_part(
    own: Rows, S: Tensor, v: Tensor, solves: bool = False, every: int = 1
) -> tuple[float, Part, int, float]:
    """The part of the keys with which rows come nearest to their output, where its keys have other scores and values.

    Args:
        own: the rows, as they are believed. S: other scores, of several ways to have them, about as large, (entries,
            heads, rows, n_kv, ways). v: other values, like own.v. solves: whether the values may count another number
            of times. every: of so many keys each is a border that is tried.

    Returns:
        The squared error, the part, which way, and how often its values count.
    """
    own_S, n_kv = scores(own), own.shape[3]
    m = torch.maximum(torch.maximum(S.amax((-2, -1)), own_S.amax(-1)), own.sinks[..., 0])[..., None, None]
    m = m.where(m > -math.inf, 0.0)  # (entries, heads, rows, 1, 1)
    changed, rest = _running(torch.exp(S - m), v, every), _running(torch.exp(own_S[..., None] - m), own.v, every)
    sinks = torch.exp(own.sinks[..., None, None] - m[..., None])
    best = math.inf, (0, n_kv), 0, 1.0
    for before in (True, False):
        x, y = (changed, rest[..., -1:, :, :] - rest) if before else (changed[..., -1:, :, :] - changed, rest)
        l = (x[..., -1:] + y[..., -1:] + sinks).clamp(min=TINY)
        x, left = x[..., :-1] / l, own.o[..., None, None, :] - y[..., :-1] / l
        times = torch.ones(x.shape[3:5], dtype=x.dtype)  # (n_kv + 1, ways)
        if solves:
            times = (x * left).sum((0, 1, 2, 5)) / x.square().sum((0, 1, 2, 5)).clamp(min=TINY)
        error = (left - times[..., None] * x).square().sum((0, 1, 2, 5)).nan_to_num(math.inf)
        key, way = divmod(int(error.argmin()), error.shape[1])
        end = min(key * every, n_kv)
        best = min(best, (error[key, way].item(), (0, end) if before else (end, n_kv), way, times[key, way].item()))
    return best


def _running(p: Tensor, v: Tensor, every: int) -> Tensor:
    """Of p (entries, heads, rows, n_kv, ways), the sums of p V and of p over the first 0, 1, ... times so many keys:
    (entries, heads, rows, borders, ways, features + 1)."""
    v, rest = F.pad(v, (0, 1), value=1.0), -p.shape[3] % every
    p, v = (F.pad(x, (0, 0, 0, rest)).unflatten(-2, (-1, every)) for x in (p, v))
    of_keys = torch.einsum("ehrbkw,ehbkf->ehrbwf", p, v)
    return F.pad(of_keys.cumsum(3), (0, 0, 0, 0, 1, 0))
