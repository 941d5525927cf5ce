"""Carry O and l over the tiles of rows with the kernel's roundings, from two numbers a tile."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fa_lib.kernels.precision import Precision


@dataclass(frozen=True)
class Tiles:
    """What the tiles of some rows are to a flash kernel, float64 (tiles, rows) each.

    Attributes:
        highest: the largest score of the tile.
        l: the sum of P over the tile's keys, P = exp(S - highest).
        O: the sum of P v over the tile's keys, for one column of V.
    """

    highest: Tensor
    l: Tensor
    O: Tensor

    def first(self, tiles: int) -> "Tiles":
        """Return the first so many tiles of each row: those that `drawn` draws if it draws no more."""
        return Tiles(self.highest[:tiles], self.l[:tiles], self.O[:tiles])

    @cached_property
    def factors(self) -> tuple[Tensor, Tensor]:
        """exp(m - m') of what a row has carried so far and of a tile, m' the row's new maximum; of all but the first
        tile, (tiles - 1, rows) each."""
        m = self.highest.cummax(0).values
        return torch.exp(m[:-1] - m[1:]), torch.exp(self.highest[1:] - m[1:])

    @cached_property
    def golden(self) -> Tensor:
        """O / l in float64, (rows,)."""
        weights = torch.exp(self.highest - self.highest.amax(0))
        return (weights * self.O).sum(0) / (weights * self.l).sum(0)


def carried(of: Tiles, precision: Precision, algorithm: str) -> Tensor:
    """Carry l and O over all tiles, rounded to precision's row_sum and accumulator, and O to its output: (rows,)."""
    row_sum, accumulator = precision.row_sum, precision.accumulator
    old, new = of.factors  # (tiles - 1, rows) each
    l, O = row_sum(of.l[0]), accumulator(of.O[0])
    l_terms, O_terms = of.l[1:], of.O[1:]
    if algorithm == "fa1":
        O, l_terms, O_terms = accumulator(O / l), row_sum(l_terms), accumulator(O_terms)
    l_terms, O_terms = row_sum.round_(new * l_terms), accumulator.round_(new * O_terms)
    for factor, l_term, O_term in zip(old, l_terms, O_terms):
        l_old = row_sum.round_(factor * l)
        l = row_sum.round_(l_old + l_term)
        if algorithm == "fa1":  # divides O by l at every tile, and multiplies it back at the next
            O = accumulator.round_(accumulator.round_(O * l_old).add_(O_term))
            O = accumulator.round_(O.div_(l))
        else:
            O = accumulator.round_(accumulator.round_(O * factor).add_(O_term))
    return precision.output(O if algorithm == "fa1" else accumulator(O / l))
