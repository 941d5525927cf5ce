"""Whether `theory` predicts the measured error of kernels that round only their sums, over tiles, bits and inputs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fa_lib import kernels
from fa_lib.execution.lookup import lookup
from fa_lib.experiments.problem import Problem
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import BF16, FP32, FP64, Format, FormatLike
from fa_lib.theory import recurrence, simulation
from fa_lib.theory.bounds import bound
from fa_lib.theory.extremes import RMS
from fa_lib.theory.law import VALUES_OF, bias, expected
from fa_lib.theory.rounding_counts import roundings
from fa_lib.theory.worst_inputs import SPREAD, relative_error, search, searched_kernel

SIMULATED = 2048  # rows
KERNEL = ["distribution", "algorithm", "bits"]


def carried_in(count: int) -> Format:
    """Return the format with FP32's exponents and `count` significant bits, for a running sum."""
    return FP32 if count == 24 else BF16 if count == 8 else Format.of((8, count))


def only_sums(fmt: Format) -> Precision:
    """Make the Precision of a kernel that rounds only its running sums O and l, and O as stored, all to one format."""
    return replace(Precision.uniform(FP64), accumulator=fmt, row_sum=fmt, output=fmt)


def measured(
    seed: int, *, distributions: Sequence[str], tiles: Sequence[int], bits: Sequence[int], n_q: int = 128
) -> list[dict]:
    """A cell: measure the error of kernels whose running sums have few bits, and simulate it. The simulations of a
    distribution share their draws: those of the most tiles begin with those of fewer.

    Args:
        seed: of the draws. distributions: keys of `theory.law.VALUES_OF`. tiles: of 64 keys each. n_q: queries.
        bits: significant bits of O and l, one kernel for each.

    Returns:
        rows: distribution, tiles, algorithm, bits; measured, the root mean square of O - golden over that of golden, in
        units of the sums' unit roundoff; simulated, the same by `theory.simulated`; bias, the mean signed
        error over its root mean square.

    Raises:
        ValueError: there is no such distribution.
    """
    formats, rows = [carried_in(count) for count in bits], []
    steps = Stacked.steps(formats)
    for distribution in distributions:
        values = lookup("distribution", distribution, VALUES_OF)
        most = simulation.drawn(values, max(tiles), SIMULATED, seed=seed)
        for count in tiles:
            inputs = draw(distribution, seed, (1, 1, n_q, 64), (1, 1, count * 64, 64))  # head_dim 64
            q, k, v = (BF16(x) for x in inputs)
            problem, stacked, of = Problem(q, k, v), Problem(q.repeat(1, 1, len(bits), 1), k, v), most.first(count)
            for algorithm in ("fa1", "fa2"):
                outputs = stacked.tiled(Tiling(n_q, 64), steps, algorithm, rows=len(bits) * n_q)
                for fmt, o in zip(formats, outputs.chunk(len(bits), -2)):
                    error, u = problem.deviation(o, fmt), fmt.unit_roundoff
                    setting: dict[str, Any] = dict(tiles=count, algorithm=algorithm, values=values)
                    program = simulation.simulated(only_sums(fmt), **setting, of=of)
                    row = dict(distribution=distribution, tiles=count, algorithm=algorithm, bits=fmt.precision)
                    row |= dict(measured=error.relative / u, simulated=program / u, bias=error.bias / error.rmse)
                    rows.append(row)
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


def predicted(
    distribution: str, tiles: int, block_kv: int = 64, *, bits: Sequence[int] = (8, 12, 16), drawn: int = 0,
    algorithms: Sequence[str] = ("fa1", "fa2"),
) -> list[dict]:  # fmt: skip
    """A cell: predict the error of kernels whose running sums have few bits, by the law.

    Args:
        distribution: a key of `theory.law.VALUES_OF`. tiles: how many, of block_kv keys each. bits: as `measured`.
        drawn: number of rows to simulate as well (`theory.simulation`). algorithms: one kernel for each.

    Returns:
        rows: algorithm, bits; in units of roundoff predicted, by `theory.expected`, counted, as if roundings were
        independent, and drift, the mean signed error; with rows drawn also simulated and simulated_drift.
    """
    values, rows = lookup("distribution", distribution, VALUES_OF), []
    of = simulation.drawn(values, tiles, drawn, block_kv) if drawn else None
    for algorithm, count in product(algorithms, bits):
        precision, u = only_sums(carried_in(count)), carried_in(count).unit_roundoff
        setting: dict[str, Any] = dict(tiles=tiles, algorithm=algorithm, values=values, block_kv=block_kv)
        row = dict(algorithm=algorithm, bits=count, predicted=expected(precision, **setting) / u)
        row |= dict(counted=RMS * math.sqrt(roundings(**setting).carried()), drift=bias(precision, **setting) / u)
        if of:
            exact, error = of.golden, recurrence.carried(of, precision, algorithm) - of.golden
            row["simulated"] = (error.square().mean() / exact.square().mean()).sqrt().item() / u
            row["simulated_drift"] = (error / exact).mean().item() / u
        rows.append(row)
    return rows


def ratios_of(table: pd.DataFrame) -> pd.DataFrame:
    """Compare predicted errors with measured ones, as means over seeds.

    Args:
        table: the rows of `measured` and of `predicted`, joined.

    Returns:
        A row for each of KERNEL and tiles, its index: predicted, counted and simulated, over measured.
    """
    means = table.groupby([*KERNEL, "tiles"], sort=False)[["predicted", "counted", "simulated", "measured"]].mean()
    return means.div(means.measured, axis=0).drop(columns="measured")


def furthest(table: pd.DataFrame, ratio: str) -> list[tuple[str, pd.Series]]:
    """Find where a prediction is furthest from what was measured.

    Args:
        table: as `ratios_of`. ratio: "predicted", by the law, or "simulated".

    Returns:
        For each of KERNEL: its setting and the number of tiles in words; predicted over measured there, by seed.
    """
    ratios, places = ratios_of(table)[ratio], table.set_index([*KERNEL, "tiles"])
    by_seed, worst = places[ratio] / places.measured, []
    for (distribution, algorithm, count), rows in (ratios - 1).abs().groupby(KERNEL, sort=False):
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


def worst(
    fmt: FormatLike, tiles: int, seed: int, *, algorithm: str = "fa1", block_kv: int = 64, candidates: int = 256
) -> dict[str, float]:
    """Find the largest relative error of a kernel with every step in one format, by `search`. Arguments are those of
    `search`; it is a cell of a sweep.

    Returns:
        dict: found, the largest |O - golden| / golden, in u; and this error divided by others. over_baseline: over
        Baseline's on the same inputs, or over u, the most that rounding the answer costs, whichever is larger.
        over_expected: over `theory.expected`. of_bound: over `theory.bound`, which takes P as exact.
    """
    fmt = Format.of(fmt)
    x = search(fmt, tiles, seed, algorithm=algorithm, block_kv=block_kv, candidates=candidates)
    baseline = partial(kernels.reference, precision=Precision.materialized(fmt))
    pair = (searched_kernel(fmt, algorithm, block_kv), baseline)
    flash, own = (relative_error(kernel, x, fmt, block_kv).abs().item() for kernel in pair)
    uniform, u = Precision.uniform(fmt), fmt.unit_roundoff
    due = expected(uniform, tiles=tiles, algorithm=algorithm)
    return dict(
        found=flash / u, over_baseline=flash / max(own, u), over_expected=flash / due,
        of_bound=flash / bound(uniform, tiles=tiles, algorithm=algorithm, rise=SPREAD),
    )  # fmt: skip
