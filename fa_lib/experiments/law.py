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
from fa_lib.kernels.algorithm import Algorithm
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.options import ResolvedOptions
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.rows import by_rows
from fa_lib.kernels.tiled import Forward
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import BF16, FP32, FP64, Format, FormatLike
from fa_lib.numerics.metrics import deviation
from fa_lib.theory import simulation
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


SUMS = ("row_sum", "accumulator", "output")  # steps of a Precision that P and its factors do not depend on


def outputs(
    problem: Problem, tiling: Tiling, precisions: Sequence[Precision], algorithm: Algorithm | str = "fa2"
) -> list[Tensor]:
    """Compute `problem.tiled` of each Precision; of those that differ in SUMS alone at once, by one S, P and P V."""
    groups, found = {}, {}
    for precision in precisions:
        groups.setdefault(replace(precision, **dict.fromkeys(SUMS, FP64)), {})[precision] = None
    for group in map(list, groups.values()):
        found |= zip(group, _at_once(problem, tiling, group, Algorithm.of(algorithm)))
    return [found[precision] for precision in precisions]


def _at_once(problem, tiling, precisions, how):
    stacked = {step: Stacked([getattr(precision, step) for precision in precisions]) for step in SUMS}
    steps: Any = SimpleNamespace(**vars(precisions[0]) | stacked, steps=tuple)  # none is stochastic
    inputs = problem.q, problem.k, problem.v
    settings, count = ResolvedOptions.of(*inputs, **problem.options), len(precisions)
    forward = Forward.of(steps, how, settings.scale, tiling.block_kv)

    def rows(q_i, *call):
        for step in stacked.values():
            step.ndim = q_i.ndim
        return forward.rows(q_i, *call)[..., :-1].movedim(0, -2).flatten(-2)  # (..., rows, kernels * d_v)

    sizes: Any = dict(features=count * problem.v.shape[-1], width=tiling.block_kv, several=True)
    return by_rows(rows, inputs, steps, settings, **sizes, q_k=problem.q_k(steps)).unflatten(-1, (count, -1)).unbind(-2)


@dataclass
class Stacked:
    """The step of several kernels that have equal values so far, (..., rows, features), of `ndim` dimensions, or values
    of their own, (kernels, ..., rows, features): it rounds each kernel's to its format, and returns the latter."""

    formats: Sequence[Format]
    ndim: int = 2

    def __call__(self, x: Tensor) -> Tensor:
        x = x if x.ndim > self.ndim else x.expand(len(self.formats), *x.shape)
        return self.round_(x.clone(memory_format=torch.contiguous_format))

    def round_(self, x: Tensor) -> Tensor:
        """Round x as a call does; values of their own, which are contiguous, are overwritten."""
        if x.ndim == self.ndim:
            return self(x)
        for values, fmt in zip(x, self.formats):
            fmt.round_(values)
        return x


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
    formats, rows = [carried_in(count) for count in bits], {distribution: [] for distribution in distributions}
    kinds = {distribution: lookup("distribution", distribution, VALUES_OF) for distribution in distributions}
    most = {values: simulation.drawn(values, max(tiles), SIMULATED, seed=seed) for values in kinds.values()}
    for count in tiles:
        sizes = (1, 1, n_q, 64), (1, 1, count * 64, 64)  # head_dim 64
        inputs = zip(*(draw(distribution, seed, *sizes) for distribution in distributions))
        problem = Problem(*(BF16(torch.cat(x)) for x in inputs))  # a distribution is an entry of the batch
        of = {values: drawn.first(count) for values, drawn in most.items()}
        for algorithm in ("fa1", "fa2"):
            answers = outputs(problem, Tiling(n_q, 64), [only_sums(fmt) for fmt in formats], algorithm)
            for (fmt, o), (i, (distribution, values)) in product(zip(formats, answers), enumerate(kinds.items())):
                error, u = deviation(o[i], problem.golden[i], fmt), fmt.unit_roundoff
                program, _ = simulation.simulated(only_sums(fmt), of[values], algorithm)
                row = dict(distribution=distribution, tiles=count, algorithm=algorithm, bits=fmt.precision)
                row |= dict(measured=error.relative / u, simulated=program / u, bias=error.bias / error.rmse)
                rows[distribution].append(row)
    return [row for distribution in distributions for row in rows[distribution]]


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
            relative, drift = simulation.simulated(precision, of, algorithm)
            row |= dict(simulated=relative / u, simulated_drift=drift / u)
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
        golden, size = Problem(problem.q, k, torch.cat([v, v.abs()], -1)).golden.chunk(2, -1)  # size: sum of P |v|
        precision = replace(Precision.uniform(FP64), **formats)
        o = problem.tiled(Tiling(4, block_kv), precision, algorithm)
        error = ((o - golden).abs() / size).max().item()
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
