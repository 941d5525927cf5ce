"""What newer kernels change: FlashAttention-3 and -4, split keys, FP8."""

from dataclasses import replace

from fa_lib import kernels
from fa_lib.experiments.ablation import _over_baseline, _problem
from fa_lib.formats import BF16, E4M3, FP16, FP64
from fa_lib.inputs import draw
from fa_lib.kernels.exponentials import polynomial_exp
from fa_lib.kernels.scaling import quantized, rotated
from fa_lib.metrics import deviation
from fa_lib.precision import Precision
from fa_lib.tiling import Tiling


def outliers(n, head_dim, golden_inputs, seed, heads=2, rows=512):
    """FlashAttention-3's comparison in FP16 (arXiv 2407.08608, section 4.3): RMSE of Baseline and of Flash as shipped.

    Args:
        n: keys. rows: queries of each head. golden_inputs: "rounded" or "exact", as for `microbenchmark.compare`.

    Returns:
        dict: baseline; scaled_first, Baseline that multiplies K by the scale, in FP16, before the product, as
        flash-attention's own tests do; flash; times and times_scaled_first, of flash's.
    """
    q, k, v = draw("outliers", seed, (1, heads, rows, head_dim), (1, heads, n, head_dim))
    golden = kernels.golden(q, k, v, inputs=FP16 if golden_inputs == "rounded" else FP64)
    precision, scaled = Precision.materialized(FP16), FP16(FP16(k) * head_dim**-0.5)
    outs = dict(
        baseline=kernels.reference(q, k, v, precision=precision),
        scaled_first=kernels.reference(q, scaled, v, precision=precision, scale=1.0),
        flash=kernels.tiled(q, k, v, tiling=Tiling(128, 128), precision=Precision.kernel(FP16)),
    )
    rmse = {name: deviation(out, golden, FP16).rmse for name, out in outs.items()}
    return rmse | dict(times=rmse["baseline"] / rmse["flash"], times_scaled_first=rmse["scaled_first"] / rmse["flash"])


OPTIONS = {  # name -> arguments of `tiled` beside FlashAttention-2 as shipped
    "FA2 as shipped": {},
    "FA1 as shipped": dict(algorithm="fa1"),
    "reversed keys": dict(reverse=True),
    "8 splits, merged": dict(splits=8),
    "FA4, rescale above 2^8": dict(algorithm="fa4"),
    "FA4, P raised by 2^4": dict(algorithm="fa4", offset=4),
    "2^x of degree 3": dict(exp=polynomial_exp(3)),
    "2^x of degree 5": dict(exp=polynomial_exp(5)),
}


FP8 = ("FP8, one scale", "FP8, a scale per head", "FP8, a scale per block", "FP8, per block, rotated")


def option(name, carry, distribution, seed, n=2048, head_dim=64, block_kv=64, heads=2):
    """What an option of newer kernels costs or buys.

    Args:
        name: of OPTIONS, or of FP8 (Q, K, V and P in E4M3), which is held against the golden value of exact inputs, and
            so is its Baseline.
        carry: "FP32", as shipped, or "BF16": accumulator and row statistics.

    Returns:
        dict as `ladder`, bias_se with it.
    """
    precision = Precision.kernel(BF16)
    if carry == "BF16":
        precision = replace(precision, accumulator=BF16, stats=BF16)
    inputs = FP64 if name in FP8 else BF16
    q, k, v, golden, baseline = _problem(distribution, seed, (1, heads, n, head_dim), n, inputs, inputs)
    given = dict(OPTIONS.get(name, {}))
    if name in FP8:
        per = "tensor" if "one" in name else "head" if "head" in name else "block"
        if "rotated" in name:
            q, k = rotated(q, k, seed=0)
        q, k, v = (quantized(x, E4M3, per, block_kv) for x in (q, k, v))
        precision = replace(precision, inputs=FP64, probs=E4M3)
    o = kernels.tiled(q, k, v, tiling=Tiling(64, block_kv), precision=precision, **given)
    return _over_baseline(o, golden, baseline)
