"""Whether `theory` predicts the measured error of kernels that round only their sums, over tiles, bits and inputs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fa_lib.execution.lookup import lookup
from fa_lib.experiments.problem import Problem
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import BF16, FP32, FP64, Format
from fa_lib.theory.bounds import bound
from fa_lib.theory.law import VALUES_OF, expected
from fa_lib.theory.recurrence import Tiles, drawn, repeated, simulated

SIMULATED = 2048  # rows
KERNEL = ["distribution", "algorithm", "bits"]
SPREAD = {  # standard deviation over the mean of what a tile of 64 keys adds to the row sum, head_dim 64
    "uniform": 0.167 / 8,
    "normal": math.sqrt(math.e - 1) / 8,
    "one-signed V": math.sqrt(math.e - 1) / 8,
}
REPEATED = 0.1  # of the law: below it, roundings that repeat do not count


def carried_in(count: int) -> Format:
    """Return the format with FP32's exponents and `count` significant bits, for a running sum."""
    return FP32 if count == 24 else BF16 if count == 8 else Format.of((8, count))


def only_sums(fmt: Format) -> Precision:
    """Make the Precision of a kernel that rounds only its running sums O and l, and O as stored, all to one format."""
    return replace(Precision.uniform(FP64), accumulator=fmt, row_sum=fmt, output=fmt)


def laws(
    seed: int, *, distributions: Sequence[str], tiles: Sequence[int], bits: Sequence[int], n_q: int = 128
) -> list[dict]:
    """A cell: `law` of all distributions and numbers of tiles. Its simulations share their draws: those of the most
    tiles begin with those of fewer.

    Returns:
        rows: distribution, tiles, and those of `law`.
    """
    rows = []
    for distribution in distributions:
        of = drawn(lookup("distribution", distribution, VALUES_OF), max(tiles), SIMULATED, seed=seed)
        for count in tiles:
            found = law(distribution, count, seed, bits=bits, n_q=n_q, of=of.first(count))
            rows += [dict(distribution=distribution, tiles=count) | row for row in found]
    return rows


def law(
    distribution: str, tiles: int, seed: int, *, bits: Sequence[int] = (8, 12, 16), n_q: int = 128,
    of: Tiles | None = None,
) -> list[dict]:  # fmt: skip
    """Measure the error of kernels whose running sums have few bits, on one draw, and predict it.

    Args:
        distribution: a key of `theory.law.VALUES_OF`. tiles: of 64 keys each. seed: of the draw. n_q: queries.
        bits: significant bits of O and l, one kernel for each.
        of: what `recurrence.drawn` draws for SIMULATED rows, where it has been drawn.

    Returns:
        rows: algorithm, bits; measured, the root mean square of O - golden over that of golden, in units of the sums'
        unit roundoff; predicted, the same by `theory.law.expected`; simulated, by `theory.recurrence.simulated`; bias,
        the mean signed error over its root mean square.

    Raises:
        ValueError: there is no such distribution.
    """
    values = lookup("distribution", distribution, VALUES_OF)
    of = of or drawn(values, tiles, SIMULATED, seed=seed)
    inputs = draw(distribution, seed, (1, 1, n_q, 64), (1, 1, tiles * 64, 64))  # head_dim 64
    q, k, v = (BF16(x) for x in inputs)
    problem, rows = Problem(q, k, v), []
    formats = [carried_in(count) for count in bits]
    kernels, stacked = [only_sums(fmt) for fmt in formats], Problem(q.repeat(1, 1, len(bits), 1), k, v)
    for algorithm in ("fa1", "fa2"):
        outputs = stacked.tiled(Tiling(n_q, 64), Stacked.steps(formats), algorithm, rows=len(bits) * n_q)
        for count, fmt, precision, o in zip(bits, formats, kernels, outputs.chunk(len(bits), -2)):
            error = problem.deviation(o, fmt)
            setting: dict[str, Any] = dict(tiles=tiles, algorithm=algorithm, values=values)
            errors = dict(measured=error.relative, predicted=expected(precision, **setting))
            errors["simulated"] = simulated(precision, **setting, of=of)
            errors = {name: value / fmt.unit_roundoff for name, value in errors.items()}
            rows.append(dict(algorithm=algorithm, bits=count) | errors | dict(bias=error.bias / error.rmse))
    return rows


@dataclass(frozen=True)
class Stacked:
    """Rounds the rows of several kernels, of which there are equally many and which follow one another, each kernel's
    to its own format. Kernels of few rows take as long for a tile as several of them at once."""

    formats: Sequence[Format]

    @classmethod
    def steps(cls, formats: Sequence[Format]) -> Any:
        """Make the steps of kernels that differ in what `only_sums` of a format sets."""
        of_sums = dict.fromkeys(("accumulator", "row_sum", "output"), cls(formats))
        return SimpleNamespace(**vars(Precision.uniform(FP64)) | of_sums)

    def __call__(self, x: Tensor) -> Tensor:
        """Round x, (rows, ...)."""
        return self.round_(x.clone(memory_format=torch.contiguous_format))

    def round_(self, x: Tensor) -> Tensor:
        """Round x, (rows, ...) and contiguous, in place."""
        for rows, fmt in zip(x.chunk(len(self.formats)), self.formats):
            fmt.round_(rows)
        return x


