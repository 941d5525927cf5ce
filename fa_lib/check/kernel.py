"""Somebody's kernel f(q, k, v, causal=..., scale=...) examined from outside: what it can do, how far it is from the
golden value, what it carries from tile to tile. It is called, never read; whatever it does becomes a row of a table."""

import hashlib
import math
from dataclasses import dataclass

import pandas as pd
import torch

from fa_lib import kernels
from fa_lib.check.attempt import KernelError, attempt, guarded
from fa_lib.check.contract import contract, formats
from fa_lib.execution.sweep import sweep
from fa_lib.experiments import biased_rounding
from fa_lib.experiments.rule import CALLS, rule, yardstick
from fa_lib.experiments.variant import known
from fa_lib.experiments.worst import worst_inputs
from fa_lib.formats import FP64, Format
from fa_lib.inputs import DISTRIBUTIONS, draw
from fa_lib.metrics import deviation, over_baseline

ORDINARY = ("uniform", "normal")
BIASED = "two maxima"  # of `drawn`, V > 0: the inputs that make a BF16 accumulator drift
WORST = "worst found"  # of `drawn`: the worst that a search found for a kernel that carries BF16
TROUBLE = (*(name for name in DISTRIBUTIONS if name not in ORDINARY), BIASED, WORST)
BESIDE = ("as_shipped", "every_step")  # emulated kernels beside the growth of the error
SUMS = ("accumulator", "row_sum")  # what `carry` asks for


@dataclass(frozen=True)
class Depth:
    """How thoroughly a kernel is examined.

    Attributes:
        lengths: N, for the growth of the error; seeds: of each.
        shapes: of the rule over shapes and masks, keys of `rule.CALLS`; head_dims: of each, beside the kernel's own.
        troubled_n: N of the inputs that make trouble; bias_seeds: of each.
        runs: of one call, for determinism.

    Raises:
        ValueError: a shape is not known.
    """

    lengths: tuple[int, ...]
    seeds: int
    shapes: tuple[str, ...]
    head_dims: tuple[int, ...]
    troubled_n: int
    bias_seeds: int
    runs: int

    def __post_init__(self):
        for shape in self.shapes:
            known("shape", shape, CALLS)


QUICK = Depth(  # seconds
    lengths=(128, 1024), seeds=2, shapes=("97",), head_dims=(32,), troubled_n=128, bias_seeds=3, runs=3,
)  # fmt: skip
REPORT = Depth(  # about a minute for a kernel of torch's on two cores
    lengths=(128, 512, 2048, 4096), seeds=5,
    shapes=("97", "113 x 203", "256 x 97", "causal 203", "causal 113 x 203", "GQA 384", "causal MQA 384", "window 512",
            "causal window 512", "1024"),
    head_dims=(64, 128), troubled_n=512, bias_seeds=12, runs=100,
)  # fmt: skip
DEPTHS = {"quick": QUICK, "report": REPORT}


def examine(kernel: str, depth: Depth = QUICK, device: str = "cpu", cache: str = "") -> dict[str, pd.DataFrame]:
    """Everything that `judge_kernel` needs, in six tables.

    Args:
        kernel: a name for `kernels.get`.
        cache: as `sweep`.

    Returns:
        asked (`contract`), shapes (`ruled`), lengths (`measure`, with the emulated kernels BESIDE), inputs (`measure`),
        sums (`carry`), repeats (`repeats`). BF16 and FP16 are judged, else FP32; where the kernel has none of them, all
        but `asked` are empty.

    Raises:
        ValueError: there is no such kernel. An error of the kernel's is a row; any other error is ours, and is raised.
    """
    fn = kernels.plain(kernel)
    for head_dim in (64, 128, 32):  # the first it has
        asked = pd.DataFrame(contract(fn, head_dim, device))
        if can := formats(asked):
            break
    judged = [fmt for fmt in can if fmt in ("BF16", "FP16")] or [fmt for fmt in can if fmt == "FP32"]
    if not judged:
        return dict(asked=asked) | {name: pd.DataFrame() for name in ("shapes", "lengths", "inputs", "sums", "repeats")}

    here = dict(device=device, fmt=judged, head_dim=head_dim)
    own = dict(kernel=kernel) | here
    dims = sorted({head_dim, *depth.head_dims})
    carried = [fmt for fmt in judged if fmt in ("BF16", "FP16")] or ["BF16"]
    growth = dict(distribution=[*ORDINARY], n=[*depth.lengths], seed=range(depth.seeds))
    trouble = dict(distribution=[*TROUBLE], n=depth.troubled_n, seed=range(depth.bias_seeds))
    beside = [kernel, *(name for name in BESIDE if name != kernel)]

    def over(cell, grid, **fixed):
        return sweep(cell, grid, fixed=fixed, uses=[kernels.get(kernel)], cache=cache)

    return dict(
        asked=asked,
        shapes=over(ruled, own | dict(head_dim=dims, distribution="normal", seed=0, shape=[*depth.shapes])),
        lengths=over(measure, here | growth, names=beside),
        inputs=over(measure, here | trouble, names=[kernel]),
        sums=over(carry, own | dict(fmt=carried)),
        repeats=over(repeats, own | dict(fmt=judged[0], runs=depth.runs)),
    )


