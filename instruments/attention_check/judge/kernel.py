"""From what was measured of a kernel to its judgement."""

from dataclasses import replace

from attention_check.judge.findings import Judgement, Severity
from attention_check.judge.tables import CHECKS, NO_ATTENTION, NO_ERRORS
from attention_check.measure.contract import ADAPTED
from attention_check.measure.measurements import Measurements
from fa_lib.kernels.kernel_ref import KernelRef


def judge_kernel(kernel: KernelRef | str, found: Measurements) -> Judgement:
    """A kernel, by what was measured of it: it passes where its outputs are attention's and within the rule,
    and it carries no low precision from tile to tile. Where no error could be measured, it is not judged. A kernel
    that follows another convention is judged under it."""
    judged = KernelRef.of(kernel).read_as(*(ADAPTED[key] for key in found.conventions))
    found = replace(found, kernel=judged.key)
    keys = NO_ATTENTION if not found.has_format else CHECKS if len(found.lengths) else NO_ERRORS
    findings = [finding for key in keys for finding in CHECKS[key].judge(found)]
    if not any(f.where[name] for f in findings if f.what == "coverage" for name in ("settings", "shapes")):
        weak = {Severity.PASSES: Severity.REPORTED}  # nothing else that holds makes a kernel pass
        findings = [replace(f, severity=weak.get(f.severity, f.severity)) for f in findings]
    return Judgement("kernel", judged.key, tuple(findings), judged.label)
