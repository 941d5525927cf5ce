"""Why Flash's published error is ten times Baseline's: kernels with one step changed, with fewer bits in their sums,
and compared with other references."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from fa_lib import kernels
from fa_lib.execution.lookup import lookup
from fa_lib.experiments.law import carried_in, outputs
from fa_lib.experiments.problem import Problem
from fa_lib.kernels.compiled import flash
from fa_lib.kernels.eager import unfused
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import BF16, FP16, FP32, FP64
from fa_lib.numerics.metrics import deviation

_SHIPPED = replace(Precision.kernel(BF16), output=FP32)  # storing in BF16 would hide what the other steps do
STARTS = {  # of the kernels of which a step is changed: key -> label, Precision, the format that the step takes
    "shipped": ("as shipped, output in FP32; this step in BF16", _SHIPPED, BF16),
    "all_bf16": ("all in BF16; this step in FP32", Precision.uniform(BF16), FP32),
}

STEPS = {  # "nothing", or a step of a Precision -> label
    "nothing": "nothing changed",
    "inputs": "Q, K, V",
    "scores": "scores S",
    "exponent": "S − m and exp",
    "probs": "P",
    "maximum": "row maximum m",
    "factors": "factors exp(m − m')",
    "row_sum": "row sum l",
    "accumulator": "accumulator O",
    "output": "output",
}

KERNELS = {"flash_fp16": "Flash, FP16", "baseline_fp16": "Baseline, FP16"}  # of `references`: key -> label

REFERENCES = {  # what people compare a kernel with: key -> label
    "baseline_fp16": "Baseline, FP16",
    "baseline_fp32": "Baseline, FP32",
    "golden_rounded": "golden, inputs rounded",
    "golden_exact": "golden, exact inputs",
}


def ladder(
    distribution: str,
    seed: int,
    n: int = 2048,
    *,
    starts: Sequence[str] = tuple(STARTS),
    algorithms: Sequence[str] = ("fa1", "fa2"),
    steps: Sequence[str] = tuple(STEPS),
    head_dim: int = 64,
    block_kv: int = 64,
) -> list[dict]:
    """A cell: measure kernels with one step in another format, on one problem.

    Args:
        distribution, seed: as of `inputs.draw`. n: queries and keys. block_kv: keys of a tile.
        starts: keys of STARTS. steps: keys of STEPS. algorithms: as of `tiled`.

    Returns:
        rows: start, algorithm, step, and `Problem.errors`. The golden value takes the inputs as the kernel does.
    """
    for step in steps:
        lookup("step", step, STEPS)
    problem, tiling, rows = Problem.drawn(distribution, seed, n, n, head_dim=head_dim), Tiling(64, block_kv), []
    for start, algorithm in product(starts, algorithms):
        _, precision, fmt = lookup("start", start, STARTS)
        changed = [precision if step == "nothing" else replace(precision, **{step: fmt}) for step in steps]
        for step, own, o in zip(steps, changed, outputs(problem, tiling, changed, algorithm)):
            rows.append(dict(start=start, algorithm=algorithm, step=step) | problem.errors(o, own.inputs))
    return rows


def carried(
    distribution: str,
    seed: int,
    tiles: int,
    *,
    bits: Sequence[int],
    n_q: int = 128,
    block_kv: int = 64,
    head_dim: int = 64,
) -> list[dict]:
    """A cell: measure shipped BF16 kernels whose accumulator and row sum have fewer bits.

    Args:
        distribution, seed: as of `inputs.draw`. tiles: of block_kv keys each. n_q: queries.
        bits: significant bits of accumulator and row sum, one kernel for each.

    Returns:
        rows: bits, and `Problem.errors`.
    """
    problem = Problem.drawn(distribution, seed, n_q, tiles * block_kv, head_dim=head_dim)
    sums = [dict.fromkeys(("accumulator", "row_sum"), carried_in(count)) for count in bits]
    answers = outputs(problem, Tiling(64, block_kv), [replace(Precision.kernel(BF16), **each) for each in sums])
    return [dict(bits=count) | problem.errors(o) for count, o in zip(bits, answers)]


def references(distribution: str, seed: int, n: int = 2048, head_dim: int = 64, heads: int = 4) -> list[dict]:
    """A cell: compare a real kernel, torch's flash in FP16, and FP16's Baseline with every one of REFERENCES.

    Args:
        distribution, seed: as of `inputs.draw`. n: queries and keys.

    Returns:
        rows: kernel (of KERNELS), against (of REFERENCES); max, rmse and bias of the Deviation.
    """
    exact = draw(distribution, seed, (1, heads, n, head_dim))
    half = [FP16(x).half() for x in exact]
    outs = dict(flash_fp16=flash(*half), baseline_fp16=unfused(*half))
    against = dict(
        baseline_fp16=outs["baseline_fp16"],
        baseline_fp32=unfused(*(x.float() for x in half)),
        golden_rounded=kernels.golden(*half, inputs=FP16),
        golden_exact=kernels.golden(*exact, inputs=FP64),
    )
    rows = []
    for kernel, out in outs.items():
        for other, value in against.items():
            d = deviation(out, value.double(), FP16)
            rows.append(dict(kernel=kernel, against=other, max=d.max, rmse=d.rmse, bias=d.bias))
    return rows
