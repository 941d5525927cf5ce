"""Somebody's kernel f(q, k, v, causal=..., scale=...) examined from outside: what it can do, how far it is from the
golden value, what it carries from tile to tile. It is called, never read; whatever it does becomes a row of a table."""

import hashlib
import math
from functools import lru_cache

import pandas as pd
import torch

from fa_lib import kernels
from fa_lib.execution.sweep import sweep
from fa_lib.experiments.biased_rounding import problem as biased
from fa_lib.experiments.rule import rule, yardstick
from fa_lib.formats import BF16, FP16, FP32, FP64, Format
from fa_lib.inputs import DISTRIBUTIONS, draw
from fa_lib.metrics import deviation

BIASED = "two maxima, V > 0"  # `biased.problem`: the inputs that make a BF16 accumulator drift


ORDINARY = ("uniform", "normal")


CALLS = {  # n_q, n_kv, heads, kv_heads, head_dim (None: the one asked for), options
    "N = 256": (256, 256, 2, 2, None, {}),
    "a length off the tiles, N = 203": (203, 203, 2, 2, None, {}),
    "head_dim 32": (256, 256, 2, 2, 32, {}),
    "head_dim 80": (256, 256, 2, 2, 80, {}),
    "head_dim 128": (256, 256, 2, 2, 128, {}),
    "another scale": (256, 256, 2, 2, None, dict(scale=0.05)),
    "causal": (256, 256, 2, 2, None, dict(causal=True)),
    "fewer queries than keys": (64, 256, 2, 2, None, {}),
    "causal, fewer queries than keys": (64, 256, 2, 2, None, dict(causal=True)),
    "one query, as in decoding": (1, 256, 2, 2, None, {}),
    "key heads shared, GQA 4 to 2": (256, 256, 4, 2, None, {}),
    "a boolean mask": (256, 256, 2, 2, None, dict(mask=torch.ones(256, 256, dtype=torch.bool).tril(20))),
}


FAR = 0.2  # of the golden value's root mean square: 50 times what BF16 costs, a fifth of what another answer is off


def examine(kernel, *, lengths, seeds, shapes, head_dims, troubled_n, bias_seeds, runs, device="cpu", cache=""):
    """Everything that a verdict needs, in six tables.

    Args:
        kernel: a name for `kernels.get`.
        lengths: N, for the growth of the error, each with that many seeds.
        shapes, head_dims: of the rule over shapes and masks, names of `rule.CALLS`.
        troubled_n, bias_seeds: N of the inputs that make trouble, and how many seeds of each.
        runs: of one call.
        cache: as `sweep`.

    Returns:
        dict of pandas.DataFrame, for `verdict.judge`: asked (`contract`), shapes (`ruled`), lengths (`measure`, with
        the emulated kernels "as_shipped" and "every_step" beside), inputs (`measure`), sums (`carry`), repeats
        (`repeats`). BF16 and FP16 are judged, else FP32; where it has none of them, all but `asked` are empty.
    """
    for head_dim in (64, 128, 32):  # the first it has
        tables = dict(asked=pd.DataFrame(contract(kernel, head_dim, device)))
        if can := formats(tables["asked"]):
            break
    judged = [fmt for fmt in can if fmt in ("BF16", "FP16")] or [fmt for fmt in can if fmt == "FP32"]
    if not judged:
        return tables | {name: pd.DataFrame() for name in ("shapes", "lengths", "inputs", "sums", "repeats")}
    common = dict(device=device, fmt=judged, head_dim=head_dim)
    beside = [kernel, *sorted({"as_shipped", "every_step"} - {kernel})]
    growth = dict(
        distribution=list(ORDINARY), n=list(lengths), seed=range(seeds), kernel=beside
    )  # kernel: the last axis
    trouble = [name for name in DISTRIBUTIONS if name not in ORDINARY] + [BIASED]
    over = {
        "shapes": (
            ruled,
            dict(distribution="normal", seed=0, shape=list(shapes), head_dim=sorted({head_dim, *head_dims})),
        ),
        "lengths": (measure, growth),
        "inputs": (measure, dict(distribution=trouble, n=troubled_n, seed=range(bias_seeds))),
        "sums": (carry, dict(fmt=[fmt for fmt in judged if fmt in ("BF16", "FP16")] or ["BF16"])),
        "repeats": (repeats, dict(fmt=judged[0], runs=runs)),
    }
    for name, (fn, grid) in over.items():
        grid = common | grid
        tables[name] = sweep(fn, grid if "kernel" in grid else dict(kernel=kernel) | grid, cache=cache)
    return tables


