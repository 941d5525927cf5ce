"""Why ten times: one step of a kernel changed at a time, the bits it carries, what it is compared with."""

from dataclasses import replace
from functools import lru_cache

from fa_lib import kernels
from fa_lib.formats import BF16, FP16, FP32, FP64, Format
from fa_lib.inputs import draw
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