def ratios_of(table: pd.DataFrame) -> pd.DataFrame:
    """Compare predicted errors with measured ones, as means over seeds.

    Args:
        table: the rows of `law`, with columns distribution, tiles and seed.

    Returns:
        A row for each of KERNEL and tiles, its index: law and simulated, over measured; and whether roundings may
        be taken as `independent`.
    """
    means = table.groupby([*KERNEL, "tiles"], sort=False)[["measured", "predicted", "simulated"]].mean()
    over = means.div(means.measured, axis=0)
    return pd.DataFrame(
        dict(law=over.predicted, simulated=over.simulated, independent=[independent(*place) for place in means.index])
    )


def independent(distribution: str, algorithm: str, bits: int, tiles: int) -> bool:
    """Say whether a kernel's roundings may be taken as independent, by its inputs alone and without a look at any
    error: the row sum's that repeat (`theory.repeated`) make less than REPEATED of the error that the law expects.
    (Those of O repeat less, since V scatters.)"""
    fmt = carried_in(bits)
    due = expected(only_sums(fmt), tiles=tiles, algorithm=algorithm, values=VALUES_OF[distribution])
    return repeated(fmt, tiles=tiles, spread=SPREAD[distribution]) < REPEATED * due


def furthest(table: pd.DataFrame, ratio: str) -> list[tuple[str, pd.Series]]:
    """Find where a prediction is furthest from what was measured.

    Args:
        table: as `ratios_of`. ratio: "law", of the places that are independent, or "simulated".

    Returns:
        For each of KERNEL: its setting and the number of tiles in words; predicted over measured there, by seed.
    """
    ratios = ratios_of(table)
    asked = ratios[ratios.independent | (ratio == "simulated")]
    places = table.set_index([*KERNEL, "tiles"])
    by_seed, worst = places["predicted" if ratio == "law" else "simulated"] / places.measured, []
    for (distribution, algorithm, count), rows in (asked[ratio] - 1).abs().groupby(KERNEL, sort=False):
        at = rows.idxmax()
        words = f"{distribution} inputs, {algorithm}, {count} bits, {at[-1]} tiles (the worst of {len(rows)})"
        worst.append((words, by_seed.loc[[at]]))
    return worst


def bounds(seed: int, settings: int = 100) -> list[dict]:
    """A cell: compare the largest error of random kernels on random inputs with `theory.bound`.

    Shapes, formats of O, l and the factors, the algorithm, the inputs and the spread of the scores are all random.

    Args:
        seed: of the draws. settings: how many kernels.

    Returns:
        rows: algorithm, tiles, block_kv; kind, the distribution of the inputs; spread, the scores' factor; accumulator,
        row_sum and factors, their bits; deterministic and probable, the error over the bound (probable: with a failure
        probability of 1e-6), 0 where the bound is infinite; vacuous, whether the deterministic bound is infinite.
    """
    random, rows = np.random.default_rng(seed), []
    for index in range(settings):
        tiles, block_kv = int(random.integers(1, 65)), int(random.integers(1, 17))
        algorithm = str(random.choice(["fa1", "fa2"]))
        bits = {step: int(random.integers(6, 17)) for step in ("accumulator", "row_sum", "factors")}
        formats = {step: carried_in(count) for step, count in bits.items()}
        kind = str(random.choice(["uniform", "normal", "one-signed V", "sink"]))
        spread = float(2 ** random.uniform(-3, 3))
        q, k, v = draw(kind, seed * settings + index, (1, 1, 4, 8), (1, 1, tiles * block_kv, 8))
        problem = Problem(q * spread, k, v)
        size = Problem(q * spread, k, v.abs()).golden  # sum of P |v|
        precision = replace(Precision.uniform(FP64), **formats)
        o = problem.tiled(Tiling(4, block_kv), precision, algorithm)
        error = ((o - problem.golden).abs() / size).max().item()
        S = problem.q @ k.mT / 8**0.5
        call: dict[str, Any] = dict(tiles=tiles, algorithm=algorithm, rise=(S.amax(-1) - S.amin(-1)).max().item())
        most = bound(precision, **call), bound(precision, **call, keys=k.shape[-2] * o.numel(), failure=1e-6)
        row = dict(algorithm=algorithm, tiles=tiles, block_kv=block_kv, kind=kind, spread=spread) | bits
        rows.append(row | dict(deterministic=error / most[0], probable=error / most[1], vacuous=most[0] == math.inf))
    return rows
