"""What the log-sum-exp is that came with an output: right, right in another form, or wrong."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attention_check.conventions.attention import Dialect, Rows, changed, log_sum_exp, scores
from attention_check.conventions.conventions import Convention
from attention_check.conventions.evidence import Evidence, taken
from attention_check.conventions.reading import Reader, Unfit
from attention_check.conventions.search import NEAR
from attention_check.explain.gradients import MOST, NEARER
from attention_check.explain.scan import parts, places_of
from attention_check.explain.verdict import OtherOutput, Verdict
from fa_lib.numerics.formats import FP32, Format

WITHOUT_SINKS = dict(sinks="ignored")  # what is added to o afterwards needs it so


def judged_log_sum_exp(evidence: Evidence, dialect: Dialect, choices: list[Convention]) -> OtherOutput:
    """What the log-sum-exp of a call is, of all rows, or of evenly spread ones as `scan` takes them.

    Args:
        choices: conventions that it may follow where the output does not.

    Raises:
        Unfit: its shape is not that of rows.
    """
    sample = Reader(evidence).rows(dialect)
    batch, heads, n_q, _ = sample.shape
    x, as_read = evidence.others["lse"], ""
    if x.shape == (batch, n_q, heads) != (batch, heads, n_q):
        x, as_read = x.transpose(1, 2), "heads_last"
    if x.shape != (batch, heads, n_q):
        raise Unfit(f"lse has the shape {tuple(evidence.others['lse'].shape)}, where {(batch, heads, n_q)} is due")
    fmt, squares, times, count, off = Format.of(x.dtype), 0.0, 0.0, 0, 0
    places = places_of(evidence, sample)
    for rows in parts(evidence, sample, places):
        due = log_sum_exp(rows)
        sees = due.isfinite()  # a NaN score, or no key, has none
        error = (taken(x, *rows.places).double().cpu() - due)[sees].abs().nan_to_num(math.inf)
        if error.numel():
            over = error / _bound(rows, due, fmt)[sees]
            times, off = max(times, over.max().item()), off + int((over > 1).sum())
        squares, count = squares + error.square().sum().item(), count + error.numel()
    residual, looked_at = math.sqrt(squares / max(count, 1)), (len(places[2]) * batch * heads, x.numel())
    if times <= 1:
        verdict = Verdict.CONVENTION if as_read else Verdict.ROUNDING
        return OtherOutput("lse", verdict, residual, times, as_read, looked_at=looked_at)
    own = taken(x, *sample.places).double().cpu()
    tried = [(_off(own, other), change, more) for change, other, more in _instead(evidence, sample, choices)]
    least, change, more = min(tried, key=lambda one: one[0])
    if least <= min(NEAR, residual / NEARER):
        verdict = Verdict.BUG if change == "dialect" and more != WITHOUT_SINKS else Verdict.CONVENTION
        return OtherOutput("lse", verdict, residual, times, change, dialect=more, looked_at=looked_at)
    verdict = Verdict.PRECISION if residual <= NEAR and off > MOST * count else Verdict.BUG
    return OtherOutput("lse", verdict, residual, times, looked_at=looked_at)


def _instead(evidence: Evidence, rows: Rows, choices: list[Convention]) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
    """What may be given for a log-sum-exp: the key of the change, it, and its dialect."""
    due, m = log_sum_exp(rows), scores(rows).amax(-1)
    yield "base_2", due / math.log(2), {}
    yield "negative", -due, {}
    yield "maximum", m, {}
    yield "without_maximum", due - m, {}
    yield "sum", (due - m).exp(), {}
    for each in choices:
        dialect = changed(rows.dialect, each.aspect, each.choice)
        try:
            yield "dialect", log_sum_exp(Reader(evidence, places=rows.places).rows(dialect)), dialect.changes()
        except Unfit:
            continue


def _off(x: Tensor, due: Tensor) -> float:
    """Root mean square of a difference, of the rows that see a key."""
    sees = due.isfinite()
    found = (x - due)[sees].square().mean().sqrt() if sees.any() else torch.tensor(math.inf)
    return found.nan_to_num(math.inf).item()


def _bound(rows: Rows, due: Tensor, fmt: Format) -> Tensor:
    """Of the error of log-sum-exps whose products, exponentials and sums are in FP32, (entries, heads, rows)."""
    u, n_kv = FP32.unit_roundoff, rows.shape[3]
    products = (rows.q.abs() @ rows.k.abs().mT).amax(-1) * abs(rows.scale)
    bias = rows.bias.nan_to_num(neginf=0.0).abs().amax(-1)
    return (rows.q.shape[-1] + 4) * u * (products + bias) + (n_kv + 8) * u + 2 * fmt.unit_roundoff * due.abs()
