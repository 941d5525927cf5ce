"""Defects that one call does not show: memory of other calls, of other rows, chance."""

import torch

from benchmarks.mutants.skeleton import Steps, attention, changed, valued

_KEYS: dict[tuple, torch.Tensor] = {}


def remembers_k(q, k, v, **options):
    at = (tuple(k.shape), k.dtype)
    held = _KEYS.setdefault(at, k.detach().clone())
    return attention(q, held + (k - k.detach()), v, **options)  # the gradient is K's own


def splits_by_batch(q, k, v, **options):
    tile = 64 if q[..., 0, 0].numel() > 2 else 16  # few heads in all: more, and smaller, parts
    return attention(q, k, v, **options, steps=Steps(tile=tile))


def quantised(q, k, v):
    blocks = v.detach().split(64, -2)
    step = torch.cat([x.abs().amax((-2, -1), keepdim=True).expand(*x.shape[:-1], 1) for x in blocks], -2) / 2047
    step = step.where(step > 0, 1)
    return q, k, valued(v, (v.detach() / step).round() * step)


future_in_scale = changed("future_in_scale", __name__, read=quantised)


def shuffled(n, tile):
    every = Steps().tiles(n, tile)
    return [every[i] for i in torch.randperm(len(every))]


order_by_chance = changed("order_by_chance", __name__, tiles=shuffled)
noise = changed("noise", __name__, divide=lambda O, l: O / l.where(l > 0, 1) * (1 + 2**-9 * torch.randn_like(O)))
