"""Which dialect an output is in: every convention alone, then those that help together."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from attention_check.conventions.attention import SOFTMAX_OVER, Dialect, Rows, changed
from attention_check.conventions.conventions import CONVENTIONS
from attention_check.conventions.reading import FEW, ROPE, CapturedCall, Reader, Unfit

NEAR = 0.1  # a residual of the right function, in coarse arithmetic
LIKELY = dict(
    layout=("all_bshd", "inputs_bshd", "o_bshd"), scale=("default", "one", "one_over_d"),
    causal=("none", "top_left", "bottom_right"), mask=("ignored", "inverted"),
)  # fmt: skip
BEAM = 5  # dialects that another convention is tried beside
DEPTH = 3  # conventions together, at most
SIMPLER = 1.25  # times the least residual: so near, the dialect of fewer conventions is taken
BELIEVED = 3.0  # times the least residual: so near, the believed dialect is taken
PART = 0.4  # of the rows
TINY = 1e-300
OFF = 0.01  # of a factor from 1, and from 0, that is named


@dataclass(frozen=True)
class Fit:
    """A dialect, and how far the output is from it.

    Attributes:
        residual: root mean square of the difference over that of the dialect's output, over all sampled rows that
            count: they see a key, and they and what they see are finite. Infinite where no row counts.
        residual_by_row: the same of each row, (entries, heads, rows); NaN where it does not count.
        hidden_nan: rows that are finite, though what they see is not.
    """

    dialect: Dialect
    residual: float
    residual_by_row: Tensor
    hidden_nan: int = 0

    @property
    def counted(self) -> Tensor:
        """`residual_by_row` of the rows that count, (count,)."""
        return self.residual_by_row[self.residual_by_row.isfinite()]

    @property
    def share(self) -> float:
        """Of the rows that count, those that are nearer than NEAR."""
        return (self.counted <= NEAR).double().mean().item() if self.counted.numel() else 0.0


def fit(rows: Rows) -> Fit:
    """How far the output is from the rows' dialect."""
    golden, counted, hidden = rows.golden, rows.counted, int(rows.hidden_nan.sum())
    error, size = (x.square().mean(-1) for x in (rows.o - golden, golden))
    if not counted.any():
        return Fit(rows.dialect, math.inf, torch.full_like(error, math.nan), hidden)
    floor = max(1e-3 * size[counted].mean().item(), TINY)  # where attention is 0, any error is large
    residual_by_row = (error / size.clamp(min=floor)).sqrt().where(counted, math.nan)
    total = size[counted].sum().clamp(min=TINY)
    return Fit(rows.dialect, (error[counted].sum() / total).sqrt().item(), residual_by_row, hidden)


def search(call: CapturedCall) -> list[Fit]:
    """The dialects that were tried, the nearest first, and of those about as near the simplest; the believed one is
    among them.

    Every convention alone comes first, then the products of the likely ones, then others beside the best so far.
    """
    reader, choices = Reader(call, FEW), [each for each in CONVENTIONS if each.fits(call)]
    found: dict[Dialect, Fit | None] = {}  # None where the shapes make no call, or it says nothing
    enough = call.rounding()

    def tried(dialects: Iterable[Dialect]) -> list[Fit]:
        """All that were tried, and these, the nearest first."""
        for dialect in dialects:
            if dialect not in found:
                try:
                    rows = reader.rows(dialect)
                    each = fit(rows)
                    found[dialect] = None if each.residual <= NEAR and is_flat(rows, enough) else each
                except Unfit:
                    found[dialect] = None
        return sorted(_fair([each for each in found.values() if each]), key=lambda each: each.residual)

    fits = tried([Dialect(), *(changed(Dialect(), each.aspect, each.choice) for each in choices)])
    if not fits or fits[0].residual > NEAR:
        fits = tried(_likely(choices))
    choices = [each for each in choices if each.choice not in SOFTMAX_OVER and not str(each.choice).startswith(ROPE)]
    for _ in range(DEPTH - 1):
        if fits and fits[0].residual <= enough:
            break
        beam = [each.dialect for each in fits[:BEAM] if each.dialect.softmax not in SOFTMAX_OVER]
        fits = tried(
            changed(dialect, one.aspect, one.choice)
            for dialect in beam for one in choices if one.aspect not in dialect.changes()
        )  # fmt: skip
    return ranked([each for each in found.values() if each] or [Fit(Dialect(), math.inf, torch.zeros(0))])


def is_flat(rows: Rows, rounding: float) -> bool:
    """Whether an output in a dialect of other scores is as near without any: it says nothing of what they are."""
    flat = replace(rows, products=torch.zeros_like(rows.products))
    return bool(rows.dialect.scale or rows.dialect.roles) and fit(flat).residual <= rounding


def _likely(choices):
    """Products of the conventions that are most often meant otherwise."""
    options: dict[str, list[Any]] = {aspect: [""] for aspect in LIKELY}
    for each in choices:
        if each.choice in LIKELY.get(each.aspect, ()):
            options[each.aspect].append(each.choice)
    return [replace(Dialect(), **dict(zip(options, chosen))) for chosen in product(*options.values())]


def ranked(fits: Sequence[Fit]) -> list[Fit]:
    """The nearest first; of those about as near, the one of fewest conventions, the believed one above all. Where none
    is near, the one that is near in most rows stands first, if it is so in PART of them."""
    fits = sorted(_fair(fits), key=lambda each: each.residual)
    least = fits[0].residual
    near = [each for each in fits if each.residual <= (SIMPLER if each.dialect.changes() else BELIEVED) * least]
    first = min(near, key=lambda each: (len(each.dialect.changes()), each.residual))
    if first.residual > NEAR:
        best = max(fits, key=lambda each: (round(each.share, 2), -len(each.dialect.changes()), -each.residual))
        first = best if best.share >= PART else first
    return [first, *(each for each in fits if each is not first)]


def _fair(fits):
    """Dialects in which no more rows should be NaN and are not than in the believed one: these do not count, and a
    dialect must not gain by it."""
    believed = next((each.hidden_nan for each in fits if not each.dialect.changes()), math.inf)
    return [each for each in fits if each.hidden_nan <= believed]
