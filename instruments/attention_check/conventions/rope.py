"""Rotary embeddings (arXiv 2104.09864) that are missing, once too often or in other places: roles of a Dialect."""

import math
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from attention_check.conventions.attention import Rows
from attention_check.conventions.parts import Part, nearest_part

ROPE = "rope_"  # a role, behind which stand a key of ROTATED, of PAIRS, and the base
ROTATED = {"both": "q and k, as if they were saved before it", "neither": "neither q nor k", "q": "q once more",
           "k": "k once more", "other": "q in other pairs of features than k's",
           "others": "q and k in other pairs of features than those"}  # fmt: skip
FURTHER = "further"  # in place of a key of ROTATED, with a number of positions behind it: q is rotated so many more
PAIRS = {"halves": "i and i + d/2", "neighbours": "2 i and 2 i + 1"}  # features that are rotated together
BASES = "1e4", "5e5", "1e6"
OFFSETS = 128  # positions that RoPE may be off
MOST = 2**19  # features of q times keys: with more, none is sought
SWEPT, BLOCK = 512, 64  # keys: of more, a part of them begins or ends at a multiple of BLOCK
SCORES = 2**14  # times offsets, that are held at a time


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
    if which.startswith(FURTHER):  # the same as keys so many positions fewer
        return q, turned(k, torch.full_like(keys, -int(which.removeprefix(FURTHER))))
    if which.startswith("other"):
        others = next(each for each in PAIRS if each != pairs)
        return turned(turned(q, -at), at, others), turned(turned(k, -keys), keys, others) if which == "others" else k
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
    by = int(which.removeprefix(FURTHER))
    said = f"{abs(by)} position{'s' * (abs(by) > 1)} {'too far' if by > 0 else 'too few'}"
    return f"with q turned by RoPE {said} (base {float(base):,.0f}, features {PAIRS[pairs]} together)"


def read_off(rows: Rows) -> tuple[str, Part | None] | None:
    """The role with a number in which an output is nearest, q turned some positions too far or too few, and the part of
    the keys for which it is; None is all. None where it is nearer without."""
    d, n_kv, best = rows.q.shape[-1] // 2 * 2, rows.shape[3], (math.inf, (0, 0), "")
    if not 0 < d <= MOST / n_kv:
        return None
    few = replace(rows, **{x: getattr(rows, x).float() for x in ("q", "k", "v", "o", "products", "bias", "sinks")})
    for pairs, base in product(PAIRS, BASES):
        (a, b), (x, y) = (_pairs(z, pairs) for z in (few.q[..., None, :], few.k[:, :, None]))
        of_cos, of_sin = a * x + b * y, a * y - b * x  # (entries, heads, rows, n_kv, d / 2)
        for at in torch.arange(-OFFSETS, OFFSETS + 1).split(max(SCORES // n_kv, 1)):
            angles = (at[:, None] * _frequencies(d, base)).float()  # (offsets, d / 2)
            S = (of_cos @ angles.cos().mT + of_sin @ angles.sin().mT) * rows.scale + few.bias[..., None]
            error, part, i, _ = nearest_part(few, S, few.v, every=1 if n_kv <= SWEPT else BLOCK)
            by = int(at[i])
            best = min(best, (error, part, f"{ROPE}{FURTHER}{by}_{pairs}_{base}" if by else ""))
    _, (first, end), role = best
    return (role, None if (first, end) == (0, n_kv) else (first, end)) if role and first < end else None
