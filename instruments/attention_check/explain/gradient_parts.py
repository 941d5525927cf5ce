"""How often each part of the keys, or of the rows, counts in a gradient: as where a kernel leaves out a block or takes
one twice, a GPU adds up the wrong part, or reads the one before again."""

from typing import Any

import torch
from torch import Tensor

from attention_check.conventions.derivatives import Group, of_scores

MOST, LEAST = 32, 16  # parts of the keys or rows; of these in a part
SCORES = 2**24
SHOWS = 0.03  # of a gradient's size: what a part adds to it, where it can be seen how often it counts
WHOLE = 0.1  # so near to a whole number a count is, beside rounding
Counts = tuple[tuple[tuple[int, int], tuple[tuple[int, int, int], ...]], ...]  # rows of it, and (first, last, count)


def counted(group: Group, name: str, x: Tensor) -> tuple[Tensor, Tensor, Counts] | None:
    """Fit how often parts count in one gradient, by every other feature, in whole numbers.

    Args:
        name, x: "dq" (heads, n_q, head_dim), "dk" (n_kv, head_dim) or "dv" (n_kv, d_v), float64.

    Returns:
        x and what it should then be, of the features that were not fitted, and the counts; None where they are no
        whole numbers from 0 on, or all are 1, or there are more than SCORES. A part that is hidden has the count None.
    """
    rows = group.rows
    if max(rows.products.numel(), MOST * rows.q.numel(), MOST * rows.k.numel()) > SCORES or not x.isfinite().all():
        return None
    P, dS = of_scores(group)  # (1, heads, n_q, n_kv)
    k = rows.k.nan_to_num(0.0, 0.0, 0.0)  # hidden keys may hold anything
    map_, given = {"dq": (dS, k), "dk": (dS.mT, rows.q), "dv": (P.mT, group.dO)}[name]
    cut, at = (_parts(n) for n in (given.shape[2], map_.shape[2]))
    each = torch.stack([(map_[..., part] @ given[:, :, part])[0] for part in cut])  # (parts, heads, n, d)
    each, x = (each, x) if name == "dq" else (each.sum(1, keepdim=True), x[None])
    if not each.isfinite().all():
        return None
    counts, due = [], torch.zeros_like(x[..., 1::2])
    for part in at:
        A, y = each[:, :, part, ::2].flatten(1).mT, x[:, part, ::2].flatten()
        shows = A.norm(dim=0) > SHOWS * y.norm()  # the others are taken to count once
        found = torch.ones(len(cut)).double()
        found[shows] = torch.linalg.lstsq(A[:, shows], (y - A[:, ~shows].sum(1))[:, None]).solution[:, 0]
        count = found.round()
        if not ((found - count).abs() <= WHOLE).all() or count.min() < 0:
            return None
        counts.append(tuple(int(c) if shown else None for c, shown in zip(count, A.any(0))))
        due[:, part] = torch.tensordot(count, each[:, :, part, 1::2], 1)
    if all(count in (1, None) for line in counts for count in line):
        return None
    told = []
    for first, last, line in _runs(at, counts):
        runs = _runs(cut, [(count,) for count in line])
        told.append(((first, last), tuple((*ends, count) for *ends, (count,) in runs if count not in (1, None))))
    return x[..., 1::2], due, tuple(told)


def _parts(n: int) -> tuple[Tensor, ...]:
    return torch.arange(n).split(max(-(-n // MOST), min(LEAST, -(-n // 2))))


def _runs(parts, values):
    """(first, last, value) of parts that follow each other and have one value, in which None is any."""
    found: list[list[Any]] = []
    for part, value in zip(parts, values):
        if found and all(a == b or None in (a, b) for a, b in zip(found[-1][2], value)):
            found[-1][1:] = int(part[-1]), tuple(a if b is None else b for a, b in zip(found[-1][2], value))
        else:
            found.append([int(part[0]), int(part[-1]), value])
    return found
