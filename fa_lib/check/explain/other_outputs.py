"""What the log-sum-exp and the gradients are that came with an output: right, right read otherwise, or wrong."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor

from fa_lib.check.dialect.attention import Dialect, Rows, changed, log_sum_exp, scores
from fa_lib.check.dialect.conventions import CONVENTIONS, Convention
from fa_lib.check.dialect.derivatives import GRADIENTS
from fa_lib.check.dialect.evidence import Evidence
from fa_lib.check.dialect.reading import Reader, Unfit
from fa_lib.check.dialect.search import NEAR
from fa_lib.check.explain.gradients import SameRows, gradient
from fa_lib.check.explain.verdict import Explanation, OtherOutput, Verdict
from fa_lib.numerics.formats import FP32, Format

UNMEANT = ("layout", "roles", "heads", "softmax")  # aspects in which one result of a call does not differ from another


def with_other_outputs(evidence: Evidence, found: Explanation) -> Explanation:
    """An Explanation with what its log-sum-exp and its gradients are, under its dialect."""
    dialect, others, reasons = Dialect(**found.dialect), [], []
    choices = [each for each in CONVENTIONS if each.aspect not in UNMEANT and each.fits(evidence)]
    choices = [each for each in choices if each.aspect not in found.dialect]
    given, same = [name for name in GRADIENTS if name in evidence.others], None
    try:
        if "lse" in evidence.others:
            others.append(_log_sum_exp(evidence, dialect, choices))
    except Unfit as error:
        reasons.append(f"{error}")
    try:
        if given and "dO" not in evidence.others:
            raise Unfit(f"{', '.join(given)}: dO is needed beside them")
        for name in given:
            same = same or SameRows.of(evidence, dialect)
            others.append(gradient(same, name, choices))
    except Unfit as error:
        reasons.append(f"{error}")
    return replace(found, others=tuple(others), not_judged="; ".join(reasons))


def _log_sum_exp(evidence: Evidence, dialect: Dialect, choices: list[Convention]) -> OtherOutput:
    rows, x = Reader(evidence).rows(dialect), evidence.others["lse"]
    batch, heads, n_q, _ = rows.shape
    x = x[..., 0] if x.ndim == 4 and x.shape[-1] == 1 else x
    as_read = "heads_last" if x.shape == (batch, n_q, heads) != (batch, heads, n_q) else ""
    x = x.transpose(1, 2) if as_read else x
    if x.shape != (batch, heads, n_q):
        raise Unfit(f"lse: got shape {tuple(evidence.others['lse'].shape)}; it should be {(batch, heads, n_q)}")
    entries, heads_at, rows_at = rows.places
    x = x[entries][:, heads_at][:, :, rows_at].double().cpu()
    due = log_sum_exp(rows)
    sees = due.isfinite()
    bound = _bound(rows, due, Format.of(evidence.others["lse"].dtype))
    error = (x - due).abs().nan_to_num(math.inf)
    residual, times = _off(x, due), (error / bound)[sees].max().item() if sees.any() else 0.0
    if times <= 1:
        return OtherOutput("lse", Verdict.CONVENTION if as_read else Verdict.ROUNDING, residual, times, as_read)
    tried = [(_off(x, other), change, more) for change, other, more in _instead(evidence, rows, due, choices)]
    least, change, more = min(tried, key=lambda one: one[0])
    if least <= min(NEAR, residual / 4):
        verdict = Verdict.BUG if change == "dialect" else Verdict.CONVENTION
        return OtherOutput("lse", verdict, residual, times, change, dialect=more)
    return OtherOutput("lse", Verdict.PRECISION if residual <= NEAR else Verdict.BUG, residual, times)


def _instead(evidence: Evidence, rows: Rows, due: Tensor, choices) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
    """What may be given for a log-sum-exp: a change, it, and its dialect."""
    m = scores(rows).amax(-1)
    yield "base_2", due / math.log(2), {}
    yield "negative", -due, {}
    yield "maximum", m, {}
    yield "without_maximum", due - m, {}
    yield "sum", (due - m).exp(), {}
    for each in choices:
        dialect = changed(rows.dialect, each.aspect, each.choice)
        yield "dialect", log_sum_exp(Reader(evidence, places=rows.places).rows(dialect)), dialect.changes()


def _off(x: Tensor, due: Tensor) -> float:
    """Root mean square of the error of a log-sum-exp: of its sum, relative."""
    sees = due.isfinite()
    return (x - due)[sees].square().mean().sqrt().nan_to_num(math.inf).item() if sees.any() else 0.0


def _bound(rows: Rows, due: Tensor, fmt: Format) -> Tensor:
    """Of the error of log-sum-exps whose products, exponentials and sums are in FP32, (entries, heads, rows)."""
    u, n_kv = FP32.unit_roundoff, rows.shape[3]
    products = (rows.q.abs() @ rows.k.abs().mT).amax(-1) * abs(rows.scale)
    bias = rows.bias.nan_to_num(neginf=0.0).abs().amax(-1)
    return (rows.q.shape[-1] + 4) * u * (products + bias) + (n_kv + 8) * u + 2 * fmt.unit_roundoff * due.abs()
