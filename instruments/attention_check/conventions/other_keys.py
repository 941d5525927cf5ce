"""Tiles of keys, or their values alone, in whose place an output has others."""

import math
from dataclasses import dataclass
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_check.conventions.attention import Dialect, Rows, capped, scores
from attention_check.conventions.reading import CapturedCall, Unfit
from attention_check.conventions.search import HELD_OUT, TINY, narrow

PAGES = (256, 128, 64, 32, 16)  # keys of a tile
MOVED = (2, 3, 16)  # entries, heads and rows on which other tiles are tried
TRIES = 2**22  # tiles of an entry times its rows times the keys of all entries, at most
LEAST = 0.1  # of the squared error, that a tile of other keys must take away
MOST = 4  # tiles of an entry: more are no pattern


@dataclass(frozen=True)
class Page:
    """Keys of an entry in whose place others were read.

    Attributes:
        size: how many. entry, first: where they belong. of_entry, of_first: where those come from that were read.
        of_head: of k, where it is another one; else None. values: their values alone were read.
    """

    size: int
    entry: int
    first: int
    of_entry: int
    of_first: int
    of_head: int | None
    values: bool


def moved_keys(call: CapturedCall) -> tuple[Page, ...]:
    """Tiles of keys, or all, in whose place an entry reads others, of any entry, or the values of others alone, if the
    sampled rows are then right to rounding in features in which no tile was sought; () if not. In rows that share a
    head of k also those of other heads are tried."""
    try:
        sample = call.rows(Dialect(), MOVED)
    except Unfit:
        return ()
    found: list[Page] = []
    for entry in sample.places[0].split(1):
        rows = call.rows(Dialect(), places=(entry, *sample.places[1:]))
        sizes = rows.shape[3], *(size for size in PAGES if size < rows.shape[3])
        tried = (_moved(call, rows, *each) for each in product(sizes, (False, True)))
        pages = next((each for each in tried if each is not None), None) if rows.counted.all() else None
        if pages is None:
            return ()
        found += pages
    return tuple(found)


def _moved(call: CapturedCall, rows: Rows, size: int, values: bool) -> list[Page] | None:
    """The Pages of so many keys of one entry, the one that takes away most of the error first; None where they do not
    explain it. values: they are those of values alone."""
    (batch, kv_heads, n_kv, _), entry, tiles = call.k.shape, int(rows.places[0]), -(-rows.shape[3] // size)
    heads = rows.places[1] * kv_heads // rows.shape[1]
    head, one = int(heads[0]), len(heads.unique()) == 1
    count = batch * kv_heads if one else batch  # whose tiles are read
    if tiles * len(rows.places[2]) * count * n_kv > TRIES:
        return None
    of_any = [x.flatten(0, 1)[:, None].expand(-1, len(heads), -1, -1) if one else x[:, heads] for x in (call.k, call.v)]
    k, v = (_tiled(x.double().cpu().nan_to_num(0.0, 0.0, 0.0), size) for x in (of_any[0], narrow(of_any[1])))
    own = entry * kv_heads + head if one else entry
    S, o = scores(rows)[0], narrow(rows.o)[0]
    m = torch.maximum(S.amax(-1, keepdim=True), rows.sinks[0])  # (heads, rows, 1)
    P = _tiled(torch.exp(S - m)[..., None], size)[..., 0]  # (heads, rows, tiles, size)
    bias = F.pad(rows.bias[0], (0, -n_kv % size), value=-math.inf).unflatten(-1, (tiles, size))
    S_of = capped(torch.einsum("hrd,bhtsd->hrbts", rows.q[0], k) * rows.scale, rows.softcap) - m[..., None, None]
    S_of[..., -1, n_kv - (tiles - 1) * size :] = -math.inf  # behind the last key
    of_tile = _sums(P[:, :, None], v[None, own])[:, 0]  # (O, l) of each tile, (tiles, heads, rows, d + 1)
    total = of_tile.sum(0)
    total[..., -1:] += torch.exp(rows.sinks[0] - m)
    allowed = (HELD_OUT * call.rounding()) ** 2 * o[..., 1::2].square().sum()
    found: dict[int, tuple[int, int]] = {}
    while _error(total, o)[..., 1::2].sum() > allowed:
        least, best = (1 - LEAST) * _error(total, o)[..., ::2].sum().item(), None
        for at in range(tiles):
            there, added = P[:, :, None, None, at], bias[:, :, None, None, at]
            p = there.expand_as(S_of) if values else torch.exp(S_of + added)
            tried = total + _sums(p, v) - of_tile[at]  # (tiles, count, heads, rows, d + 1)
            errors = _error(tried, o)[..., ::2].sum((2, 3, 4))
            if errors.min() < least:
                of = divmod(int(errors.argmin()), count)
                least, best = errors.min().item(), (at, of, tried[of])
        if best is None or best[0] in found or len(found) == MOST:
            return None
        at, found[at], total = best
    places = [(at, tile, *divmod(of, kv_heads if one else 1)) for at, (tile, of) in sorted(found.items())]
    rest = [n_kv - max(at, tile) * size for at, tile, *_ in places]  # the last tile may be a part of one
    return [
        Page(min(size, left), entry, at * size, of_entry, tile * size, of if one and of != head else None, values)
        for left, (at, tile, of_entry, of) in zip(rest, places)
    ]


def _tiled(x: Tensor, size: int) -> Tensor:
    """(..., n, d) as (..., tiles, size, d), with zeros behind the last key."""
    return F.pad(x, (0, 0, 0, -x.shape[-2] % size)).unflatten(-2, (-1, size))


def _sums(p: Tensor, v: Tensor) -> Tensor:
    """O of each tile, not divided by the row sum, and behind it l: (tiles, count, heads, rows, d + 1).

    Args:
        p: (heads, rows, count, tiles, size). v: (count, heads, tiles, size, d).
    """
    return torch.einsum("hrbts,bhtsd->tbhrd", p, F.pad(v, (0, 1), value=1.0))


def _error(total: Tensor, o: Tensor) -> Tensor:
    """The squared error of O / l, (..., d)."""
    return (total[..., :-1] / total[..., -1:].clamp(min=TINY) - o).square()
