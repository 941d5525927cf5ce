"""All of an output beside a dialect, head by head: what a sample of its rows has missed."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attention_check.conventions.attention import SOFTMAX_OVER, Rows, attend
from attention_check.conventions.evidence import Evidence, spread
from attention_check.conventions.reading import Reader
from attention_check.conventions.search import Standing, fit

PRODUCTS = 5e9  # multiplications of q k^T and P v together, for which all rows are looked at: some seconds
FEWEST_ROWS = 16  # of each head, where all are too many
SCORES = 2**23  # that are held at a time


@dataclass(frozen=True)
class Scan:
    """Rows of all entries and heads.

    Attributes:
        of_rows: their relative residuals (`search.Fit`), (batch, heads, rows); NaN where a row does not count, and
            infinite where o is finite and should not be, or is not and should be.
        errors: |o - attention| over the root mean square of the row of attention, (batch, heads, rows, d_v), float32.
        nan_rows: those that are not finite though they should be. hidden_nan: those that are, and should not be.
        places: the indices of entries, heads and rows.
    """

    of_rows: Tensor
    errors: Tensor
    nan_rows: int
    hidden_nan: int
    places: tuple[Tensor, Tensor, Tensor]

    @property
    def count(self) -> int:
        return self.of_rows.numel()


def scan(evidence: Evidence, sample: Rows) -> Scan:
    """Look at all rows of all heads of a call in the dialect of a sample, or at evenly spread ones where these are too
    many; at the sampled ones where the softmax is over another dimension than keys."""
    places = places_of(evidence, sample)
    of_rows, errors, nan_rows, hidden = [], [], 0, 0
    for rows in parts(evidence, sample, places):
        golden = attend(rows)
        standing = Standing.of(rows, golden)
        nan_rows += int(standing.nan.sum())
        hidden += int(standing.hidden_nan.sum())
        of_rows.append(fit(rows, golden).of_rows.masked_fill(standing.nan | standing.hidden_nan, math.inf).flatten())
        size = golden.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-300)
        errors.append(((rows.o - golden).abs() / size).nan_to_num(math.inf).float().reshape(-1, golden.shape[-1]))
    shape = tuple(len(at) for at in places)
    return Scan(torch.cat(of_rows).reshape(shape), torch.cat(errors).reshape(*shape, -1), nan_rows, hidden, places)


def places_of(evidence: Evidence, sample: Rows) -> tuple[Tensor, Tensor, Tensor]:
    """The indices of entries, heads and rows that are looked at."""
    if sample.dialect.softmax in SOFTMAX_OVER:
        return sample.places
    batch, heads, n_q, n_kv = sample.shape
    d = evidence.q.shape[-1] + evidence.v.shape[-1]
    most = int(PRODUCTS / max(batch * heads * n_kv * d, 1))
    return torch.arange(batch), torch.arange(heads), spread(n_q, max(min(most, n_q), FEWEST_ROWS))


def parts(evidence: Evidence, sample: Rows, places: tuple[Tensor, Tensor, Tensor]) -> Iterator[Rows]:
    """The rows at places, of one head after the other; all sampled ones together where the softmax couples them."""
    if sample.dialect.softmax in SOFTMAX_OVER:
        yield Reader(evidence).rows(sample.dialect)
        return
    entries, heads, rows_at = places
    chunk = max(SCORES // sample.shape[3], 1)
    for entry in entries.split(1):
        for head in heads.split(1):
            for part in rows_at.split(chunk):
                yield Reader(evidence, places=(entry, head, part)).rows(sample.dialect)
