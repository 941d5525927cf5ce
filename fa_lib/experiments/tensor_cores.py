"""How a tensor core's sums change attention, over architectures, formats and lengths."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import torch

from fa_lib.experiments.problem import Problem
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.shipped import fa2_cuda
from fa_lib.kernels.shipped_newer import fa3_cuda
from fa_lib.kernels.variants import Variant, by_key
from fa_lib.numerics.dots import EXACT, Dot
from fa_lib.numerics.formats import E4M3, FP32, Format, round_to
from fa_lib.numerics.metrics import deviation, over_baseline
from fa_lib.numerics.tensor_cores import UNITS, TensorCore

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


def sums(fmt: Format | str, distribution: str, n: int, *, seeds: Sequence[int], rows: int = 4) -> list[dict]:
    """A cell: measure one kernel with the adder of each architecture, on a problem of n keys for each seed.

    The kernel is FlashAttention-2's, in E4M3 FlashAttention-3's, whatever the architecture; O is read in FP32 before
    it is stored. Errors are those to the exact result from inputs in fmt.

    Args:
        fmt: FP16, BF16 or E4M3. distribution, seeds: as of `inputs.draw`. n: keys. rows: queries.

    Returns:
        rows: seed, unit (a key of `adders`, or EXACT_SUMS), level (of LEVELS; "one_level" for 16-bit formats), relative
        (root mean square of the error over that of the result), bias (mean error away from zero, over the mean
        |result|); lean: the same of the difference to EXACT_SUMS; bits: share of stored outputs that differ from those
        of EXACT_SUMS; times: their root mean square error over that of EXACT_SUMS.
    """
    fmt, one_level = Format.of(fmt), LEVELS["one_level"]
    inputs = zip(*(draw(distribution, seed, (1, 1, rows, 64), (1, 1, n, 64)) for seed in seeds))  # head_dim 64
    problem = Problem(*map(torch.cat, inputs), inputs=fmt)  # a seed is an entry of the batch
    golden, model = problem.golden, (fa3_cuda if fmt == E4M3 else fa2_cuda)(fmt, head_dim=64)

    def answer(products: Dot, level: Variant) -> torch.Tensor:
        precision = replace(model["precision"], products=products, output=FP32)
        return problem.tiled(model["tiling"], **level.of(precision, model["algorithm"]))

    answers, stored_in = [(EXACT_SUMS, one_level, answer(EXACT, one_level))], model["precision"].output
    for unit, level in product(adders(fmt), LEVELS.values() if fmt == E4M3 else [one_level]):
        answers.append((unit, level, answer(TensorCore.of(unit, fmt), level)))
    results = []
    for i, seed in enumerate(seeds):
        exact, size = answers[0][2][i], golden[i].abs().mean().item()
        stored_exact = round_to(exact, stored_in)
        base = deviation(stored_exact, golden[i], stored_in).rmse
        for unit, level, all_seeds in answers:
            o, stored = all_seeds[i], round_to(all_seeds[i], stored_in)
            row = dict(seed=seed, unit=unit, level=level.key, relative=deviation(o, golden[i], FP32).relative)
            row["bias"], row["lean"] = (outwards(o, other) / size for other in (golden[i], exact))
            row["bits"] = (stored != stored_exact).double().mean().item()
            results.append(row | dict(times=over_baseline(deviation(stored, golden[i], stored_in).rmse, base)))
    return results


def outwards(o: torch.Tensor, golden: torch.Tensor) -> float:
    """Compute the mean distance of o from golden, of one shape, away from zero."""
    return ((o - golden) * golden.sign()).mean().item()
