"""Every check of a kernel by name: what it measures of a kernel, and which judge of the page judges that."""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from attention_check.isolation.worker import UNSUPPORTED, Outcome
from attention_check.judge import errors
from attention_check.judge.bound import of_bound
from attention_check.judge.conduct import of_conduct
from attention_check.judge.errors import over_shapes
from attention_check.judge.findings import Finding, Judgement, Severity
from attention_check.judge.gross_errors import of_wrong
from attention_check.judge.kernel import alignment, answers, of_casts, of_sums
from attention_check.judge.relations import of_relations
from attention_check.measure.bounds import bounds
from attention_check.measure.capability import (
    CAPABILITIES,
    CAUSAL_FEWER,
    CAUSAL_ONE,
    FORMATS,
    GRADIENTS,
    GRADIENTS_AT,
    GRADIENTS_WITH,
    HEAD_DIM,
    HEAD_DIMS,
    LARGE,
    SINKS_GRADIENT,
    Capabilities,
)
from attention_check.measure.carry import SUMS
from attention_check.measure.contract import OTHER_LAYOUT, formats
from attention_check.measure.determinism import repeats
from attention_check.measure.draws import OF_LENGTHS, OF_SHAPES, drawn_again
from attention_check.measure.examine import measure
from attention_check.measure.measurements import Measurements
from attention_check.measure.plan import QUICK
from attention_check.measure.reference_cache import ORDINARY, TROUBLE
from attention_check.measure.relations import RELATIONS, relate
from attention_check.measure.relations.subject import NOT_ASKED
from attention_check.measure.rounding_mode import rounding_mode
from attention_check.measure.shapes import measure_shapes
from attention_check.measure.way import way_of
from attention_check.report.capability_labels import label
from attention_check.report.sentences import sentences_of
from attention_check.report.sentences_kernel import noted
from attention_check.testing.checked import CheckedKernel, MeasuredAndJudged, Result
from fa_lib import kernels
from fa_lib.kernels.inputs import UNEVEN
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.kernels.rule import ALLOWED

