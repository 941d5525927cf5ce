"""How a tensor core's sums change attention, over architectures, formats and lengths; and which choices of real kernels
change a bit, or the error."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pandas as pd
import torch
from scipy import special

from fa_lib.execution.lookup import lookup
from fa_lib.experiments.problem import Problem
from fa_lib.kernels.polynomials import polynomial_exp
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.shipped import fa2_cuda
from fa_lib.kernels.shipped_newer import fa3_cuda
from fa_lib.kernels.tiling import Tiling
from fa_lib.kernels.variants import Variant, by_key
from fa_lib.numerics.dots import EXACT, Dot
from fa_lib.numerics.formats import E4M3, FP32, Format, round_to
from fa_lib.numerics.metrics import over_baseline
from fa_lib.numerics.tensor_cores import UNITS, TensorCore

MATTERS = 0.01  # a change of the error that is reported
EXACT_SUMS = "exact"  # in the place of a unit: every product is the exact sum, rounded once


LEVELS = by_key((  # how often O goes to a register of FP32
    Variant("one_level", "one-level: O stays in the accumulator", algorithm=dict(accumulate_in_mma=True)),
    Variant("tile", "two-level: added to FP32 after each tile", algorithm=dict(accumulate_in_mma=False)),
))  # fmt: skip


def adders(fmt: Format | str) -> dict[str, list[str]]:
    """List the units that add products of a format.

    Returns:
        dict: the first of the units that add alike -> all of them.
    """
    fmt, by_rule = Format.of(fmt), {}
    for core in UNITS:
        if core.inputs == fmt:
            rule = core.block, core.F, core.result, core.to_nearest
            by_rule.setdefault(rule, []).append(core.unit)
    return {units[0]: units for units in by_rule.values()}


def sums(
    fmt: Format | str, distribution: str, n: int, seed: int, *, levels: Iterable[str] = tuple(LEVELS), rows: int = 4
) -> list[dict]:
    """A cell: measure one kernel with the adder of each architecture, on one problem of n keys.

    The kernel is FlashAttention-2's, in E4M3 FlashAttention-3's, whatever the architecture; O is read in FP32 before
    it is stored. Errors are those to the exact result from inputs in fmt.

    Args:
        fmt: FP16, BF16 or E4M3. distribution, seed: as of `inputs.draw`. n: keys. rows: queries.
        levels: keys of LEVELS, for E4M3; 16-bit formats have "one_level" only.

    Returns:
        rows: unit (a key of `adders`, or EXACT_SUMS), level (of LEVELS), relative (root mean square of the error over
        that of the result), bias (mean error away from zero, over the mean |result|); lean: the same of the difference
        to EXACT_SUMS; bits: share of stored outputs that differ from those of EXACT_SUMS; times: their root mean square
        error over that of EXACT_SUMS.

    Raises:
        ValueError: there is no such level.
    """
    fmt = Format.of(fmt)
    problem = Problem.drawn(distribution, seed, rows, n, inputs=fmt)
    golden, variants = problem.golden, [lookup("level", level, LEVELS) for level in levels]
    model = (fa3_cuda if fmt == E4M3 else fa2_cuda)(fmt, head_dim=64)
    size, stored_in = golden.abs().mean().item(), model["precision"].output

    def answer(products: Dot, level: Variant) -> torch.Tensor:
        precision = replace(model["precision"], products=products, output=FP32)
        return problem.tiled(model["tiling"], **level.of(precision, model["algorithm"]))

    exact = answer(EXACT, LEVELS["one_level"])
    stored_exact = round_to(exact, stored_in)
    base, results = problem.deviation(stored_exact, stored_in).rmse, []
    for unit in (EXACT_SUMS, *adders(fmt)):
        for level in variants if unit != EXACT_SUMS and fmt == E4M3 else [LEVELS["one_level"]]:
            o = exact if unit == EXACT_SUMS else answer(TensorCore.of(unit, fmt), level)
            stored = round_to(o, stored_in)
            row = dict(unit=unit, level=level.key, relative=problem.deviation(o, FP32).relative)
            row["bias"], row["lean"] = (outwards(o, other) / size for other in (golden, exact))
            row["bits"] = (stored != stored_exact).double().mean().item()
            results.append(row | dict(times=over_baseline(problem.deviation(stored, stored_in).rmse, base)))
    return results


def outwards(o: torch.Tensor, golden: torch.Tensor) -> float:
    """Compute the mean distance of o from golden, of one shape, away from zero."""
    return ((o - golden) * golden.sign()).mean().item()


@dataclass(frozen=True)
class Choice(Variant):
    """One choice that real kernels make.

    Attributes:
        unit: the unit of `tensor_cores.UNITS` whose sums the kernel has; "" has exact ones.
    """

    unit: str = ""


CHOICES = by_key((
    Choice("reversed", "last tile of keys first", algorithm=dict(reverse=True)),
    Choice("reciprocal", "O times 1 / l", algorithm=dict(reciprocal=True)),
    Choice("folded", "scale in exp2's multiply-add, O times 1 / l", algorithm=dict(scale_in_exponent=True)),
    Choice("chained", "O chained through P V, exact sums", algorithm=dict(accumulate_in_mma=True)),
    Choice("truncated", "sums of an H100", unit="H100"),
    Choice("both", "sums of an H100, O chained", algorithm=dict(accumulate_in_mma=True), unit="H100"),
    Choice("splits_8", "8 splits, merged", algorithm=dict(splits=8)),
    Choice("exp_degree_3", "2^x of degree 3 for all keys", algorithm=dict(exp=polynomial_exp(3))),
    Choice("lazy", "rescale above 2^8 only", algorithm=dict(name="fa4")),
))  # fmt: skip


def choices(fmt: Format | str, distribution: str, seed: int, *, n: int = 2048, rows: int = 128) -> list[dict]:
    """A cell: compare a kernel with each of CHOICES and without: FA2, tiles of 128 keys, exact sums, O + P V, O / l.

    Args:
        fmt: FP16 or BF16. distribution, seed: as of `inputs.draw`. n: keys. rows: queries.

    Returns:
        rows: choice; bits (share of stored outputs that change), times_rmse, times_max (errors over those without it),
        bias (of the stored output: mean error away from zero, over the mean |result|).
    """
    fmt = Format.of(fmt)
    problem, plain = Problem.drawn(distribution, seed, rows, n, inputs=fmt), Precision.kernel(fmt)
    without = problem.tiled(Tiling(128, 128), plain)
    base, results = problem.deviation(without, fmt), []
    for key, choice in CHOICES.items():
        summed = replace(plain, products=TensorCore.of(choice.unit, fmt)) if choice.unit else plain
        o = problem.tiled(Tiling(128, 128), **choice.of(summed))
        error, bits = problem.deviation(o, fmt), (o != without).double().mean().item()
        times = dict(times_rmse=over_baseline(error.rmse, base.rmse), times_max=over_baseline(error.max, base.max))
        bias = outwards(o, problem.golden) / problem.golden.abs().mean().item()
        results.append(dict(choice=key, bits=bits) | times | dict(bias=bias))
    return results


def effects(table: pd.DataFrame) -> pd.DataFrame:
    """Summarise what each choice changes, by format.

    Args:
        table: of `choices`, with fmt, distribution and seed.

    Returns:
        rows: fmt, choice; the least and the largest share of changed bits (bits_min, bits_max) and rms error over that
        without it (times_min, times_max); effect: "error" where on one kind of inputs the mean change of the error is
        at least MATTERS, and its 95 % interval over seeds (Student's) leaves out 0; else "bits" where a stored output
        changes; else "neither".
    """
    results = []
    for (fmt, choice), rows in table.groupby(["fmt", "choice"], sort=False):
        change = rows.assign(by=rows.times_rmse - 1).groupby("distribution").by
        size, half = change.mean().abs(), change.sem() * special.stdtrit(change.count() - 1, 0.975)
        matters = ((size > half) & (size >= MATTERS)).any()
        effect = "error" if matters else "bits" if rows.bits.max() else "neither"
        bits, times = rows.bits, rows.times_rmse
        spread = dict(bits_min=bits.min(), bits_max=bits.max(), times_min=times.min(), times_max=times.max())
        results.append(dict(fmt=fmt, choice=choice) | spread | dict(effect=effect))
    return pd.DataFrame(results)
