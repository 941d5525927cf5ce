"""Every check of a kernel by name, each run by itself: it passes, it fails, or it cannot be decided."""

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pandas as pd

from fa_lib import kernels
from fa_lib.check.isolation.worker import Outcome
from fa_lib.check.judge.bound import of_bound
from fa_lib.check.judge.conduct import of_conduct
from fa_lib.check.judge.findings import Finding, Judgement, Severity
from fa_lib.check.judge.gross_errors import coarse, noisy, scaled
from fa_lib.check.judge.kernel import alignment
from fa_lib.check.judge.relations import of_relations
from fa_lib.check.measure.bounds import bounds
from fa_lib.check.measure.capability import (
    CAPABILITIES,
    CAUSAL_FEWER,
    CAUSAL_ONE,
    GRADIENTS_AT,
    GRADIENTS_WITH,
    HEAD_DIM,
    HEAD_DIMS,
    LARGE,
    SINKS_GRADIENT,
)
from fa_lib.check.measure.carry import LOST, SUMS, carried, carry
from fa_lib.check.measure.contract import formats
from fa_lib.check.measure.determinism import repeats
from fa_lib.check.measure.draws import OF_LENGTHS, OF_SHAPES, Columns, drawn_again, worst_draws
from fa_lib.check.measure.examine import measure, probe_capabilities
from fa_lib.check.measure.plan import QUICK
from fa_lib.check.measure.relations import RELATIONS, relate
from fa_lib.check.measure.relations.subject import NOT_ASKED
from fa_lib.check.measure.rounding_mode import rounding_mode
from fa_lib.check.measure.shapes import measure_shapes
from fa_lib.check.measure.wrong_answers import FAR, furthest
from fa_lib.check.report.capability_labels import label
from fa_lib.check.report.sentences import sentences_of
from fa_lib.check.report.sentences_kernel import MODES, noted
from fa_lib.kernels.rule import ALLOWED
from fa_lib.testing.checked import CheckedKernel, Result

N = 512  # keys that errors are measured at
RUNS = 3  # of a call, for noise
QUERIES = 16  # of a call that shows carries
JUDGED = ("BF16", "FP16", "FP32")  # the first that a kernel has
ANSWERS = (  # (asked, dim) of `contract`
    *((each.key, each.call.head_dim or 0 if each.key == HEAD_DIM else 0) for each in CAPABILITIES),
    (LARGE.key, 0),
    *((GRADIENTS_AT, d) for d in HEAD_DIMS),
    *((asked, 0) for asked in GRADIENTS_WITH.values()),
    (SINKS_GRADIENT, 0),
)


def result_of(check: str, kernel: str | Callable) -> Result:
    """Run a check on a kernel.

    Args:
        check: a key of CHECKS. kernel: a function f(q, k, v, causal=..., scale=...), or a name for `kernels.get`.

    Raises:
        ValueError: there is no such kernel.
        KeyError: there is no such check.
    """
    judged = _judged(kernel)
    if isinstance(judged, str):
        return Result(False, judged)
    return CHECKS[check](judged)


_JUDGED: dict[tuple[str, int], tuple[Callable, CheckedKernel | str]] = {}  # name and id of a function -> it, `_judge`'s


def _judged(kernel: str | Callable) -> CheckedKernel | str:
    """Return `_judge` of a kernel, computed once for each function: a name may stand for another function later, and a
    function need not be hashable."""
    name = kernel if isinstance(kernel, str) else ""
    fn = kernels.get(name.rpartition("@")[0] or kernel)  # a layout makes a new function each time
    if (name, id(fn)) not in _JUDGED:
        _JUDGED[name, id(fn)] = fn, _judge(kernel)  # the function is held, so that its id stays its own
    return _JUDGED[name, id(fn)][1]


def _judge(kernel) -> CheckedKernel | str:
    """Return the CheckedKernel; or, where the kernel answers in no format, a sentence that says what it does."""
    table, head_dim, capabilities = probe_capabilities(kernel, "cpu")
    answered = formats(table[table.head_dim == head_dim])
    for fmt in JUDGED:
        if fmt in answered:
            return CheckedKernel(kernel, fmt, head_dim, capabilities, table)
    bad = table[table.outcome != Outcome.ANSWERED].iloc[0]
    what = bad.problem or "does not return attention"
    return f"{', '.join(JUDGED)}: the kernel answers in none of them; in {label(bad.asked, bad.dim)} it {what}"


def _answer(judged: CheckedKernel, asked: str, dim: int) -> Result:
    """What it answers is attention, as near as the contract asks: an option, a length, a head_dim and its gradients."""
    rows = judged.asked[judged.asked.head_dim == judged.head_dim]
    rows = rows[(rows.asked == asked) & (rows.dim == dim)]
    if not len(rows):
        return Result(None, "the kernel lacks what this is asked of")
    row = rows.iloc[0]
    note = noted(row.outcome, row.note, row.problem)
    if row.outcome == Outcome.REFUSED:
        return _unanswered(row.outcome, note)
    return Result(row.outcome == Outcome.ANSWERED, note and f"asked for {label(asked, dim)} it {note}")


