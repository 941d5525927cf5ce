"""Baseline Attention: softmax(scale * Q Kᵀ) V with S and P written out, each step rounded; and the golden value."""

from dataclasses import replace

import torch
from jaxtyping import Float64
from torch import Tensor

from fa_lib.kernels.backward import Backward, differentiable
from fa_lib.kernels.options import Keys, Outputs, Queries, ResolvedOptions, Values, finite
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.rows import by_rows, nonzero, rounding, stored
from fa_lib.numerics.formats import FP64, Format


def reference(q: Queries, k: Keys, v: Values, *, precision: Precision, q_k: Tensor | None = None, **options) -> Outputs:
    """Compute Baseline Attention (arXiv 2405.02803, section 2), each step rounded as `precision` says. Differentiable.

    With `Precision.materialized(fmt)` it is PyTorch's unfused attention in fmt, the paper's Baseline. It is not
    torch's MATH backend, which upcasts 16-bit inputs to FP32.

    Args:
        q: (batch, heads, n_q, head_dim), any number of leading dimensions.
        k, v: (batch, kv_heads, n_kv, head_dim), kv_heads a divisor of heads (GQA).
        precision: a Precision.
        q_k: `rows.products` of the call, or None: then Q Kᵀ is multiplied here.
        options: of `options.CallOptions`: causal, scale, mask, window, softcap, keep, dropout_p, sinks.

    Returns:
        o: (batch, heads, n_q, head_dim) in q's dtype, its values on the grid of `precision.output`. A row that
        sees no key is zero.

    Raises:
        ValueError: an argument does not fit.
    """
    settings = ResolvedOptions.of(q, k, v, **options)
    p = rounding(precision)

    def rows(q, k, v, scores):
        S = scores(q, k, 0)  # (rows, n_kv)
        seen = scores.seen(S)
        S = p.scores.round_(S)
        m = S.amax(-1, keepdim=True)  # (rows, 1)
        sink = None if scores.sink is None else p.scores(scores.sink)  # (1, 1)
        m = p.maximum(m if sink is None else torch.maximum(m, sink))
        if seen is not True and sink is None:
            m = m.where(seen, 0.0)  # exp(-inf - 0) = 0, and not NaN
        P = p.exponent.round_(p.products.exp_(p.exponent.round_(S.sub_(m))))  # (rows, n_kv)
        l = p.products.totals(P)  # (rows, 1)
        l = p.row_sum(l if sink is None else l + p.exponent(p.products.exp_(p.exponent(sink - m))))
        P = p.probs.round_(p.exponent.round_(P.div_(nonzero(l))))  # (rows, n_kv)
        P = P if scores.keeps_all else p.probs(scores.drop(P, 0))
        O = p.accumulator(p.products.matmul(P, v))  # (rows, head_dim)
        return torch.cat([p.output(O), m, l], -1)

    def forward(q, k, v):
        out = by_rows(rows, (q, k, v), p, settings, features=v.shape[-1] + 2, width=k.shape[-2], q_k=q_k, several=True)
        return stored(out[..., :-2], q.dtype), out[..., -2:]

    def probabilities(S, m_l):
        m, l = m_l[:, :1], m_l[:, 1:]
        P = p.exponent.round_(p.products.exp_(p.exponent.round_(S.sub_(m))))
        return p.probs.round_(p.exponent.round_(P.div_(nonzero(l))))

    return differentiable(q, k, v, forward, Backward(p, settings, probabilities, tiling=None), options.get("sinks"))


def golden(
    q: Queries, k: Keys, v: Values, *, inputs: Format | str, allow_nonfinite: bool = False, **options
) -> Float64[Tensor, "*lead n_q d_v"]:
    """Compute the golden value: Baseline Attention in FP64. Differentiable: its gradients are golden too. (For kernels
    that run in FP64 themselves there is `golden_pair`.)

    Args:
        q, k, v, options: as `reference`, q_k among them.
        inputs: the Format that Q, K and V are rounded to first; FP64 takes them as they are. A kernel in BF16 gets BF16
            inputs: with inputs=BF16 their rounding is not part of its error, with FP64 it is.
        allow_nonfinite: whether NaN and infinities are accepted.

    Returns:
        o: float64 (..., heads, n_q, d_v), whatever q's dtype.

    Raises:
        ValueError: an argument does not fit, or an input is not finite.
    """
    inputs = Format.of(inputs)
    if not allow_nonfinite:
        refuse_nonfinite(q, k, v, ", or allow_nonfinite=True, and then they are counted in the deviation")
    exact = Precision.uniform(FP64)
    if all(isinstance(x, torch.Tensor) and x.dtype == inputs.dtype for x in (q, k, v)):
        inputs = FP64  # they are on the grid of `inputs` already
    q, k, v = (x.double() if isinstance(x, torch.Tensor) else x for x in (q, k, v))
    return reference(q, k, v, precision=replace(exact, inputs=inputs), **options)


def refuse_nonfinite(q: Tensor, k: Tensor, v: Tensor, otherwise: str = "") -> None:
    """Refuse inputs of a golden value, of any shapes, that hold NaN or an infinity, with a ValueError; otherwise: a
    further way to be accepted, for its message."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if isinstance(x, torch.Tensor) and not finite(x):
            count = int((~x.isfinite()).sum())
            sentence = "values are NaN or infinite, so no golden value exists; accepted are finite inputs"
            raise ValueError(f"{name}: {count} {sentence}{otherwise}")
