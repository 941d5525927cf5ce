"""Every check of a kernel by name: a part of what the page measures, judged by the page's checks."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from attention_check.checks import conduct
from attention_check.checks.carry import SUMS
from attention_check.checks.relations import RELATIONS
from attention_check.checks.relations.subject import NOT_ASKED
from attention_check.isolation.isolated_kernel import LIMIT_S, IsolatedKernel, isolated, wait
from attention_check.isolation.worker import UNSUPPORTED, Outcome
from attention_check.judge import kernel as page
from attention_check.judge.findings import Finding, Judgement, Severity
from attention_check.measure.capability import CAUSAL_FEWER, CAUSAL_ONE, QUESTIONS, UNMASKED
from attention_check.measure.checked_kernel import CheckedKernel
from attention_check.measure.contract import OTHER_LAYOUT
from attention_check.measure.examine import MEASURED
from attention_check.measure.measurements import Measurements
from attention_check.measure.plan import QUICK, CheckPlan
from attention_check.measure.reference_cache import ORDINARY
from attention_check.measure.way import way_of
from attention_check.report.labels import label, noted
from attention_check.report.sentences import sentences_of
from fa_lib import kernels
from fa_lib.execution.untrusted import Untrusted
from fa_lib.kernels.kernel_ref import KernelRef

PLAN = CheckPlan(
    lengths=(128, 512), seeds=1, shapes=(), head_dims=(), troubled_n=128, bias_seeds=1, runs=3, related_formats=1
)
JUDGED = ("BF16", "FP16", "FP32")  # the first that a kernel has
UNSEEN = ("carry", "problem")  # findings that say, where they do not count, why nothing was seen


@dataclass(frozen=True)
class Result:
    """The result of one check.

    Attributes:
        passed: None where that was not decided. why: what was found, or why the check did not run.
        reported: the check ran, and what it found does not count: NaN, where many kernels give it.
    """

    passed: bool | None
    why: str = ""
    reported: bool = False


@dataclass(frozen=True)
class NamedCheck:
    """A check by its name: a part of checks of the page.

    Attributes:
        of: keys of `judge.kernel.CHECKS`, which judge it.
        plan: what is measured otherwise than in PLAN.
        rows: which rows of the first table are judged. lacking: what the kernel lacks where there are none.
        counts: whether a finding is this check's.
    """

    of: Sequence[str]
    plan: Mapping[str, Any] = field(default_factory=dict)
    rows: Callable[[pd.DataFrame], pd.DataFrame] = lambda table: table
    lacking: str = "the kernel lacks what this check needs"
    counts: Callable[[Finding], bool] = lambda finding: True

    @property
    def tables(self) -> list[str]:
        """The tables that are judged, of `measure.examine.MEASURED`, or that comes with the kernel."""
        return [*dict.fromkeys(name for key in self.of for name in page.CHECKS[key].tables)]

    def measure(self, checked: CheckedKernel) -> Measurements | Result:
        """Measure the tables; a Result where the kernel lacks what they are of."""
        narrow = replace(checked, plan=replace(PLAN, **self.plan))
        found = Measurements(asked=checked.way.asked, kernel="the kernel")
        for name in self.tables:
            if measured := MEASURED.get(name):
                key = (name, narrow.plan)
                if key not in checked.kept:
                    checked.kept[key] = measured(narrow, found)
                found = replace(found, **{name: checked.kept[key]})
        first = getattr(found, self.tables[0])
        rows = self.rows(first) if len(first) else first
        if len(rows) and not ("outcome" in rows and rows.outcome.isin((*UNSUPPORTED, NOT_ASKED)).all()):
            return replace(found, **{self.tables[0]: rows})
        problems = [problem for problem in rows.problem if problem] if len(rows) else []
        return Result(None, f"the kernel {problems[0]}" if problems else self.lacking)

    def judge(self, found: Measurements) -> list[Finding]:
        """Judge the tables, as the page does."""
        return [finding for key in self.of for finding in page.CHECKS[key].judge(found) if self.counts(finding)]


def result_of(check: str, kernel: KernelRef | str | Callable) -> Result:
    """Run a check, a key of CHECKS, on a kernel: a function f(q, k, v, causal=..., scale=...), a KernelRef, or the text
    of one.

    Raises:
        ValueError: there is no such kernel.
        KeyError: there is no such check.
    """
    checked = judged_kernel(kernel)
    if isinstance(checked, Result):
        return checked
    found = CHECKS[check].measure(checked)
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


_JUDGED: dict[tuple[str, int], tuple[Callable, CheckedKernel | Result]] = {}  # name, id -> a function, `_judge`'s


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
    for fmt in JUDGED:
        if fmt in way.formats:
            checked = CheckedKernel.of(way, PLAN)
            return replace(checked, judged=(fmt,))
    bad = way.asked[way.asked.outcome != Outcome.ANSWERED].iloc[0]
    what = noted(bad.outcome, bad.note, bad.problem)
    said = f"{', '.join(JUDGED)}: the kernel answers in none of them; in {label(bad.asked, bad.dim)} it {what}"
    return Result(None if way.formats else False, said)  # in FP64 alone: there is nothing to judge it by


def _both_alignments(asked: pd.DataFrame) -> pd.DataFrame:
    """The answered rows of a table of `contract`; none unless causal calls of one query and of several are there."""
    right = asked[asked.outcome == Outcome.ANSWERED]
    return right if {CAUSAL_FEWER, CAUSAL_ONE} <= {*right.asked} else right[:0]


def _sentences(findings: Iterable[Finding]) -> str:
    """Join the lines of findings, and of what fails how it is known."""
    groups = sentences_of(Judgement("kernel", "", tuple(findings))).values()
    lines = [(one.line, one.more if one.severity == Severity.FAILS else "") for group in groups for one in group]
    return " ".join(text for line in lines for text in line if text)


def _name(kind: str, subject: str) -> str:
    """Make a check's name: "rule_causal_203"."""
    return f"{kind}_{re.sub(r'[^a-z0-9]+', '_', subject.lower())}"