def _gradients(judged: CheckedKernel, shape: str) -> Result:
    """Its gradients differ from attention's by no more than FAR."""
    if not judged.able.gradients:
        return Result(None, "the kernel has no gradients")
    rows = pd.DataFrame(
        measure_shapes(shape, judged.head_dim, "normal", judged.fmt, 0, judged.kernel, able=judged.able)
    )
    if rows.outcome.iloc[0] != Outcome.ANSWERED:
        return _unanswered(rows.outcome.iloc[0], rows.problem.iloc[0])
    rows = rows[rows.tensor != "o"]
    if not len(rows):
        return Result(None, "the kernel has no gradients of this")
    worst = furthest(rows)
    sentence = f"d{worst.tensor[1:].upper()} is off by {worst.relative:.2g} of its root mean square; accepted are {FAR}"
    failed = rows[~rows.passed.astype(bool)]
    more = f"; {rows.ratio.max():.3g} times Baseline's largest error, 3 are usual" if len(failed) else ""
    return Result(bool(worst.relative <= FAR), sentence + more)


def _rounding(judged: CheckedKernel, what: str) -> Result:
    """A cast rounds to nearest, and does not drop bits."""
    if judged.fmt == "FP32":
        return Result(None, "the kernel has neither BF16 nor FP16")
    rows = rounding_mode(judged.kernel, judged.fmt, judged.head_dim, judged.able.causal)
    modes = [row["mode"] for row in rows if row["what"] == what]
    if not modes or modes[0] == "not_seen":
        return Result(None, "the kernel shows no such cast")
    if modes[0] == "truncates" and what == "output" and any(_carry(judged, each).passed is False for each in SUMS):
        return Result(None, "the kernel carries its sums in this format, and rounds them so")
    return Result(modes[0] != "truncates", MODES[modes[0]])


def _error(judged: CheckedKernel, distribution: str) -> Result:
    """The largest error is within the field's rule."""
    return _ruled(judged, OF_LENGTHS, lambda seeds: [
        row | dict(seed=seed, fmt=judged.fmt, distribution=distribution, n=N)
        for seed in seeds for row in measure([judged.kernel], judged.inputs(distribution, N, seed))
    ])  # fmt: skip


def _rule(judged: CheckedKernel, shape: str) -> Result:
    """The largest error at a shape of `rule.CALLS` is within the field's rule; of outputs, not of gradients."""
    at: dict[str, Any] = dict(shape=shape, head_dim=judged.head_dim, fmt=judged.fmt)
    call = partial(measure_shapes, distribution="normal", kernel=judged.kernel, able=judged.without_gradients())
    return _ruled(judged, OF_SHAPES, lambda seeds: [
        row | at | dict(seed=seed) for seed in seeds for row in call(seed=seed, **at)
    ])  # fmt: skip


def _ruled(judged: CheckedKernel, columns: Columns, draws: Callable[[Iterable[int]], list[dict]]) -> Result:
    """draws: of seeds -> rows of one call."""
    limit = ALLOWED["o"]
    rows = drawn_again(pd.DataFrame(draws([0])), columns, limit, lambda _, seeds: pd.DataFrame(draws(seeds)))
    problems = rows[rows.outcome != Outcome.ANSWERED]
    if len(problems):
        return _unanswered(problems.outcome.iloc[0], problems.problem.iloc[0])
    (worst,) = worst_draws(rows, columns, limit).to_dict("records")
    times = worst[columns.times]
    why = f"{worst['alone']:.3g} times Baseline's largest error in {judged.fmt}"
    if times < worst["alone"]:
        why += f" in one of {worst['draws']} draws, at most {times:.3g} times in the others"
    return Result(times <= limit, f"{why}; accepted are {limit}")


def _unanswered(outcome: str, problem: str) -> Result:
    """Judge a call without an answer: undecided where the kernel refuses what it lacks, else a failure."""
    return Result(None if outcome == Outcome.REFUSED else False, f"the kernel {problem}")


def _carry(judged: CheckedKernel, what: str) -> Result:
    """The sum is carried in more bits than the inputs' format."""
    fmt = "BF16" if judged.fmt == "FP32" else judged.fmt
    rows = carry(judged.kernel, fmt, QUERIES, judged.head_dim, judged.able.causal)
    table = pd.DataFrame(rows).assign(fmt=fmt, queries=QUERIES)
    (found,) = (each for each in carried(table) if each["sum"] == what)
    if found["low"] is None:
        problems = [row["problem"] for row in rows if row["problem"]]
        why = problems[0] if problems else "does not return small terms alone, so that a loss would say nothing"
        return Result(None, f"the kernel {why}")
    if found["low"] and (hides := _hides_a_carry(judged)):
        return Result(None, f"the kernel {hides}")
    tile = f", in tiles of {found['tile']} keys" if found["tile"] else ""
    why = f"loses {found['lost']:.3g} ulp of {fmt} of a sum of large and small terms{tile}; accepted are {LOST}"
    return Result(not found["low"], why)