N = 512  # keys that errors are measured at
RUNS = 3  # of a call, for noise
JUDGED = ("BF16", "FP16", "FP32")  # the first that a kernel has
UNSEEN = ("carry", "problem")  # findings that say, where they do not count, why nothing was seen
ANSWERS = (  # (asked, dim) of `contract`
    *((f"{fmt}", 0) for fmt in FORMATS),
    *((each.key, each.call.head_dim or 0 if each.key == HEAD_DIM else 0) for each in CAPABILITIES),
    (LARGE.key, 0),
    (GRADIENTS, 0),
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
    judged = judged_kernel(kernel)
    if isinstance(judged, Result):
        return judged
    found = CHECKS[check].measure(judged)
    return found if isinstance(found, Result) else result(CHECKS[check].judge(found))


def result(findings: Iterable[Finding]) -> Result:
    """What findings of the page's judge mean for a check: it fails where one fails; it is undecided where all that was
    found is why nothing was seen, or a NaN that does not count; else it passes."""
    found = tuple(findings)
    fails = [each for each in found if each.severity == Severity.FAILS]
    told = _sentences(fails or found)
    if fails:
        sources = dict.fromkeys(RELATIONS[each.where["relation"]].source for each in fails if each.what == "relation")
        return Result(False, " ".join([told, *(f"Asked because of {source}." for source in sources)]))
    if any(each.what == "relation" and each.number is None for each in found):
        return Result(None, told, reported=True)
    undecided = found and all(each.severity == Severity.REPORTED and each.what in UNSEEN for each in found)
    return Result(None if undecided else True, told)


_JUDGED: dict[
    tuple[str, int], tuple[Callable, CheckedKernel | Result]
] = {}  # name and id of a function -> it, `_judge`'s


def judged_kernel(kernel: KernelRef | str | Callable) -> CheckedKernel | Result:
    """Return what is asked of a kernel, or what every check of it gives where nothing can be, computed once for each
    function: a name may stand for another function later, and a function need not be hashable."""
    kernel = KernelRef.of(kernel) if isinstance(kernel, str) else kernel
    bare, name = (kernel.bare, kernel.key) if isinstance(kernel, KernelRef) else (kernel, "")
    fn = kernels.get(bare)  # a layout makes a new function each time
    if (name, id(fn)) not in _JUDGED:
        _JUDGED[name, id(fn)] = fn, _judge(kernel)  # the function is held, so that its id stays its own
    return _JUDGED[name, id(fn)][1]


def _judge(kernel) -> CheckedKernel | Result:
    way = way_of(kernel, follow=[OTHER_LAYOUT])
    table = way.asked
    answered = formats(table[table.head_dim == way.head_dim])
    for fmt in JUDGED:
        if fmt in answered:
            return CheckedKernel(way.kernel, fmt, way.head_dim, way.able, table)
    bad = table[table.outcome != Outcome.ANSWERED].iloc[0]
    what = noted(bad.outcome, bad.note, bad.problem)
    said = f"{', '.join(JUDGED)}: the kernel answers in none of them; in {label(bad.asked, bad.dim)} it {what}"
    return Result(None if answered else False, said)  # in FP64 alone: there is nothing to judge it by


def _measured(**tables: pd.DataFrame) -> Measurements | Result:
    """Tables of calls, or that the kernel refused all of them."""
    outcomes = pd.concat([each[["outcome", "problem"]] for each in tables.values()])
    if outcomes.outcome.isin(UNSUPPORTED).all():
        return Result(None, f"the kernel {outcomes.problem.iloc[0]}")
    return Measurements(**tables)


def _answer(judged: CheckedKernel, asked: str, dim: int) -> Measurements | Result:
    """A call: an option, a length, a head_dim, gradients; at another head_dim, too, if it was at fault there."""
    rows = judged.asked[(judged.asked.asked == asked) & (judged.asked.dim == dim)]
    if not len(rows):
        return Result(None, "the kernel lacks what this is asked of")
    return _measured(asked=rows)


def _shapes(judged: CheckedKernel, shape: str, able: Capabilities, seeds: Iterable[int] = (0,)) -> pd.DataFrame:
    at: dict[str, Any] = dict(shape=shape, head_dim=judged.head_dim, fmt=judged.fmt)
    call = partial(measure_shapes, distribution="normal", kernel=judged.kernel, able=able)
    return pd.DataFrame([row | at | dict(seed=seed) for seed in seeds for row in call(seed=seed, **at)])


def _gradients(judged: CheckedKernel, shape: str) -> Measurements | Result:
    """Gradients at a shape."""
    if not judged.able.gradients:
        return Result(None, "the kernel has no gradients")
    rows = _shapes(judged, shape, judged.able)
    rows = rows[(rows.tensor != "o") | (rows.outcome != Outcome.ANSWERED)]
    return _measured(shapes=rows) if len(rows) else Result(None, "the kernel has no gradients of this")


def _rule(judged: CheckedKernel, shape: str) -> Measurements | Result:
    """Outputs at a shape of `rule.CALLS`, drawn again where one breaks the rule."""
    able = judged.without_gradients()
    return _measured(shapes=drawn_again(
        _shapes(judged, shape, able), OF_SHAPES, ALLOWED["o"], lambda _, seeds: _shapes(judged, shape, able, seeds)
    ))  # fmt: skip


def _lengths(judged: CheckedKernel, distribution: str, n: int, seeds: Iterable[int] = (0,)) -> pd.DataFrame:
    at = dict(fmt=judged.fmt, distribution=distribution, n=n)
    return pd.DataFrame([
        row | at | dict(seed=seed)
        for seed in seeds for row in measure([judged.kernel], judged.inputs(distribution, n, seed))
    ])  # fmt: skip


def _error(judged: CheckedKernel, distribution: str) -> Measurements | Result:
    """Outputs of N keys, drawn again where one breaks the rule."""
    return _measured(lengths=drawn_again(
        _lengths(judged, distribution, N), OF_LENGTHS, ALLOWED["o"],
        lambda _, seeds: _lengths(judged, distribution, N, seeds),
    ))  # fmt: skip


def _gross_errors(judged: CheckedKernel) -> Measurements | Result:
    """What shows a factor, other outputs on each call, or a coarser format."""
    lengths = pd.concat([_lengths(judged, each, n) for each in ORDINARY for n in (N // 4, N)], ignore_index=True)
    again = repeats(judged.kernel, judged.fmt, RUNS, head_dim=judged.head_dim, able=judged.without_gradients())
    found = _measured(lengths=lengths)
    return found if isinstance(found, Result) else replace(found, repeats=pd.DataFrame([again]))


def _trouble(judged: CheckedKernel) -> Measurements | Result:
    """Inputs that make trouble."""
    names = [each for each in TROUBLE if each != UNEVEN or not judged.able.top_left]
    return _measured(inputs=pd.concat([_lengths(judged, each, N // 4) for each in names], ignore_index=True))


def _carry(judged: CheckedKernel) -> Measurements | Result:
    """Sums that only a carry of more bits than the format has can hold; where they are lost, what else could do it."""
    if all(each.severity != Severity.FAILS for each in of_sums(judged.sums, ())):
        return Measurements(sums=judged.sums)
    found = _gross_errors(judged)
    return Measurements(sums=judged.sums) if isinstance(found, Result) else replace(found, sums=judged.sums)


def _casts(judged: CheckedKernel, what: str) -> Measurements | Result:
    """How a cast rounds, and sums, which round the output if they are carried in its format."""
    if judged.fmt == "FP32":
        return Result(None, "the kernel has neither BF16 nor FP16")
    rows = pd.DataFrame(rounding_mode(judged.kernel, judged.fmt, judged.head_dim, judged.able.causal))
    rows = rows[(rows.what == what) & (rows["mode"] != "not_seen")]
    if not len(rows):
        return Result(None, "the kernel shows no such cast")
    return Measurements(rounding=rows, sums=judged.sums)


def _relation(judged: CheckedKernel, key: str) -> Measurements | Result:
    """A relation that no kernel may break."""
    rows = relate(judged.kernel, key, judged.fmt, judged.head_dim, able=judged.able)
    if all(row["outcome"] == NOT_ASKED for row in rows):
        problems = [row["problem"] for row in rows if row["problem"]]
        return Result(None, f"the kernel {problems[0]}" if problems else "the kernel has no such option")
    return Measurements(relations=pd.DataFrame(rows).assign(key=key, fmt=judged.fmt))


def _bounds(judged: CheckedKernel) -> Measurements | Result:
    """Outputs beside their bounds, on every distribution of inputs."""
    rows = bounds(judged.kernel, judged.fmt, N, 0, judged.head_dim, able=judged.able)
    return Measurements(bounds=pd.DataFrame(rows)) if rows else Result(None, "the kernel gives nothing that is finite")


def _alignments(judged: CheckedKernel) -> Measurements | Result:
    """Causal calls of one query and of several."""
    right = judged.asked[judged.asked.outcome == Outcome.ANSWERED]
    if not {CAUSAL_FEWER, CAUSAL_ONE} <= {*right.asked}:
        return Result(None, "the kernel lacks what this is asked of")
    return Measurements(asked=right)


def conduct_of(conduct: pd.DataFrame) -> Result:
    """Judge what a kernel did beside its work. conduct: the table of `isolated_kernel.IsolatedKernel.conduct`."""
    return result(of_conduct(conduct))


def _sentences(findings: Iterable[Finding]) -> str:
    """Join the lines of findings, and of what fails how it is known."""
    groups = sentences_of(Judgement("kernel", "", tuple(findings)))
    lines = [
        (one.line, one.more if severity == Severity.FAILS else "") for severity in groups for one in groups[severity]
    ]
    return " ".join(text for line in lines for text in line if text)


def _name(kind: str, subject: str) -> str:
    """Make a check's name: "rule_causal_203"."""
    return f"{kind}_{re.sub(r'[^a-z0-9]+', '_', subject.lower())}"


def _carries(found: Measurements, what: str) -> list[Finding]:
    wrong = [*of_wrong(found.lengths, found.repeats)]
    return [each for each in of_sums(found.sums, wrong) if each.where.get("sum", what) == what]


def _errors(found: Measurements) -> list[Finding]:
    return [*errors.largest(found.lengths), *errors.problems(found.lengths)]


CHECKS: dict[str, MeasuredAndJudged] = {
    **{f"error_{name}": MeasuredAndJudged(partial(_error, distribution=name), _errors) for name in ORDINARY},
    **{
        _name(kind, shape): MeasuredAndJudged(partial(measure_at, shape=shape), lambda found: over_shapes(found.shapes))
        for kind, measure_at in (("rule", _rule), ("gradients", _gradients)) for shape in QUICK.shapes
    },
    "gross_errors": MeasuredAndJudged(_gross_errors, lambda found: of_wrong(found.lengths, found.repeats)),
    "trouble": MeasuredAndJudged(_trouble, lambda found: errors.problems(found.inputs)),
    **{f"carry_{what}": MeasuredAndJudged(_carry, partial(_carries, what=what)) for what in SUMS},
    **{
        f"rounding_{what}": MeasuredAndJudged(
            partial(_casts, what=what), lambda found: of_casts(found.rounding, found.sums)
        ) for what in ("probs", "output")
    },
    **{
        "_".join(["answer", asked, *([f"{dim}"] if dim else [])]): MeasuredAndJudged(
            partial(_answer, asked=asked, dim=dim), lambda found: answers(found.asked)
        ) for asked, dim in ANSWERS
    },
    **{
        key: MeasuredAndJudged(
            partial(_relation, key=key),
            lambda found: [each for each in of_relations(found.relations) if each.what == "relation"],
        ) for key in RELATIONS
    },
    "bound": MeasuredAndJudged(_bounds, lambda found: of_bound(found.bounds, "the kernel")),
    "alignment": MeasuredAndJudged(_alignments, lambda found: alignment(found.asked)),
}  # fmt: skip
