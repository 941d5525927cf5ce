"""Why ten times: one step of a kernel changed at a time, its keys reordered, the bits it carries, what it is compared
with. Each function is a cell of a sweep: one draw of Q, K, V, every deviation against the golden value."""

from dataclasses import replace
from functools import lru_cache

import torch

from fa_lib import kernels
from fa_lib.formats import BF16, E4M3, FP16, FP32, FP64, Format
from fa_lib.inputs import draw, quantized, rotated
from fa_lib.kernels.models import polynomial_exp
from fa_lib.metrics import deviation
from fa_lib.precision import Precision
from fa_lib.tiling import Tiling

STEPS = ("nothing", "inputs", "scores", "exponent", "probs", "stats", "accumulator", "output")


def ladder(start, step, algorithm, distribution, seed, n=2048, head_dim=64, block_kv=64):
    """A kernel with one step in another format.

    Args:
        start: "shipped": `Precision.kernel(BF16)`, the step lowered to BF16; "all BF16": `Precision.uniform(BF16)`, the
            step raised to FP32.
        step: of STEPS.

    Returns:
        dict: max, rmse, bias (of the signed difference, in ulp of BF16 at 1) and, over Baseline's, times_max,
        times_rmse. The golden value takes the inputs as the kernel does.
    """
    base, other = dict(shipped=(Precision.kernel(BF16), BF16), **{"all BF16": (Precision.uniform(BF16), FP32)})[start]
    precision = base if step == "nothing" else replace(base, **{step: other})
    q, k, v, golden, baseline = _problem(distribution, seed, (1, 1, n, head_dim), n, precision.inputs, BF16)
    o = kernels.tiled(q, k, v, tiling=Tiling(64, block_kv), precision=precision, algorithm=algorithm)
    return _over_baseline(o, golden, baseline)


def rescaling(order, tiles, distribution, seed, n=2048, rows=64, head_dim=64, algorithm="fa2"):
    """Rows whose largest keys are put where they make the running maximum rise at every tile, never, or as drawn.

    The `tiles` largest scores of each row stand at the heads of the tiles: ascending ("every tile"), so that each tile
    rescales; descending ("never"), so that none does; the rest as drawn. "as drawn" leaves all keys where they were.
    Every step is in BF16.

    Returns:
        dict: rescales (that raised a row's maximum, mean), max, rmse.
    """
    q, k, v = (BF16(x) for x in draw(distribution, seed, (1, rows, head_dim), (1, n, head_dim)))
    scores = (q @ k.mT)[0]  # (rows, n)
    at = torch.arange(n).repeat(rows, 1)
    if order != "as drawn":
        top = scores.topk(tiles, dim=1).indices  # largest first
        rest = torch.ones(rows, n, dtype=torch.bool).scatter_(1, top, False)
        heads = top.flip(1) if order == "every tile" else top
        tails = at[rest].reshape(rows, tiles, n // tiles - 1)
        at = torch.cat([heads[..., None], tails], -1).reshape(rows, n)
    q, k, v = q[0][:, None], k[0][at], v[0][at]  # (rows, 1, head_dim), (rows, n, head_dim): an order for each row
    precision, tiling = Precision.uniform(BF16), Tiling(1, n // tiles)
    golden = kernels.golden(q, k, v, inputs=FP64)
    d = deviation(kernels.tiled(q, k, v, tiling=tiling, precision=precision, algorithm=algorithm), golden, BF16)
    rescales = kernels.rescales(q, k, tiling=tiling, precision=precision).double().mean().item()
    return dict(rescales=rescales, max=d.max, rmse=d.rmse)


def carried(bits, tiles, distribution, seed, n_q=128, block_kv=64, head_dim=64):
    """A shipped BF16 kernel whose accumulator and row statistics have `bits` significant bits, over `tiles` tiles.

    Returns:
        dict: times_max, times_rmse over Baseline's, max, rmse, bias.
    """
    fmt = FP32 if bits == 24 else Format.of((8, bits))
    precision = replace(Precision.kernel(BF16), accumulator=fmt, stats=fmt)
    q, k, v, golden, baseline = _problem(distribution, seed, (1, 1, n_q, head_dim), tiles * block_kv, BF16, BF16)
    return _over_baseline(kernels.tiled(q, k, v, tiling=Tiling(64, block_kv), precision=precision), golden, baseline)


def verdicts(distribution, seed, n=2048, head_dim=64, heads=4):
    """One real kernel, torch's flash in FP16, and FP16's Baseline, held against what people compare with.

    Returns:
        rows: kernel, against, max, rmse, bias.
    """
    exact = draw(distribution, seed, (1, heads, n, head_dim))
    half = [FP16(x).half() for x in exact]
    outs = {"Flash, FP16": kernels.flash(*half), "Baseline, FP16": kernels.unfused(*half)}
    against = {
        "Baseline, FP16": outs["Baseline, FP16"],
        "Baseline, FP32": kernels.unfused(*(x.float() for x in half)),
        "golden, inputs rounded": kernels.golden(*half, inputs=FP16),
        "golden, exact inputs": kernels.golden(*exact, inputs=FP64),
    }
    rows = []
    for name, out in outs.items():
        for other, value in against.items():
            d = deviation(out, value.double(), FP16)
            rows.append(dict(kernel=name, against=other, max=d.max, rmse=d.rmse, bias=d.bias))
    return rows


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


@lru_cache(maxsize=1)  # of cells that differ in their kernel alone
def _problem(distribution, seed, shape, n_kv, inputs, baseline_inputs):
    """Q of that shape, K, V, the golden value, and Baseline's deviation in BF16; each golden value takes inputs rounded
    to the format given for it."""
    q, k, v = draw(distribution, seed, shape, (*shape[:2], n_kv, shape[3]))
    baseline = kernels.reference(q, k, v, precision=Precision.materialized(BF16))
    own = kernels.golden(q, k, v, inputs=baseline_inputs)
    golden = own if inputs == baseline_inputs else kernels.golden(q, k, v, inputs=inputs)
    return q, k, v, golden, deviation(baseline, own, BF16)


def _over_baseline(o, golden, baseline):
    d = deviation(o, golden, BF16)
    ulp = BF16.unit_roundoff * 2
    return dict(
        max=d.max, rmse=d.rmse, bias=d.bias / ulp, bias_se=d.bias_se / ulp,
        times_max=d.max / baseline.max, times_rmse=d.rmse / baseline.rmse,
    )  # fmt: skip
