"""Captured Q, K, V: how risky each head is, and how far kernels are on it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd
import torch
from torch import Tensor

from attention_check.isolation.calls import Answer, call_kernel, nonfinite
from attention_check.isolation.worker import Outcome
from attention_check.measure.closeness import closeness
from attention_check.measure.measurements import RAN, ROUNDED, TensorMeasurements
from attention_check.measure.reference_cache import BIASED, draw_inputs
from fa_lib import kernels
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.kernels.options import ResolvedOptions, finite, visible_rows
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.rows import by_rows
from fa_lib.kernels.rule import baseline_for
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import FP32, Format
from fa_lib.numerics.metrics import deviation, over_baseline

KINDS = ("normal", "uniform", "sink", "repeated maxima", "one-signed V", "peaked", BIASED)  # of `example`
YARDSTICKS = FINITE, OVERFLOWS = "finite", "overflows"  # Baseline


def example(n: int = 512, head_dim: int = 64, seed: int = 0) -> list[torch.Tensor]:
    """Q, K, V in BF16 of one head for each of KINDS, (1, heads, n, head_dim)."""
    heads = [draw_inputs(kind, seed, n, head_dim) for kind in KINDS]
    return [torch.cat(each, 1).bfloat16() for each in zip(*heads)]


def examine_tensors(
    q: Tensor, k: Tensor, v: Tensor, options: dict, names: Sequence[KernelRef | str], ran: Tensor | None = None
) -> TensorMeasurements:
    """Measure what kernels make of captured tensors.

    Args:
        q, k, v: (1, heads, n_q, head_dim), (1, kv_heads, n_kv, head_dim) and (1, kv_heads, n_kv, d_v), in one format.
        options: of the call: causal, mask, scale ...
        names: kernels, and RAN where `ran` is given: what a kernel made of these tensors when they were captured. The
            output of the first is held to its own bound.
    """
    answers = answered(q, k, v, options, names, ran)
    own = answers[f"{names[0]}"]
    return TensorMeasurements(
        deviations=pd.DataFrame(deviations(q, k, v, options, answers)),
        risks=pd.DataFrame(risks(q, k, v, options)),
        bound=pd.DataFrame(closeness(own.output, q, k, v, options) if own.outcome == Outcome.ANSWERED else []),
    )


def by_head(x: Tensor) -> Tensor:
    """(heads, batch * rows, features) of (batch, heads, rows, features), whatever dimensions lead."""
    x = x.reshape(-1, *x.shape[-3:]) if x.ndim > 3 else x.reshape(1, -1, *x.shape[-2:])
    return x.transpose(0, 1).flatten(1, 2)


def risks(q, k, v, options: dict | None = None, block_kv: int = 64) -> list[dict]:
    """What makes a head risky.

    Args:
        options: causal, scale, mask. block_kv: tiles, for the rescales.

    Returns:
        rows, one per head (over the batch), whose columns data/columns.csv explains (12_your_tensors).
    """
    fmt, options = Format.of(q.dtype), dict(options or {})
    exact = replace(Precision.uniform("FP64"), scores=FP32)
    of = ResolvedOptions.of(q, k, v, **options)

    def rows(q_i, k, v, scores):
        S = scores(q_i, k, 0)  # (rows, n_kv)
        visible = -math.inf != S
        S = exact.scores(S)
        m = S.amax(-1, keepdim=True)  # (rows, 1)
        P = torch.exp(S - m.where(m != -math.inf, 0.0))
        count = visible.sum(-1, keepdim=True).clamp(min=1)
        mean = torch.where(visible, S, 0.0).sum(-1, keepdim=True) / count
        spread = (torch.where(visible, S - mean, 0.0).square().sum(-1, keepdim=True) / count).sqrt()
        gone = (fmt(P) == 0) & visible & (P > 0)
        return torch.cat([
            ((m == S) & visible).sum(-1, keepdim=True) > 1, ((fmt(P) == 1) & visible).sum(-1, keepdim=True), spread,
            gone.sum(-1, keepdim=True) / count, (P * gone).sum(-1, keepdim=True) / P.sum(-1, keepdim=True).clamp(min=1),
        ], -1).double()  # fmt: skip

    found = by_rows(rows, (q, k, v), exact, of, features=5, width=k.shape[-2])  # (batch, heads, n_q, 5)
    found = by_head(found)
    precision = Precision.kernel(fmt)
    tiling = Tiling(64, block_kv)
    rescales = by_head(kernels.rescales(q, k, tiling=tiling, precision=precision, **options)[..., None].double())
    sided = by_head((v.double().sum(-2).abs() / v.double().abs().sum(-2).clamp(min=1e-300))[..., None, :])
    group = len(found) // len(sided)
    return [
        dict(
            head=head, repeated=x[:, 0].mean().item(), ones=x[:, 1].mean().item(), spread=x[:, 2].mean().item(),
            lost=x[:, 3].mean().item(), mass=x[:, 4].max().item(), one_sided=sided[head // group].mean().item(),
            rescales=rescales[head].mean().item(),
        )
        for head, x in enumerate(found)
    ]  # fmt: skip


def answered(
    q: Tensor, k: Tensor, v: Tensor, options: dict, names: Sequence[KernelRef | str], ran: Tensor | None = None
) -> dict[str, Answer]:
    """What kernels give on these tensors, by name. names, ran: as of `examine_tensors`."""
    return {f"{name}": _answer(name, (q, k, v), options, ran) for name in names}


def deviations(q: Tensor, k: Tensor, v: Tensor, options: dict, answers: Mapping[str, Answer]) -> list[dict]:
    """How far kernels are from the golden value on these tensors, by head.

    Args:
        answers: of `answered`.

    Returns:
        rows of `deviations`, ROUNDED first, whose columns data/columns.csv explains. Errors over Baseline's are NaN
        where its output is not finite. A kernel with a problem is one row without head and numbers.
    """
    fmt = Format.of(q.dtype)
    golden = kernels.golden(q, k, v, inputs=fmt, **options)
    seen = _seen((q, k, v), options)
    baseline, rows = baseline_for(fmt)(q, k, v, **options).where(seen, golden), []
    right = {name: a.output for name, a in answers.items() if a.outcome == Outcome.ANSWERED}
    outs = {ROUNDED: fmt(golden)} | {name: o.where(seen, golden) for name, o in right.items()}
    blind = by_head((~seen).expand(*golden.shape[:-1], 1)).sum((1, 2)).tolist()
    yardsticks = [yardstick_of(b, g, fmt) for b, g in zip(by_head(baseline), by_head(golden))]
    for name, out in outs.items():
        for head, (o, g) in enumerate(zip(by_head(out), by_head(golden))):
            stick, largest, rmse = yardsticks[head]
            d = deviation(o, g, fmt)
            times = dict(times_max=over_baseline(d.max, largest), times_rmse=over_baseline(d.rmse, rmse))
            numbers = dict(max=d.max, rmse=d.rmse, relative=d.relative) | times
            about = dict(fmt=fmt.name, rows=len(g) - blind[head], yardstick=stick, blind=blind[head])
            rows.append(dict(head=head, kernel=name) | numbers | about | dict(outcome=Outcome.ANSWERED, problem=""))
    refused = {name: answer for name, answer in answers.items() if name not in outs}
    return rows + [
        dict(head=math.nan, kernel=name, outcome=a.outcome, problem=a.problem) for name, a in refused.items()
    ]


def yardstick_of(baseline: Tensor, golden: Tensor, fmt: Format) -> tuple[str, float, float]:
    """One of YARDSTICKS for what Baseline gave, of the golden value's shape, and its largest and root mean square
    error; NaN where there is none."""
    if not baseline.isfinite().all():
        return OVERFLOWS, math.nan, math.nan
    own = deviation(baseline, golden, fmt)
    return FINITE, own.max, own.rmse


def _answer(name, tensors, options, ran) -> Answer:
    """Of a kernel, or of what ran; NaN counts in rows that see a key."""
    q, k, v = tensors
    if name == RAN:
        found = Answer(ran)
        if not finite(ran):
            found = Answer(ran, Outcome.MALFORMED, f"returned {nonfinite(ran, q, k, v, options)}")
    else:
        found = call_kernel(kernels.plain(name), *(x.clone() for x in tensors), **options)
    if found.finite or not finite(o := found.output.where(_seen(tensors, options), 0.0)):
        return found
    return Answer(o)


def _seen(tensors, options):
    """Whether each row sees a key, what broadcasts to (..., n_q, 1)."""
    return visible_rows(*tensors, **options)[..., None]
