"""Sums over keys: the values that weights meet, what parts of them add up to, and where their roundings repeat."""

from functools import lru_cache

import torch
from torch import Tensor

from fa_lib.numerics.formats import FP64, Format
from fa_lib.theory.law import repeated

DITHER = 0.6  # ulp of a sum: terms that scatter by more have independent roundings (`theory.repeated`)


def weighted_values(A: Tensor, v: Tensor) -> Tensor:
    """A (rows, keys) times values that all rows share (keys, d_v), or that each has for itself (rows, keys, d_v):
    (rows, d_v)."""
    return A @ v if v.ndim == 2 else (A[:, None] @ v)[:, 0]


def largest_partial_sum(apart: Tensor) -> Tensor:
    """The sum of squares of what parts of neighbouring tiles add up to, for the number of parts where it is largest;
    apart: (tiles, rows, d_v)."""
    tiles, sums = apart.shape[0], torch.cat([torch.zeros_like(apart[:1]), apart.cumsum(0)])
    found, size = torch.zeros_like(apart[0]), 1
    while size < tiles:
        at = torch.tensor([*range(0, tiles, size), tiles], device=apart.device)
        found, size = torch.maximum(found, sums[at].diff(dim=0).square().sum(0)), 2 * size
    return found


def spread_of_terms(squares: Tensor, total: Tensor, terms: int) -> tuple[Tensor, int]:
    """The standard deviation of a sum's terms over their mean, and how many there are. squares, total: (rows, d_v), of
    the terms."""
    over = terms * squares / total.square().where(total != 0, 1.0) - 1
    return over.clamp(min=0).sqrt().where(total != 0, 1.0), terms


def repeats(fmt: Format, spread: Tensor, terms: int) -> Tensor:
    """The relative mean square error (rows, d_v) of a sum whose roundings repeat, 0 where its terms scatter enough;
    spread: (rows, d_v), of `spread_of_terms`."""
    at = torch.floor(torch.log2(spread.clamp(min=2.0**-60)))
    at = at.where(spread < DITHER * 2 * fmt.unit_roundoff * terms, 0.0)
    found = torch.zeros_like(spread)
    if fmt.precision < FP64.precision:
        for each in at.unique().tolist():
            if each < 0:
                found[at == each] = _repeated(fmt, terms, each) ** 2
    return found


@lru_cache
def _repeated(fmt, terms, log_spread):
    return repeated(fmt, tiles=terms, spread=2.0**log_spread)
