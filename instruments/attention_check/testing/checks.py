"""Every check of a kernel as a test: what the page measures, less thoroughly, and judged by the page's checks.

A test has the name of the page's check. Calls and relations have a test each: `answer_softcap`, `causality`."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import pandas as pd

from attention_check.checks.relations import RELATIONS
from attention_check.checks.relations.subject import NOT_ASKED
from attention_check.isolation.worker import UNSUPPORTED, Outcome
from attention_check.judge import kernel as page
from attention_check.judge.findings import Finding, Judgement, Severity
from attention_check.measure.capability import QUESTIONS, UNMASKED
from attention_check.measure.checked_kernel import CheckedKernel
from attention_check.measure.examine import MEASURED
from attention_check.measure.measurements import Measurements
from attention_check.measure.plan import QUICK, CheckPlan
from attention_check.measure.way import way_of
from attention_check.report.labels import label, noted
from attention_check.report.sentences import sentences_of
from fa_lib import kernels
from fa_lib.kernels.kernel_ref import KernelRef

PLAN = CheckPlan(
    lengths=(128, 512), seeds=1, shapes=QUICK.shapes, head_dims=(), troubled_n=512, bias_seeds=1, runs=3,
    related_formats=1,
)  # fmt: skip
JUDGED = ("BF16", "FP16", "FP32")  # the first that a kernel has
UNSEEN = ("carry", "problem")  # findings that say, where they do not count, why nothing was seen


@dataclass(frozen=True)
class Result:
    """The result of one check. passed: None where that was not decided. why: what was found, or why it did not run."""

    passed: bool | None
    why: str = ""


@dataclass(frozen=True)
class NamedCheck:
    """A check of the page, or a part of one.

    Attributes:
        of: the page's, of `judge.kernel.CHECKS`. relation: the one that is asked of `relations`; call: the one of
            `answer` that is judged, (asked, dim).
    """

    of: str
    relation: str = ""
    call: tuple[str, int] = ("", 0)


CHECKS: dict[str, NamedCheck] = {
    **{
        key: NamedCheck(key)
        for key in (
            "error", "problem", "rule", "gross_errors", "trouble", "carry", "rounding", "bound", "alignment",
        )
    },
    **{
        f"answer_{asked}{f'_{dim}' if dim else ''}": NamedCheck("answer", call=(asked, dim))
        for asked, dim in QUESTIONS
    },
    **{key: NamedCheck("relations", relation=key) for key in RELATIONS},
}  # fmt: skip


@dataclass
class TestedKernel:
    """A kernel, and the tables that were measured of it: several checks share them. tables: (name, relation) -> one."""

    checked: CheckedKernel
    tables: dict[tuple[str, str], pd.DataFrame] = field(default_factory=dict)

    def measured(self, check: NamedCheck) -> Measurements:
        """Measure the tables that a check judges."""
        found = Measurements(asked=self.checked.way.asked, kernel="the kernel")
        if check.of == "answer":
            return replace(found, asked=_rows_of(found.asked, *check.call))
        plan = replace(PLAN, relations=(check.relation,) if check.relation else ())
        for name in page.CHECKS[check.of].tables:
            if measure := MEASURED.get(name):
                if (name, check.relation) not in self.tables:
                    self.tables[name, check.relation] = measure(replace(self.checked, plan=plan), found)
                found = replace(found, **{name: self.tables[name, check.relation]})
        return found

    def result(self, check: NamedCheck) -> Result:
        """Judge what was measured, as the page does."""
        found = self.measured(check)
        first = getattr(found, page.CHECKS[check.of].tables[0])
        if not len(first):
            return Result(None, "the kernel lacks what this check needs")
        if "outcome" in first and first.outcome.isin((*UNSUPPORTED, NOT_ASKED)).all():
            return Result(None, f"the kernel {first.problem.iloc[0]}")
        return result(f for f in page.CHECKS[check.of].judge(found) if f.what != "relations")


def _rows_of(asked: pd.DataFrame, call: str, dim: int) -> pd.DataFrame:
    """The rows of a table of `contract` about one call, in every format that it was made in."""
    calls = asked.asked.str.split(" in ").str[0].replace(UNMASKED, "causal")
    return asked[calls.eq(call) & (asked.dim == dim)]


def result_of(check: str, kernel: KernelRef | str | Callable) -> Result:
    """Run a check, a key of CHECKS, on a kernel: a function f(q, k, v, causal=..., scale=...), a KernelRef, or the text
    of one.

    Raises:
        ValueError: there is no such kernel.
        KeyError: there is no such check.
    """
    tested = tested_kernel(kernel)
    return tested if isinstance(tested, Result) else tested.result(CHECKS[check])


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
        return Result(None, told)
    undecided = found and all(each.severity == Severity.REPORTED and each.what in UNSEEN for each in found)
    return Result(None if undecided else True, told)


_TESTED: dict[tuple[str, int], tuple[Callable, TestedKernel | Result]] = {}  # name, id -> a function, `_tested`'s


def tested_kernel(kernel: KernelRef | str | Callable) -> TestedKernel | Result:
    """Return a kernel to test, or what every check of it gives where nothing can be asked, once for each function: a
    name may stand for another function later, and a function need not be hashable."""
    kernel = KernelRef.of(kernel) if isinstance(kernel, str) else kernel
    bare, name = (kernel.bare, kernel.key) if isinstance(kernel, KernelRef) else (kernel, "")
    fn = kernels.get(bare)  # a layout makes a new function each time
    if (name, id(fn)) not in _TESTED:
        _TESTED[name, id(fn)] = fn, _tested(kernel)  # the function is held, so that its id stays its own
    return _TESTED[name, id(fn)][1]


def _tested(kernel) -> TestedKernel | Result:
    way = way_of(kernel)
    for fmt in JUDGED:
        if fmt in way.formats:
            return TestedKernel(replace(CheckedKernel.of(way, PLAN), judged=(fmt,)))
    bad = way.asked[way.asked.outcome != Outcome.ANSWERED].iloc[0]
    what = noted(bad.outcome, bad.note, bad.problem)
    said = f"{', '.join(JUDGED)}: the kernel answers in none of them; in {label(bad.asked, bad.dim)} it {what}"
    return Result(None if way.formats else False, said)  # in FP64 alone: there is nothing to judge it by


def _sentences(findings: Iterable[Finding]) -> str:
    """Join the lines of findings, and of what fails how it is known."""
    groups = sentences_of(Judgement("kernel", "", tuple(findings))).values()
    lines = [(one.line, one.more if one.severity == Severity.FAILS else "") for group in groups for one in group]
    return " ".join(text for line in lines for text in line if text)