def _hides_a_carry(judged: CheckedKernel) -> str:
    """Name another cause, to be mended first, of a loss that would show a carry: a verb and its object; or ""."""
    inputs = [judged.inputs("normal", n) for n in (N // 4, N)]
    lengths = pd.DataFrame([row for each in inputs for row in measure([judged.kernel], each)]).assign(fmt=judged.fmt)
    if coarse(lengths) and judged.fmt != "FP32":  # an FP32 kernel is asked for carries in BF16
        return f"returns numbers of a coarser format than {judged.fmt}, so that a loss says nothing of a carry"
    if factor := scaled(lengths):
        return f"returns {factor:.4g} times attention's output, so that a loss says nothing of a carry"
    again = repeats(judged.kernel, judged.fmt, RUNS, head_dim=judged.head_dim, able=judged.without_gradients())
    if ulps := noisy(pd.DataFrame([again])):
        return f"returns other outputs on each call, up to {ulps:.3g} ulp apart, so that a loss says nothing of a carry"
    return ""


def _relation(judged: CheckedKernel, key: str) -> Result:
    """It keeps a relation that no kernel may break."""
    rows = relate(judged.kernel, key, judged.fmt, judged.head_dim, able=judged.able)
    if all(row["outcome"] == NOT_ASKED for row in rows):
        problems = [row["problem"] for row in rows if row["problem"]]
        return Result(None, f"the kernel {problems[0]}" if problems else "the kernel has no such option")
    table = pd.DataFrame(rows).assign(key=key, fmt=judged.fmt)
    found = tuple(each for each in of_relations(table) if each.what == "relation")
    sentences = _sentences(found)
    if any(each.severity == Severity.FAILS for each in found):
        return Result(False, f"{sentences} Asked because of {RELATIONS[key].source}.")
    if any(each.number is None for each in found):  # NaN
        return Result(None, sentences, reported=True)
    return Result(True, sentences)


def _bound(judged: CheckedKernel) -> Result:
    """No output exceeds its bound by the error of another attention, on any distribution of inputs."""
    found = tuple(of_bound(
        pd.DataFrame(bounds(judged.kernel, judged.fmt, N, 0, judged.head_dim, able=judged.able)), "the kernel"
    ))  # fmt: skip
    if not found:
        return Result(None, "the kernel gives nothing that is finite")
    return Result(all(each.severity != Severity.FAILS for each in found), _sentences(found))


def _alignment(judged: CheckedKernel) -> Result:
    """Its causal mask has one alignment for one query and for several."""
    calls = judged.asked[judged.asked.head_dim == judged.head_dim]
    right = calls[calls.outcome == Outcome.ANSWERED]
    if not {CAUSAL_FEWER, CAUSAL_ONE} <= {*right.asked}:
        return Result(None, "the kernel lacks what this is asked of")
    found = tuple(alignment(calls))
    return Result(not found, _sentences(found))


def conduct_of(conduct: pd.DataFrame) -> Result:
    """Judge what a kernel did beside its work. conduct: the table of `isolated_kernel.IsolatedKernel.conduct`."""
    found = tuple(of_conduct(conduct))
    return Result(all(each.severity != Severity.FAILS for each in found), _sentences(found))


def _sentences(findings: tuple[Finding, ...]) -> str:
    """Join the lines of findings."""
    groups = sentences_of(Judgement("kernel", "", findings)).values()
    return " ".join(one.line for group in groups for one in group)


def _name(kind: str, subject: str) -> str:
    """Make a check's name: "rule_causal_203"."""
    return f"{kind}_{re.sub(r'[^a-z0-9]+', '_', subject.lower())}"


CHECKS: dict[str, Callable[[CheckedKernel], Result]] = {
    **{f"error_{name}": partial(_error, distribution=name) for name in ("uniform", "normal")},
    **{_name("rule", shape): partial(_rule, shape=shape) for shape in QUICK.shapes},
    **{_name("gradients", shape): partial(_gradients, shape=shape) for shape in QUICK.shapes},
    **{f"carry_{what}": partial(_carry, what=what) for what in SUMS},
    **{f"rounding_{what}": partial(_rounding, what=what) for what in ("probs", "output")},
    **{
        "_".join(["answer", asked, *([f"{dim}"] if dim else [])]): partial(_answer, asked=asked, dim=dim)
        for asked, dim in ANSWERS
    },
    **{key: partial(_relation, key=key) for key in RELATIONS},
    "bound": _bound,
    "alignment": _alignment,
}
