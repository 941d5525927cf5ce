"""Rotary embeddings (arXiv 2104.09864) that are missing, once too often or in other places: roles of a Dialect."""

import math
import re
from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from attention_check.conventions.attention import Rows, scores

ROPE = "rope_"  # a role, behind which stand a key of ROTATED, of PAIRS, and the base
ROTATED = {"both": "q and k, as if they were saved before it", "neither": "neither q nor k", "q": "q once more",
           "k": "k once more", "other": "q in other pairs of features than k's"}  # fmt: skip
FURTHER = "further"  # in place of a key of ROTATED, with a number of positions behind it: q is rotated so many more
BEFORE, FROM = "kbefore", "kfrom"  # the same, with a key behind it: "k" for the keys before it, or from it on
CHUNK = "chunk"  # the same, with a key, "by" and a number behind it: q, and keys from this one on, so many more
PAIRS = {"halves": "i and i + d/2", "neighbours": "2 i and 2 i + 1"}  # features that are rotated together
BASES = "1e4", "5e5", "1e6"
OFFSETS = 128  # positions that RoPE may be off
MOST = 2**19  # features of q times keys: with more, none is sought
SCORES = 2**14  # times offsets, that are held at a time
TINY = 1e-300


def rotated(q: Tensor, k: Tensor, role: str, at: Tensor) -> tuple[Tensor, Tensor]:
    """q (..., rows, head_dim), of rows at positions, and k (..., n_kv, head_dim), with the embedding of a role."""
    which, pairs, base = role.removeprefix(ROPE).split("_")

    def turned(x, positions, pairs=pairs):
        d = x.shape[-1] // 2 * 2
        angles = positions[:, None] * _frequencies(d, base)
        a, b = _pairs(x, pairs)
        parts = a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()
        found = torch.cat(parts, -1) if pairs == "halves" else torch.stack(parts, -1).flatten(-2)
        return torch.cat([found, x[..., d:]], -1)

    sign, keys = -1 if which == "neither" else 1, torch.arange(k.shape[-2])
    if which.startswith(CHUNK):  # the same as the keys before it so many positions fewer
        key, by = map(int, which.removeprefix(CHUNK).split("by"))
        return q, turned(k, torch.full_like(keys, -by)).where((keys < key)[:, None], k)
    if which.startswith(FURTHER):
        return turned(q, torch.full_like(at, int(which.removeprefix(FURTHER)))), k
    if side := next((side for side in (BEFORE, FROM) if which.startswith(side)), ""):
        part = (keys < int(which.removeprefix(side))) == (side == BEFORE)
        return q, turned(k, keys).where(part[:, None], k)
    if which == "other":
        return turned(turned(q, -at), at, next(each for each in PAIRS if each != pairs)), k
    return q if which == "k" else turned(q, sign * at), k if which == "q" else turned(k, sign * keys)


def _pairs(x, pairs):
    """The features that are rotated together: two tensors of half as many."""
    d = x.shape[-1] // 2 * 2
    return (x[..., : d // 2], x[..., d // 2 : d]) if pairs == "halves" else (x[..., :d:2], x[..., 1:d:2])


def _frequencies(d, base):
    return float(base) ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)


def of_number(role: str) -> str:
    """A role with a number in words: "with q turned by RoPE 3 positions too far (...)"."""
    which, pairs, base = role.removeprefix(ROPE).split("_")
    name, first, number = re.fullmatch(r"([a-z]+)(?:(\d+)by)?(-?\d+)", which).groups()  # pyright: ignore[reportOptionalMemberAccess]
    count, side = abs(int(number)), "too far" if int(number) > 0 else "too few"
    said = {
        FURTHER: f"q turned by RoPE {count} position{'s' * (count > 1)} {side}",
        CHUNK: f"q and k from key {first} on turned by RoPE {count} position{'s' * (count > 1)} {side}",
        BEFORE: f"RoPE once more on the keys before {count}", FROM: f"RoPE once more on the keys from {count} on",
    }[name]  # fmt: skip
    return f"with {said} (base {float(base):,.0f}, features {PAIRS[pairs]} together)"


def read_off(rows_in: Callable[[str], Rows]) -> list[str]:
    """Roles with a number in which an output is nearest: q is turned some positions too far, and a part of the keys
    once more. rows_in: gives its rows in a role, "" as they are."""
    few = (rows := rows_in("")).q.shape[-1] > 1 and rows.q.shape[-1] * rows.shape[3] <= MOST
    if not few:
        return []
    first = int(rows.places[2][0]) + rows.shape[3] - rows.shape[2]  # of a part of the rows, the first one's own key
    roles = (_further(rows), _part_turned(rows, rows_in), _further(rows, first) if 0 < first < rows.shape[3] else "")
    return [role for role in roles if role]


def _further(rows, first=0):
    """RoPE turns q by some positions more or fewer than it should; and so keys from `first` on, if it is not 0."""
    best, d = (math.inf, ""), rows.q.shape[-1] // 2 * 2
    q, k, v, o, bias = (x.float() for x in (rows.q, rows.k, rows.v, rows.o, rows.bias))  # one is sought
    for pairs, base in product(PAIRS, BASES):
        (a, b), (x, y) = (_pairs(z, pairs) for z in (q[..., None, :], k[:, :, None]))
        of_cos, of_sin = a * x + b * y, a * y - b * x  # (entries, heads, rows, n_kv, d / 2)
        for at in torch.arange(-OFFSETS, OFFSETS + 1).split(max(SCORES // rows.shape[3], 1)):
            angles = (at[:, None] * _frequencies(d, base)).float()  # (offsets, d / 2)
            S = of_cos @ angles.cos().mT + of_sin @ angles.sin().mT  # (..., rows, n_kv, offsets)
            S[..., first:, :] = of_cos[..., first:, :].sum(-1, keepdim=True) if first else S
            P = torch.softmax(S * rows.scale + bias[..., None], -2).nan_to_num(0.0)
            error = (torch.einsum("ehrko,ehkf->ehrfo", P, v) - o[..., None]).square().sum((0, 1, 2, 3))
            if error.min() < best[0]:
                by = int(at[error.argmin()])
                which = f"{CHUNK}{first}by{by}" if first else f"{FURTHER}{by}"
                best = error.min().item(), f"{ROPE}{which}_{pairs}_{base}" if by else ""
    return best[1]


def _part_turned(rows, rows_in):
    """RoPE turns the first keys once more, as those of a cache, or the last ones."""
    best = math.inf, ""
    for pairs, base in product(PAIRS, BASES):
        both = [scores(each) for each in (rows, rows_in(f"{ROPE}k_{pairs}_{base}"))]
        m = torch.maximum(*both).amax(-1, keepdim=True)
        own, other = (torch.exp(S - m.where(m > -math.inf, 0.0)) for S in both)  # (entries, heads, rows, n_kv)
        for side, (first, last) in ((BEFORE, (other, own)), (FROM, (own, other))):
            change = first - last  # of the weights before a key, (l) and (l V) for each key
            l = last.sum(-1, keepdim=True) + change.cumsum(-1)
            lv = (last @ rows.v)[..., None, :] + (change[..., None] * rows.v[:, :, None]).cumsum(-2)
            error = (lv / l.clamp(min=TINY)[..., None] - rows.o[..., None, :]).square().sum((0, 1, 2, 4))  # (n_kv,)
            key = int(error.argmin()) + 1
            if error.min() < best[0] and key < rows.shape[3]:
                best = error.min().item(), f"{ROPE}{side}{key}_{pairs}_{base}"
    return best[1]
