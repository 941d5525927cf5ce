"""From what was measured of a kernel to its judgement: the checks of a kernel, and their findings."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from attention_check.checks import (
    answers,
    bounds,
    carry,
    conduct,
    errors,
    relations,
    repeats,
    rounding_mode,
    shapes,
)
from attention_check.checks.gross_errors import gross_errors
from attention_check.isolation.worker import Outcome
from attention_check.judge.findings import Finding, Judgement, Severity
from attention_check.measure.contract import ADAPTED
from attention_check.measure.measurements import Measurements
from fa_lib.kernels.kernel_ref import KernelRef


def judge_kernel(kernel: KernelRef | str, found: Measurements) -> Judgement:
    """A kernel, by what was measured of it: it passes where its outputs are attention's and within the rule,
    and it carries no low precision from tile to tile. Where no error could be measured, it is not judged."""
    judged = KernelRef.of(kernel).read_as(*(ADAPTED[key] for key in found.conventions))
    found = replace(found, kernel=judged.key)
    keys = NO_ATTENTION if not found.has_format else CHECKS if len(found.lengths) else NO_ERRORS
    findings = [finding for key in keys for finding in CHECKS[key].judge(found)]
    if not any(f.where[name] for f in findings if f.what == "coverage" for name in ("settings", "shapes")):
        weak = {Severity.PASSES: Severity.REPORTED}  # nothing else that holds makes a kernel pass
        findings = [replace(f, severity=weak.get(f.severity, f.severity)) for f in findings]
    return Judgement("kernel", judged.key, tuple(findings), judged.label)


def on_gpu(found: Measurements) -> Iterator[Finding]:
    """That it ran in the arithmetic of a GPU that is not there."""
    if gpu := KernelRef.of(found.kernel).gpu:
        yield Finding("on_gpu", Severity.REPORTED, dict(gpu=gpu))


def coverage(found: Measurements) -> Iterator[Finding]:
    """How much was judged. settings: of format, inputs, N and queries; shapes: of shape, head_dim and format; each with
    how many were asked for."""
    where = {}
    for name, table, by in (("settings", found.lengths, ["fmt", "distribution", "n", "queries"]),
                            ("shapes", shapes.counted(found), ["shape", "head_dim", "fmt"])):  # fmt: skip
        ran = table[table.outcome == Outcome.ANSWERED] if len(table) else table
        where |= {name: ran.groupby(by).ngroups if len(ran) else 0}
        where |= {f"{name}_of": table.groupby(by).ngroups if len(table) else 0}
    yield Finding("coverage", Severity.REPORTED, where)


class Check(NamedTuple):
    """A question that is asked of a kernel. judge: what was measured -> findings; tables: of Measurements, which it
    reads."""

    judge: Callable[[Measurements], Iterable[Finding]]
    tables: tuple[str, ...]


CHECKS = {  # in the order of their findings
    "conventions": Check(answers.conventions, ("asked",)),
    "conduct": Check(lambda found: conduct.judged(found.conduct), ("conduct",)),
    "gross_errors": Check(gross_errors, ("lengths", "repeats")),
    "carry": Check(carry.judged, ("sums", "lengths", "repeats")),
    "growth": Check(lambda found: errors.growth(found.lengths), ("lengths",)),
    "answer": Check(lambda found: answers.answers(found.asked), ("asked",)),
    "error": Check(lambda found: errors.largest(found.lengths), ("lengths",)),
    "problem": Check(lambda found: errors.problems(found.lengths), ("lengths",)),
    "trouble": Check(lambda found: errors.problems(found.inputs), ("inputs",)),
    "causal": Check(answers.causal, ("asked",)),
    "alignment": Check(lambda found: answers.alignment(found.asked), ("asked",)),
    "precision": Check(answers.less_than_format, ("asked", "lengths")),
    "bound": Check(lambda found: bounds.judged(found.bounds, found.kernel), ("bounds",)),
    "rule": Check(lambda found: shapes.judged(shapes.counted(found)), ("shapes", "asked")),
    "relations": Check(lambda found: relations.judged(found.relations), ("relations",)),
    "bias": Check(lambda found: errors.biased(found.inputs), ("inputs",)),
    "repeats": Check(lambda found: repeats.judged(found.repeats), ("repeats",)),
    "rounding": Check(rounding_mode.judged, ("rounding", "sums", "lengths", "repeats")),
    "on_gpu": Check(on_gpu, ()),
    "coverage": Check(coverage, ("lengths", "shapes", "asked")),
    "unsupported": Check(lambda found: answers.unsupported(found.asked), ("asked",)),
    "not_attention": Check(lambda found: answers.not_attention(found.asked), ("asked",)),
}
NO_ATTENTION = ("conventions", "conduct", "not_attention")  # what is judged of a kernel that has no format
NO_ERRORS = ("conventions", "conduct", "answer", "coverage", "unsupported")  # and of one that has FP64 alone
