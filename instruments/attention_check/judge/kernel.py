"""From the tables of a kernel's check to findings: what holds, where, by what number and limit, and no sentence."""

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from attention_check.checks import CHECKS
from attention_check.isolation.worker import Outcome
from attention_check.judge.findings import Finding, Judgement, Severity
from attention_check.judge.tables import answers, counted_shapes, not_attention, of_conduct, unsupported
from attention_check.measure.contract import OTHER_LAYOUT, adapted, formats
from attention_check.measure.measurements import Measurements
from attention_check.measure.way import TAKES
from fa_lib.kernels.kernel_ref import KernelRef


def judge_kernel(kernel: KernelRef | str, found: Measurements) -> Judgement:
    """A kernel, by what was measured of it: it passes where its outputs are attention's and within the rule,
    and it carries no low precision from tile to tile. Where no error could be measured, it is not judged. A kernel
    that follows another convention is judged under it."""
    judged, lengths = adapted(KernelRef.of(kernel), found.conventions), found.lengths
    lengths = lengths[lengths.kernel == judged.key] if len(lengths) else lengths
    found = replace(found, kernel=judged.key, lengths=lengths)
    if not formats(found.asked):
        findings = [*not_attention(found.asked)]
    elif not len(lengths):
        only = Finding("only_fp64", Severity.REPORTED)
        findings = [*answers(found.asked), only, *unsupported(found.asked)]
    else:
        covered = coverage(lengths, counted_shapes(found))
        findings = [finding for check in CHECKS.values() for finding in check.judge(found)]
        findings += [*_on_gpu(judged), covered, *unsupported(found.asked)]
        if not any(covered.where[name] for name in ("settings", "shapes")):
            weak = {Severity.PASSES: Severity.REPORTED}  # nothing else that holds makes a kernel pass
            findings = [replace(f, severity=weak.get(f.severity, f.severity)) for f in findings]
    findings = [*_conventions(found.conventions), *of_conduct(found.conduct), *findings]
    return Judgement("kernel", judged.key, tuple(findings), judged.label)


def _conventions(keys) -> Iterator[Finding]:
    """Another convention is another answer, but for a layout of all tensors: a caller has to know that one anyway, and
    which calls it takes."""
    followed = tuple(key for key in keys if key not in TAKES)
    if followed:
        severity = Severity.REPORTED if followed == (OTHER_LAYOUT,) else Severity.FAILS
        yield Finding("convention", severity, dict(keys="+".join(followed)))
    for key in keys:
        if key in TAKES:
            yield Finding("takes", Severity.REPORTED, dict(key=key))


def _on_gpu(kernel):
    """That it ran in the arithmetic of a GPU that is not there."""
    if kernel.gpu:
        yield Finding("on_gpu", Severity.REPORTED, dict(gpu=kernel.gpu))


def coverage(lengths: pd.DataFrame, shapes: pd.DataFrame) -> Finding:
    """How much was judged. settings: of format, inputs, N and queries; shapes: of shape, head_dim and format; each with
    how many were asked for."""
    where = {}
    for name, table, by in (("settings", lengths, ["fmt", "distribution", "n", "queries"]),
                            ("shapes", shapes, ["shape", "head_dim", "fmt"])):  # fmt: skip
        ran = table[table.outcome == Outcome.ANSWERED] if len(table) else table
        where |= {name: ran.groupby(by).ngroups if len(ran) else 0}
        where |= {f"{name}_of": table.groupby(by).ngroups if len(table) else 0}
    return Finding("coverage", Severity.REPORTED, where)