def ruled(shape: str, head_dim: int, distribution: str, fmt: str, seed: int, kernel: str, device: str = "cpu"):
    """A cell: `rule` of one kernel, whatever it does: rows of that, or one with what it did instead.

    Returns:
        rows: those of `rule`, and outcome and problem, as `attempt` has them.
    """
    fn = guarded(kernels.plain(kernel))
    for gradients in (True, False):
        try:
            rows = rule(shape, head_dim, distribution, fmt, seed, [fn], gradients, device)
            return [row | dict(kernel=kernel, outcome="yes", problem="") for row in rows]
        except KernelError as error:
            last = error
    return [dict(tensor="o", ratio=math.nan, passed=None, outcome=last.outcome, problem=str(last))]


def measure(names: list[str], fmt: str, distribution: str, n: int, seed: int, head_dim: int = 64, device: str = "cpu"):
    """A cell: the errors of kernels, and Baseline's, to the golden value from the same rounded inputs, N = n.

    Baseline is `rule.yardstick`.

    Args:
        distribution: as `drawn`.

    Returns:
        rows, one a kernel: kernel, max, rmse, times_max and times_rmse (over Baseline's), bias: mean signed difference
        to the golden value rounded to fmt, the best an output can be (some inputs make that rounding biased itself);
        outwards: the same, positive where it points away from zero (both in ulp at the golden value's root mean
        square); outcome and problem (of `attempt`). Where there is a problem the numbers are NaN.
    """
    fmt = Format.of(fmt)
    q, k, v = (fmt(x).to(device, fmt.dtype) for x in drawn(distribution, seed, n, head_dim))
    golden = kernels.golden(q, k, v, inputs=fmt)
    baseline, rows = deviation(yardstick(fmt)(q, k, v), golden, fmt), []
    for kernel in names:
        answer = attempt(kernels.plain(kernel), q, k, v)
        numbers = dict.fromkeys(("max", "rmse", "times_max", "times_rmse", "bias", "outwards"), math.nan)
        if answer.outcome == "yes":
            d = deviation(answer.o, golden, fmt)
            error = (answer.o.double() - fmt(golden)) / fmt.ulp(golden.square().mean().sqrt())
            times = dict(times_max=over_baseline(d.max, baseline.max), times_rmse=over_baseline(d.rmse, baseline.rmse))
            sided = dict(bias=error.mean().item(), outwards=(error * golden.sign()).mean().item())
            numbers = dict(max=d.max, rmse=d.rmse) | times | sided
        rows.append(dict(kernel=kernel) | numbers | dict(outcome=answer.outcome, problem=answer.problem))
    return rows


def drawn(distribution: str, seed: int, n: int, head_dim: int):
    """Q, K, V (1, 1, n, head_dim) of a name of `inputs.DISTRIBUTIONS`, or of BIASED or WORST."""
    if distribution == WORST:
        return worst_inputs(n, seed, head_dim)
    if distribution == BIASED:
        return biased_rounding.problem(2, "positive", seed, n=n, rows=n, head_dim=head_dim)[:3]
    return draw(distribution, seed, (1, 1, n, head_dim))