def attempt(fn, q, k, v, **options):
    """Call a kernel, and see that it did what a kernel does.

    Returns:
        o, problem: its output, and "" or what is wrong: it raises, or returns no tensor, another shape or dtype, NaN or
        infinities, or it changes its inputs. o is None where it is of no use.
    """
    before = [x.detach().clone() for x in (q, k, v)]
    try:
        o = fn(q, k, v, **options)
    except Exception as error:
        return None, f"raises {type(error).__name__}: {str(error).strip().split(chr(10))[0][:200]}"
    if not isinstance(o, torch.Tensor):
        return None, f"returns {type(o).__name__}, where a tensor is due"
    due = (*q.shape[:-1], v.shape[-1])
    if tuple(o.shape) != due or o.dtype != q.dtype:
        return None, f"returns {o.dtype} of shape {tuple(o.shape)}, where {q.dtype} of shape {due} is due"
    changed = [name for name, x, was in zip("qkv", (q, k, v), before) if not torch.equal(x, was)]
    if changed:
        return None, f"changes its inputs: {', '.join(changed)}"
    count = int((~o.isfinite()).sum())
    return o, f"returns {count} NaN or infinite values of {o.numel()}" if count else ""


def contract(kernel, head_dim=64, device="cpu"):
    """What a kernel can do: formats, shapes, options, gradients.

    Returns:
        rows: asked, outcome, detail. The outcome is "yes", "no" (it raises), "broken" (as `attempt` has it) or "wrong"
        (it answers another question). Formats come first; the rest is asked in the first one it has.
    """
    fn, rows = kernels.plain(kernel), []

    def ask(asked, fmt, n_q, n_kv, heads, kv_heads, d, options, times=1):
        d = d or head_dim
        q, k, v = draw("normal", 0, (2, heads, n_q, d), (2, kv_heads, n_kv, d))
        q, k, v = (fmt(x).to(device, fmt.dtype) for x in (q * times, k, v))
        options = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
        o, detail = attempt(fn, q, k, v, **options)
        outcome = "no" if detail.startswith("raises") else "broken" if detail else "yes"
        if not detail and times == 1:  # else a score's own rounding may turn the softmax
            golden = kernels.golden(q, k, v, inputs=fmt, **options)
            if _far(o, golden):
                outcome, detail = "wrong", "its answer is not attention's"
                if options.get("causal"):
                    top_left = torch.ones(n_q, n_kv, dtype=torch.bool, device=device).tril()
                    if not _far(o, kernels.golden(q, k, v, inputs=fmt, mask=top_left)):
                        outcome, detail = "yes", "aligned top-left, as torch's is_causal"
                    elif not _far(o, kernels.golden(q, k, v, inputs=fmt)):
                        detail = "it takes causal=True and does not mask"
        rows.append(dict(asked=asked, outcome=outcome, detail=detail))
        return outcome

    can = [fmt for fmt in (BF16, FP16, FP32, FP64) if ask(f"{fmt}", fmt, *CALLS["N = 256"]) == "yes"]
    if can:
        for asked, call in list(CALLS.items())[1:]:
            ask(asked, can[0], *call)
        ask("scores up to some 250", can[0], *CALLS["N = 256"], times=64)
        rows.append(_gradients(fn, can[0], head_dim, device))
    return rows


