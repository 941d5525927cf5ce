"""How newer kernels change the error: FlashAttention-3 and -4, split keys, FP8."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from torch import Tensor

from fa_lib import kernels
from fa_lib.execution.lookup import lookup
from fa_lib.experiments.law import outputs
from fa_lib.experiments.problem import Problem
from fa_lib.kernels.algorithm import Algorithm
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.polynomials import polynomial_exp
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.quantization_schemes import Scheme, rotated
from fa_lib.kernels.tiling import Tiling
from fa_lib.kernels.variants import Variant, by_key
from fa_lib.numerics.formats import BF16, E4M3, FP16, FP64, Format
from fa_lib.numerics.metrics import deviation


@dataclass(frozen=True)
class Quantized(Variant):
    """A kernel that takes Q, K and V in FP8, scaled, and rounds P to FP8.

    Attributes:
        fmt: the format of Q, K, V.
        per: which values share a scale, as of `quantization_schemes.Scheme`.
        rotate: whether Q and K are rotated first (`quantization_schemes.rotated`).
    """

    fmt: Format = E4M3
    per: str = "tensor"
    rotate: bool = False

    def loaded(self, q: Tensor, k: Tensor, v: Tensor, block: int) -> list[Tensor]:
        """Quantise Q, K and V as the kernel loads them.

        Args:
            q: (batch, heads, n_q, head_dim). k, v: (batch, heads, n_kv, head_dim). block: rows of a block.

        Returns:
            q, k, v: float64, of the same shapes.
        """
        q, k = rotated(q, k, seed=0) if self.rotate else (q, k)
        scheme = Scheme(self.fmt, self.per, block)
        return [scheme.apply(x) for x in (q, k, v)]


_E4M3 = dict(inputs=FP64, probs=E4M3)  # the inputs are rounded when they are loaded

OPTIONS = by_key((  # changes to FlashAttention-2 as shipped
    Variant("fa2", "FA2, no option"),
    Variant("fa1", "FA1, no option", algorithm=dict(name="fa1")),
    Variant("reversed", "reversed keys", algorithm=dict(reverse=True)),
    Variant("splits_8", "8 splits, merged", algorithm=dict(splits=8)),
    Variant("fa4", "FA4, rescale above 2^8", algorithm=dict(name="fa4")),
    Variant("fa4_offset_4", "FA4, P raised by 2^4", algorithm=dict(name="fa4", p_exponent_offset=4)),
    Variant("exp_degree_3", "2^x of degree 3", algorithm=dict(exp=polynomial_exp(3))),
    Variant("exp_degree_5", "2^x of degree 5", algorithm=dict(exp=polynomial_exp(5))),
))  # fmt: skip

FP8 = by_key((
    Quantized("fp8_tensor", "FP8, one scale", _E4M3),
    Quantized("fp8_head", "FP8, a scale per head", _E4M3, per="head"),
    Quantized("fp8_block", "FP8, a scale per block", _E4M3, per="block"),
    Quantized("fp8_block_rotated", "FP8, per block, rotated", _E4M3, per="block", rotate=True),
))  # fmt: skip

CARRIED = {"FP32": {}, "BF16": dict(accumulator=BF16, row_sum=BF16)}  # format of O and l -> steps of a Precision


def options(
    distribution: str,
    seed: int,
    n: int = 2048,
    *,
    carries: Sequence[str] = tuple(CARRIED),
    names: Sequence[str] = (*OPTIONS, *FP8),
    head_dim: int = 64,
    block_kv: int = 64,
    heads: int = 2,
) -> list[dict]:
    """A cell: measure how options of newer kernels change the error, on one problem.

    Args:
        distribution, seed: as of `inputs.draw`. n: queries and keys. block_kv: keys of a tile.
        carries: keys of CARRIED, one kernel for each.
        names: keys of OPTIONS or of FP8. Kernels in FP8, and their Baseline, are compared with the golden value of
            exact inputs.

    Returns:
        rows: carry, name, and `Problem.errors`.

    Raises:
        ValueError: there is no such name or carry.
    """
    chosen = [lookup("name", name, OPTIONS | FP8) for name in names]
    size = dict(heads=heads, head_dim=head_dim)
    problems, errors = {fmt: Problem.drawn(distribution, seed, n, n, inputs=fmt, **size) for fmt in (BF16, FP64)}, {}
    bases = [replace(Precision.kernel(BF16), **lookup("carry", carry, CARRIED)) for carry in carries]
    for variant in chosen:
        problem = loaded = problems[FP64 if variant.key in FP8 else BF16]
        if variant.key in FP8:
            loaded = Problem(*variant.loaded(problem.q, problem.k, problem.v, block_kv))
        precisions = [replace(base, **variant.steps) for base in bases]
        algorithm = replace(Algorithm("fa2"), **variant.algorithm)
        for carry, o in zip(carries, outputs(loaded, Tiling(64, block_kv), precisions, algorithm)):
            errors[carry, variant.key] = problem.errors(o)
    return [dict(carry=carry, name=each.key) | errors[carry, each.key] for carry, each in product(carries, chosen)]


def outliers(n: int, head_dim: int, seed: int, heads: int = 2, rows: int = 512) -> list[dict]:
    """A cell: repeat FlashAttention-3's comparison in FP16 (arXiv 2407.08608, section 4.3).

    Args:
        n: keys. rows: queries of each head.

    Returns:
        rows: golden_inputs, "rounded" or "exact", as of `microbenchmark.BenchmarkSettings`; baseline, scaled_first and
        flash, root mean square errors (scaled_first: of a Baseline that multiplies K by the scale, in FP16, before the
        product, as flash-attention's own tests do; flash: of Flash as shipped); times and times_scaled_first, the first
        two over flash's.
    """
    problem = Problem.drawn("outliers", seed, rows, n, heads=heads, head_dim=head_dim)
    precision, scaled = Precision.materialized(FP16), FP16(FP16(problem.k) * head_dim**-0.5)
    outs = dict(
        baseline=problem.reference(precision),
        scaled_first=kernels.reference(problem.q, scaled, problem.v, precision=precision, scale=1.0),
        flash=problem.tiled(Tiling(128, 128), Precision.kernel(FP16)),
    )
    results = []
    for golden_inputs, fmt in (("rounded", FP16), ("exact", FP64)):
        rmse = {name: deviation(out, problem.golden_of(fmt), FP16).rmse for name, out in outs.items()}
        times = dict(times=rmse["baseline"] / rmse["flash"], times_scaled_first=rmse["scaled_first"] / rmse["flash"])
        results.append(dict(golden_inputs=golden_inputs) | rmse | times)
    return results


FP8_KERNELS = by_key((  # of FlashAttention-3's table in FP8
    Quantized("baseline", "Baseline, one scale", _E4M3),
    Quantized("flash", "FA3: block scales, rotated", _E4M3, per="block", rotate=True),
    Quantized("no_block", "FA3 without block scales", _E4M3, rotate=True),
    Quantized("no_rotation", "FA3 without rotation", _E4M3, per="block"),
))  # fmt: skip


def fp8_table(n: int, seed: int, *, head_dim: int = 128, heads: int = 2, rows: int = 256) -> dict[str, float]:
    """A cell: repeat FlashAttention-3's comparison in FP8 (arXiv 2407.08608, section 4.3).

    Args:
        n: keys. rows: queries of each head. (The paper does not state its shape.)

    Returns:
        dict: a key of FP8_KERNELS -> root mean square of the error to the golden value of exact inputs.
    """
    problem = Problem.drawn("outliers", seed, rows, n, heads=heads, head_dim=head_dim, inputs=FP64)
    precision, rmse = replace(Precision.kernel(BF16), **_E4M3), {}
    for key, variant in FP8_KERNELS.items():
        loaded = Problem(*variant.loaded(problem.q, problem.k, problem.v, 128))
        o = loaded.reference(precision) if key == "baseline" else loaded.tiled(Tiling(128, 128), precision)
        rmse[key] = problem.deviation(o).rmse
    return rmse


def fp8_offset(offset: int, spread: float, seed: int, *, n: int = 8192, rows: int = 64, head_dim: int = 128) -> dict:
    """A cell: measure FlashAttention-4 with P in E4M3, P raised by 2**offset, which rescales where a maximum rises by
    more than 2**4.

    P may then be as large as 2**(4 + offset), and E4M3 ends at 448 < 2**9: what is larger is cut to 448
    (flash-attention's pull request 2694, whose settings these are).

    Args:
        offset: 8 before that change, 4 after. spread: standard deviation of the scores. n: keys. rows: queries.

    Returns:
        dict: relative, the root mean square of O - golden over that of golden.
    """
    q, k, v = draw("normal", seed, (1, 1, rows, head_dim), (1, 1, n, head_dim))
    problem, algorithm = Problem(q * spread, k, v), Algorithm("fa4", threshold=4, p_exponent_offset=offset)
    o = problem.tiled(Tiling(128, 128), replace(Precision.kernel(BF16), **_E4M3), algorithm)
    return dict(relative=problem.deviation(o).relative)