CHECKS: dict[str, NamedCheck] = {
    **{
        f"error_{name}": NamedCheck(
            ("error", "problem"), rows=lambda table, name=name: table[table.distribution == name],
        ) for name in ORDINARY
    },
    **{
        _name("rule", shape): NamedCheck(
            ("rule",), dict(shapes=(shape,)), rows=lambda table: table[table.tensor == "o"],
        ) for shape in QUICK.shapes
    },
    **{
        _name("gradients", shape): NamedCheck(
            ("rule",), dict(shapes=(shape,)),
            rows=lambda table: table[(table.tensor != "o") | (table.outcome != Outcome.ANSWERED)],
            lacking="the kernel has no gradients of this",
        ) for shape in QUICK.shapes
    },
    "gross_errors": NamedCheck(("gross_errors",)),
    "trouble": NamedCheck(("trouble",)),
    **{
        f"carry_{what}": NamedCheck(
            ("carry",), counts=lambda finding, what=what: finding.where.get("sum", what) == what
        ) for what in SUMS
    },
    **{
        f"rounding_{what}": NamedCheck(
            ("rounding",), lacking="the kernel shows no such cast",
            rows=lambda table, what=what: table[(table.what == what) & (table["mode"] != "not_seen")],
        ) for what in ("probs", "output")
    },
    **{
        "_".join(["answer", asked, *([f"{dim}"] if dim else [])]): NamedCheck(
            ("answer",),
            rows=lambda table, asked=asked, dim=dim: table[
                table.asked.str.split(" in ").str[0].replace(UNMASKED, "causal").eq(asked) & (table.dim == dim)
            ],
        ) for asked, dim in QUESTIONS
    },
    **{
        key: NamedCheck(
            ("relations",), dict(relations=(key,)),
            lacking="the kernel has no such option", counts=lambda finding: finding.what == "relation",
        ) for key in RELATIONS
    },
    "bound": NamedCheck(
        ("bound",), dict(troubled_n=max(PLAN.lengths)), lacking="the kernel gives nothing that is finite",
    ),
    "alignment": NamedCheck(("alignment",), rows=_both_alignments),
}  # fmt: skip


def chosen(names: Sequence[str]) -> list[str]:
    """Find keys of CHECKS. names: each is a check's name, the first word of a kind of checks, as `carry`, or a word in
    names, as `softcap`.

    Raises:
        ValueError: there is no such check.
    """
    found: list[str] = []
    for name in names:
        own = [check for check in CHECKS if check == name or check.startswith(f"{name}_")]
        own = own or [check for check in CHECKS if f"_{name}_" in f"_{check}_"]
        if not own:
            raise ValueError(f"check: got {name!r}; accepted are {', '.join(CHECKS)}, or words of these")
        found += own
    return list(dict.fromkeys(found))


def check_named(kernel: KernelRef | str, names: Sequence[str], timeout: float = LIMIT_S) -> dict[str, Result]:
    """Run checks on a kernel, on the CPU.

    Args:
        kernel: a KernelRef, or the text of one. names: as of `chosen`. timeout: seconds that a call may take, in the
            kernel's process.

    Returns:
        dict: check -> Result; with "conduct" where the kernel has a separate process.

    Raises:
        ValueError: there is no such check, or no such kernel.
    """
    checks = chosen(names)
    with isolated(KernelRef.of(kernel), timeout) as subject:
        wait(subject)
        found = {check: result_of(check, subject) for check in checks}
        if isinstance(fn := subject.fn, IsolatedKernel):
            found["conduct"] = result(conduct.judged(fn.conduct()))
        return found


def failed(results: Mapping[str, Result]) -> bool | None:
    """Say whether a check failed; None where none was decided."""
    decided = [result.passed for result in results.values() if result.passed is not None]
    return None if not decided else not all(decided)


OUTCOMES = {  # passed and reported of a Result -> in the count, and in a line
    (True, False): ("passed", "passes"), (False, False): ("failed", "FAILS"),
    (None, True): ("reported", "reported, does not count"), (None, False): ("not run", "not run"),
}  # fmt: skip


def check_lines(label: str, results: Mapping[str, Result]) -> list[str]:
    """Write how many of the checks passed, then a line for each."""
    words = {check: OUTCOMES[result.passed, result.reported] for check, result in results.items()}
    past = [word for word, _ in words.values()]
    counts = [f"{past.count(word)} {word}" for word, _ in OUTCOMES.values() if word in past]
    lines = [f"{label}: {len(words)} check{'s' * (len(words) > 1)}: {', '.join(counts)}."]
    for check, result in results.items():
        lines.append(f"  {check}: {words[check][1]}{f': {result.why}' if result.why else ''}")
    return [Untrusted(line) for line in lines]