def _far(o, golden):
    return deviation(o, golden).rmse > FAR * golden.square().mean().sqrt().item()


def _gradients(fn, fmt, head_dim, device):
    q, k, v = (fmt(x).to(device, fmt.dtype).requires_grad_() for x in draw("normal", 0, (1, 2, 256, head_dim)))
    try:
        grads = torch.autograd.grad(fn(q, k, v).float().sum(), (q, k, v))
    except Exception as error:
        return dict(asked="gradients", outcome="no", detail=str(error).strip().split("\n")[0][:200])
    finite = all(g.isfinite().all() for g in grads)
    detail = "" if finite else "NaN or infinite values in dQ, dK or dV"
    return dict(asked="gradients", outcome="yes" if finite else "broken", detail=detail)


def formats(table):
    """The formats that a table of `contract` says yes to."""
    return [fmt for fmt in ("BF16", "FP16", "FP32", "FP64") if ((table.asked == fmt) & (table.outcome == "yes")).any()]


def ruled(shape, head_dim, distribution, fmt, seed, kernel, gradients=True, device="cpu"):
    """A cell: `rule.rule` of one kernel, whatever it does: rows of that, or one with what it answered instead."""
    try:
        rows = rule(shape, head_dim, distribution, fmt, seed, [kernel], gradients, device)
        return [row | dict(problem="") for row in rows]
    except Exception as error:
        if gradients:
            return ruled(shape, head_dim, distribution, fmt, seed, kernel, False, device)
        problem = f"raises {type(error).__name__}: {str(error).strip().split(chr(10))[0][:200]}"
        return [dict(tensor="o", ratio=math.nan, passed=None, problem=problem)]


def measure(kernel, fmt, distribution, n, seed, head_dim=64, device="cpu"):
    """A cell: the error of a kernel, and Baseline's, to the golden value from the same rounded inputs, N = n.

    Baseline is `rule.yardstick`.

    Args:
        distribution: a name of `inputs.DISTRIBUTIONS`, or BIASED.

    Returns:
        dict: problem (of `attempt`, or ""), max, rmse, times_max and times_rmse (over Baseline's), bias: mean signed
        difference to the golden value rounded to fmt, the best an output can be (some inputs make that rounding biased
        itself); outwards: the same, positive where it points away from zero. Both in ulp at the golden value's root
        mean square.
    """
    fmt = Format.of(fmt)
    q, k, v, golden, baseline = _problem(fmt, distribution, n, seed, head_dim, device)
    o, problem = attempt(kernels.plain(kernel), q, k, v)
    if o is None or problem:
        return dict.fromkeys(("max", "rmse", "times_max", "times_rmse", "bias", "outwards"), math.nan) | {
            "problem": problem
        }
    d = deviation(o, golden, fmt)
    error = (o.double() - fmt(golden)) / fmt.ulp(golden.square().mean().sqrt())
    return dict(
        max=d.max, rmse=d.rmse, times_max=d.max / baseline.max, times_rmse=d.rmse / baseline.rmse,
        bias=error.mean().item(), outwards=(error * golden.sign()).mean().item(), problem="",
    )  # fmt: skip


@lru_cache(maxsize=1)  # of cells that differ in their kernel alone
def _problem(fmt, distribution, n, seed, head_dim, device):
    if distribution == BIASED:
        q, k, v, _ = biased(2, "positive", seed, n=n, rows=n, head_dim=head_dim)
    else:
        q, k, v = draw(distribution, seed, (1, 1, n, head_dim))
    q, k, v = (fmt(x).to(device, fmt.dtype) for x in (q, k, v))
    golden = kernels.golden(q, k, v, inputs=fmt)
    return q, k, v, golden, deviation(yardstick(fmt)(q, k, v), golden, fmt)