def carry(kernel: str, fmt: str, n: int = 4096, head_dim: int = 64, device: str = "cpu"):
    """A cell: sums that only a carry of more bits than `fmt` has can hold.

    One term is 1, the n - 1 others are 0.45 ulp of `fmt` at 1, divided by a number of keys. A kernel that keeps a sum
    in `fmt` and adds to it what a tile holds, loses every tile of up to that many keys: 0.45 n / keys ulp in all. One
    that keeps FP32 loses none, and is off by the rounding of its output, half an ulp. The fewest `keys` from which on
    all is lost are the tile's size.

    Two sums are asked for separately. Accumulator O: all P are equal, V is 1 and the small numbers. Row sum l: V is 1
    for one key and 0 for the others, whose P are the small numbers. The large term stands first or last, for kernels
    that begin at either end.

    Args:
        kernel: called in fmt, or in FP32 where it has no `fmt`: then FP32 tensors are carried in it or not.

    Returns:
        rows: what (of SUMS), keys, lost (largest error of the two, in ulp of fmt), all (what is lost if every tile is),
        outcome, problem.
    """
    fmt, fn = Format.of(fmt), kernels.plain(kernel)
    keys, rows = [2**i for i in range(int(math.log2(n)))], []
    for what in SUMS:
        q, k, v = _sum_of(what, fmt, keys, n, head_dim)
        golden = kernels.golden(q[:, :, :1], k, v[..., :1], inputs=FP64)  # rows of Q and columns of V are alike
        for dtype, n_q in ((fmt.dtype, 16), (fmt.dtype, n), (torch.float32, 16), (torch.float32, n)):
            answer = attempt(fn, *(x.to(device, dtype).contiguous() for x in (q[:, :, :n_q], k, v)))
            if answer.o is not None:
                break
        lost = [math.nan] * len(keys)
        if answer.o is not None:
            lost = ((answer.o.double().cpu() - golden).abs() / fmt.ulp(golden)).amax((0, 2, 3)).tolist()
        told = dict(outcome=answer.outcome, problem=answer.problem)
        rows += [dict(what=what, keys=b, lost=x, all=0.45 * n / b) | told for b, x in zip(keys, lost)]
    return rows


def _sum_of(what, fmt, keys, n, head_dim):
    """Q, K, V (large term first or last, levels, n, head_dim), rounded to fmt, whose outputs are `carry`'s sums."""
    ulp = 2 * fmt.unit_roundoff
    small = torch.tensor([0.45 * ulp / b for b in keys], dtype=torch.float64)[:, None, None]  # (levels, 1, 1)
    q, k, v = torch.zeros(3, 2, len(keys), n, 1, dtype=torch.float64)  # the first feature
    if what == "accumulator":
        v[:] = small
    else:
        q[:], k[:] = head_dim**0.5, small.log()
    for batch, large in enumerate((0, n - 1)):
        k[batch, :, large], v[batch, :, large] = 0, 1
    q, k = (torch.nn.functional.pad(fmt(x), (0, head_dim - 1)) for x in (q, k))  # of Q and K the others are 0
    return q, k, fmt(v).expand(-1, -1, -1, head_dim)


def repeats(kernel: str, fmt: str, runs: int, n: int = 256, head_dim: int = 64, device: str = "cpu"):
    """A cell: how many different outputs, and gradients, one call gives when it is made again and again.

    Returns:
        dict: runs, outputs, gradients (distinct; 1 is deterministic), None where the kernel gives none.
    """
    fmt, fn = Format.of(fmt), kernels.plain(kernel)
    tensors = [fmt(x).to(device, fmt.dtype) for x in draw("normal", 0, (1, 2, n, head_dim))]
    answers = [attempt(fn, *tensors).o for _ in range(runs)]
    outputs, gradients = {_digest(o) for o in answers if o is not None}, set()
    try:
        tensors = [x.requires_grad_() for x in tensors]
        for _ in range(runs):
            grads = torch.autograd.grad(guarded(fn)(*tensors).float().sum(), tensors)
            gradients.add(b"".join(_digest(g) for g in grads))
    except KernelError:  # it has none: `contract` says why
        gradients.clear()
    return dict(runs=runs, outputs=len(outputs) or None, gradients=len(gradients) or None)


def _digest(x):
    return hashlib.sha256(x.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()).digest()
