"""How good is `fa-lib explain` on other people's reports: `make reports` writes data/reports.csv, and the
score into docs/reports.md."""

import time
from dataclasses import replace

import pandas as pd
import torch
from safetensors import safe_open

from attention_check.conventions.reading import CapturedCall
from attention_check.explain.explain_words import groups
from attention_check.explain.verdict import Explanation, Verdict
from attention_check.public_reports import REPORTS, Report, explained, is_cause
from benchmarks.other_judges import close
from fa_lib import kernels
from fa_lib.execution.files import renewed, replacing
from fa_lib.execution.paths import ROOT
from fa_lib.kernels.rule import ALLOWED, baseline_for
from fa_lib.numerics.formats import Format

PAGE, TABLE = ROOT / "docs" / "reports.md", ROOT / "data" / "reports.csv"
OF_THEN = ROOT / "data" / "old_libraries.safetensors"  # recorded by benchmarks/old_wheels of commit b9d9d80b
MARKS = "<!-- begin: make reports -->", "<!-- end: make reports -->"
COLUMNS = ("thread", "seen", "made_by", "right", "explain", "assert_close", "rule")
TEXT = """\
**Verdict right: {verdicts} of {count}. Cause right, if there is one to name: {causes} of {named}. A next step is
named in {steps}.** It took {seconds:.0f} s of CPU time. `torch.testing.assert_close` with its defaults, and the rule
(at most twice Baseline's largest error), give only two answers. Read as "nothing to fix" or not, assert_close is
right in {close}, the rule in {rule} of {count}."""


def by_rule(call: CapturedCall, golden: torch.Tensor) -> bool:
    """Whether the largest error is within ALLOWED times Baseline's."""
    baseline = baseline_for(Format.of(call.q.dtype))(call.q, call.k, call.v, **call.options)
    allowed = ALLOWED["o"] * (baseline.double() - golden).abs().max()
    return bool((call.o.double() - golden).abs().max() <= allowed)


def others(call: CapturedCall) -> tuple[bool, bool]:
    """Whether `assert_close` passes, with its defaults, and `by_rule`; False where they cannot be asked."""
    try:
        golden = kernels.golden(call.q, call.k, call.v, inputs=Format.of(call.q.dtype), **call.options)
    except ValueError:
        return False, False
    if golden.shape != call.o.shape:
        return False, False
    return close("o", call.o, golden.to(call.o.dtype), None), by_rule(call, golden)


def with_old_library(report: Report, call: CapturedCall) -> tuple[CapturedCall, str | None]:
    """A report's call with the output of the library of then, and its name; as it is and None where there is none."""
    with safe_open(OF_THEN, "pt") as file:
        name = file.metadata().get(report.thread)
        return (replace(call, o=file.get_tensor(report.thread)), name) if name else (call, None)


def next_step(found: Explanation) -> bool:
    """Whether an answer says what to do next: nothing, which option or computation, or where to look."""
    if found.verdict == Verdict.CONVENTION:
        return any(each.selects for each in found.conventions)
    if found.verdict == Verdict.PRECISION:
        return found.arithmetic is not None
    known = found.dialect or found.where or found.dropout or found.nan_rows or found.hidden_nan
    named = bool(known) or found.constant is not None or any(each.change for each in found.others)
    return found.is_rounding or named


def judged() -> tuple[pd.DataFrame, str]:
    """A row for each report, and the score in words."""
    rows, verdicts, causes, steps, close, rule, started = [], 0, 0, 0, 0, 0, time.process_time()
    for report in REPORTS:
        call, made_by = with_old_library(report, report.make())
        found = explained(report.thread, call.o)
        fine, (passes, within) = report.verdict == "rounding", others(call)
        verdicts += found.worst == report.verdict
        steps += found.worst == report.verdict and next_step(found)
        causes += bool(report.cause) and is_cause(report, found)
        close, rule = close + (passes == fine), rule + (within == fine)
        answer = next(text for verdict, (text, *_) in groups(found) if verdict == found.worst)
        mark = "" if found.worst == report.verdict else "**wrong:** "
        cells = report.thread, report.asked, made_by or "a few lines", report.verdict, f"{mark}{found.worst}: {answer}"
        rows.append((*cells, "close" if passes else "differs", "within" if within else "breaks it"))
    named = sum(bool(report.cause) for report in REPORTS)
    score = TEXT.format(
        count=len(REPORTS), verdicts=verdicts, causes=causes, named=named, steps=steps, close=close, rule=rule,
        seconds=time.process_time() - started,
    )  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS), score


if __name__ == "__main__":
    table, score = judged()
    with replacing(TABLE) as path:
        table.to_csv(path, index=False)
    with replacing(PAGE) as path:
        path.write_text(renewed(PAGE.read_text(), *MARKS, score, PAGE.name))
    print(score)