def carry(kernel, fmt, n=4096, head_dim=64, device="cpu"):
    """A cell: sums that only a carry of more bits than `fmt` has can hold.

    One term is 1, the n - 1 others are 0.45 ulp of `fmt` at 1, divided by a number of keys. A kernel that keeps a sum
    in `fmt` and adds to it what a tile holds, loses every tile of up to that many keys: 0.45 n / keys ulp in all. One
    that keeps FP32 loses none, and is off by the rounding of its output, half an ulp. The fewest `keys` from which on
    all is lost are the tile's size.

    Two sums are asked for apart. Accumulator O: all P are equal, V is 1 and the small numbers. Row sum l: V is 1 for
    one key and 0 for the others, whose P are the small numbers. The large term stands first or last, for kernels that
    begin at either end.

    Args:
        kernel: called in fmt, or in FP32 where it has no `fmt`: then FP32 tensors are carried in it or not.

    Returns:
        rows: what ("accumulator O", "row sum l"), keys, lost (largest error of the two, in ulp of fmt), all (what is
        lost if every tile is), problem.
    """
    fmt = Format.of(fmt)
    keys, ulp, rows = [2**i for i in range(int(math.log2(n)))], 2 * fmt.unit_roundoff, []
    small = torch.tensor([0.45 * ulp / b for b in keys], dtype=torch.float64)[:, None]  # (levels, 1)
    for what in ("accumulator O", "row sum l"):
        q, k, v = torch.zeros(3, 2, len(keys), n, head_dim, dtype=torch.float64)  # (large first or last, levels, n, d)
        if what == "accumulator O":
            v[:] = small[..., None]
        else:
            q[..., 0] = head_dim**0.5
            k[..., 0] = small.log()
        for batch, large in enumerate((0, n - 1)):
            k[batch, :, large], v[batch, :, large] = 0, 1
        q, k, v = (fmt(x) for x in (q, k, v))
        golden = kernels.golden(q[:, :, :1], k, v, inputs=FP64)  # every row of Q is the same
        o, problem = None, "it runs in none of the formats"
        for dtype, n_q in ((fmt.dtype, 16), (fmt.dtype, n), (torch.float32, 16), (torch.float32, n)):
            given = [x.to(device, dtype).contiguous() for x in (q[:, :, :n_q], k, v)]
            o, problem = attempt(kernels.plain(kernel), *given)
            if o is not None:
                break
        lost = [math.nan] * len(keys)
        if o is not None:
            lost = ((o.double().cpu() - golden).abs() / fmt.ulp(golden)).amax((0, 2, 3)).tolist()
        rows += [
            dict(what=what, keys=b, lost=x, all=0.45 * n / b, problem=problem) for b, x in zip(keys, lost)
        ]  # fmt: skip
    return rows


def repeats(kernel, fmt, runs, n=256, head_dim=64, device="cpu"):
    """A cell: how many different outputs, and gradients, one call gives when it is made again and again.

    Returns:
        dict: runs, outputs, gradients (distinct; 1 is deterministic), None where the kernel gives none.
    """
    fmt = Format.of(fmt)
    tensors = [fmt(x).to(device, fmt.dtype) for x in draw("normal", 0, (1, 2, n, head_dim))]
    fn, outputs, gradients = kernels.plain(kernel), set(), set()
    for _ in range(runs):
        o, _ = attempt(fn, *tensors)
        outputs |= set() if o is None else {_digest(o)}
    try:
        tensors = [x.requires_grad_() for x in tensors]
        for _ in range(runs):
            grads = torch.autograd.grad(fn(*tensors).float().sum(), tensors)
            gradients.add(b"".join(_digest(g) for g in grads))
    except Exception:  # it has none: `contract` says why
        gradients.clear()
    return dict(runs=runs, outputs=len(outputs) or None, gradients=len(gradients) or None)


def _digest(x):
    return hashlib.sha256(x.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()).digest()
