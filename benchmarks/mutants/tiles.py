"""Defects of tiles: keys that are dropped, invented, or read from elsewhere."""

import torch
from torch.nn.functional import pad

from benchmarks.mutants.skeleton import Steps, attention, changed

TILE = 64


def whole_tiles(n, tile):
    """The tiles that are full; where there is none, the one that there is."""
    return [(j, j + tile) for j in range(0, n - tile + 1, tile)] or [(0, n)]


part_dropped = changed("part_dropped", __name__, tiles=whole_tiles)


def tiles(n, tile):
    every = Steps().tiles(n, tile)
    return every[:-1] if n > 1024 else every


last_dropped_above_1024 = changed("last_dropped_above_1024", __name__, tiles=tiles)


def padding_counted(q, k, v, **options):
    def padded(q, k, v):
        return q, *(pad(x, (0, 0, 0, -x.shape[-2] % TILE)) for x in (k, v))

    if options.get("causal") or options.get("mask") is not None or options.get("window"):
        return attention(q, k, v, **options)  # a mask hides the padding
    return attention(q, k, v, **options, steps=Steps(read=padded))


def wrapped(q, k, v):
    n, d = k.shape[-2:]
    return q, k[..., torch.arange(n) * d % 2**16 // d, :], v


offsets_in_16_bits = changed("offsets_in_16_bits", __name__, read=wrapped)
