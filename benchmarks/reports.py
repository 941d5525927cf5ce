"""How good is `fa-lib explain` on other people's reports: `make reports` writes docs/reports.md."""

import time
from dataclasses import replace

import torch

from attention_check.conventions.reading import CapturedCall
from attention_check.explain.explain_words import to_text
from attention_check.explain.verdict import Explanation, Verdict
from attention_check.public_reports import REPORTS, Report, explained, is_cause
from benchmarks.old_wheels import wheels
from fa_lib import kernels
from fa_lib.execution.files import replacing
from fa_lib.execution.machine import processor
from fa_lib.execution.paths import ROOT
from fa_lib.kernels.rule import ALLOWED, baseline_for
from fa_lib.numerics.formats import Format

PAGE = ROOT / "docs" / "reports.md"
TEXT = """<!-- written by `make reports`: do not edit -->
# Public reports, explained

This page shows how `fa-lib explain` ([documentation](reference/explain.md)) judges {count} public reports in which
attention differs. **These reports were at hand while `explain` was written, so the score below is in-sample.** Of 28
others, tried in November 2026, the first natural command gave the right verdict for 19 and the right cause for 4; no
right output was called a BUG. Five of the 28 are kept back as an examination.

**Verdict right: {verdicts} of {count}. Cause right, if there is one to name: {causes} of {named}. A next step is
named in {steps}.** It took {seconds:.0f} s of CPU time. `torch.testing.assert_close` with its defaults, and the rule
(at most twice Baseline's largest error), give only two answers. Read as "nothing to fix" or not, assert_close is
right in {close}, the rule in {rule} of {count}.

The tensors of each report are made again: by the library of its time, if it installs and shows the fault on a CPU
({real} of them, on {processor}), else by the same call or with the defect in a few lines. The right answer is the
maintainers', or our reading if a thread has none. The last two columns compare with the golden value in the output's
dtype, and with the rule.

| thread | what was seen | made by | right answer | `explain` | assert_close | rule of two |
|---|---|---|---|---|---|---|
{rows}

"""


def by_assert_close(call: CapturedCall, golden: torch.Tensor) -> bool:
    """Whether `assert_close` passes, with its defaults."""
    try:
        torch.testing.assert_close(call.o, golden.to(call.o.dtype))
    except AssertionError:
        return False
    return True


def by_rule(call: CapturedCall, golden: torch.Tensor) -> bool:
    """Whether the largest error is within ALLOWED times Baseline's."""
    baseline = baseline_for(Format.of(call.q.dtype))(call.q, call.k, call.v, **call.options)
    allowed = ALLOWED["o"] * (baseline.double() - golden).abs().max()
    return bool((call.o.double() - golden).abs().max() <= allowed)


def others(call: CapturedCall) -> tuple[bool, bool]:
    """`by_assert_close` and `by_rule`; False where they cannot be asked."""
    try:
        golden = kernels.golden(call.q, call.k, call.v, inputs=Format.of(call.q.dtype), **call.options)
    except ValueError:
        return False, False
    if golden.shape != call.o.shape:
        return False, False
    return by_assert_close(call, golden), by_rule(call, golden)


def with_old_library(report: Report, call: CapturedCall) -> tuple[CapturedCall, str | None]:
    """A report's call with the output of the library of then, and its name; as it is and None where there is none."""
    if report.thread not in wheels.LIBRARIES:
        return call, None
    try:
        return replace(call, o=wheels.output(report.thread, call)), wheels.name(report.thread)
    except wheels.CannotRun as error:
        print(f"{report.thread}: {wheels.name(report.thread)} does not run here: {error}")
        return call, None


def next_step(found: Explanation) -> bool:
    """Whether an answer says what to do next: nothing, which option or computation, or where to look."""
    if found.verdict == Verdict.CONVENTION:
        return any(each.selects for each in found.conventions)
    if found.verdict == Verdict.PRECISION:
        return found.arithmetic is not None
    known = found.dialect or found.where or found.dropout or found.nan_rows or found.hidden_nan
    named = bool(known) or found.constant is not None or any(each.change for each in found.others)
    return found.is_rounding or named


def document() -> str:
    """docs/reports.md, from all reports."""
    rows, verdicts, causes, steps, close, rule, real, started = [], 0, 0, 0, 0, 0, 0, time.process_time()
    for report in REPORTS:
        call, made_by = with_old_library(report, report.make())
        real += made_by is not None
        found = explained(report.thread, call.o)
        fine, (passes, within) = report.verdict == "rounding", others(call)
        verdicts += found.worst == report.verdict
        steps += found.worst == report.verdict and next_step(found)
        causes += bool(report.cause) and is_cause(report, found)
        close, rule = close + (passes == fine), rule + (within == fine)
        words = to_text(found)
        answers = [(words.verdict, [words.headline]), *words.beside]
        answer = next(text for verdict, (text, *_) in answers if verdict == found.worst).replace("|", "\\|")
        mark = "" if found.worst == report.verdict else "**wrong:** "
        cells = report.thread, report.asked, made_by or "a few lines", report.verdict, f"{mark}{found.worst}: {answer}"
        cells = *cells, "close" if passes else "differs", "within" if within else "breaks it"
        rows.append(f"| {' | '.join(cells)} |")
    named = sum(bool(report.cause) for report in REPORTS)
    return TEXT.format(
        rows="\n".join(rows), count=len(REPORTS), verdicts=verdicts, causes=causes, named=named, steps=steps,
        close=close, rule=rule, real=real, processor=processor(), seconds=time.process_time() - started,
    )  # fmt: skip


if __name__ == "__main__":
    text = document()
    with replacing(PAGE) as path:
        path.write_text(text)
    print(text.split("**")[3])
