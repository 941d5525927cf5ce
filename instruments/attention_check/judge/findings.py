"""What a check finds, without words: sentences, pages, JSON, figures' titles and exit codes are made from it."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum

GONE = {  # findings and relations of older records
    "permutation", "permuted_keys", "packed_sequences", "two_runs", "rounded_splits", "sum_error", "gradient_sums",
}  # fmt: skip


class Severity(StrEnum):
    """What a finding means for the judgement."""

    FAILS = "fails"
    REPORTED = "reported"  # and not counted
    PASSES = "passes"


class Verdict(StrEnum):
    """What a judgement comes to."""

    PASSES = "passes"
    FAILS = "fails"
    NOT_JUDGED = "not_judged"  # nothing was measured that could pass or fail


@dataclass(frozen=True)
class Finding:
    """One thing that a check has found.

    Attributes:
        what: a key; `sentences.WORDINGS` has a sentence for each.
        severity: a Severity.
        where: numbers and keys that say of what: fmt, n, distribution, layer, ...
        number: what was measured; None where there is none, or it is not finite.
        limit: up to which the number passes; None where nothing is limited.
    """

    what: str
    severity: Severity
    where: dict = field(default_factory=dict)
    number: float | None = None
    limit: float | None = None

    def __post_init__(self):
        """All of it as JSON can hold it, whatever library it comes from."""
        for name in ("number", "limit"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None or not math.isfinite(value) else float(value))
        object.__setattr__(self, "where", {name: _plain(x) for name, x in self.where.items()})


@dataclass(frozen=True)
class Judgement:
    """What is judged, and what was found.

    Attributes:
        kind: "kernel", "tensors" or "model". subject: its name, a kernel's key. findings: the gravest first.
        label: the subject as readers know it; "": they know it by that name.
    """

    kind: str
    subject: str
    findings: tuple[Finding, ...]
    label: str = ""

    def __post_init__(self):
        object.__setattr__(self, "label", self.label or self.subject)

    @classmethod
    def of(cls, record: Mapping) -> "Judgement":
        """The Judgement of a `record`.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        findings = [Finding(**each | dict(severity=Severity(each["severity"]))) for each in record["findings"]
                    if not {each["what"], each["where"].get("relation")} & GONE]  # fmt: skip
        return cls(record["kind"], record["subject"], tuple(findings), record.get("label", ""))

    @property
    def verdict(self) -> Verdict:
        """It fails where one finding fails, and passes where one passes and none fails."""
        severities = {finding.severity for finding in self.findings}
        if Severity.FAILS in severities:
            return Verdict.FAILS
        return Verdict.PASSES if Severity.PASSES in severities else Verdict.NOT_JUDGED

    @property
    def passed(self) -> bool:
        """The verdict is that it passes: where nothing was judged, it did not."""
        return self.verdict == Verdict.PASSES

    @property
    def carries(self) -> tuple[str, ...] | None:
        """The sums that a kernel carries in low precision, of `carry.SUMS`; None: this could not be seen."""
        found = [finding for finding in self.findings if finding.what == "carry"]
        low = tuple(dict.fromkeys(each.where["sum"] for each in found if each.severity == Severity.FAILS))
        seen = found and all(each.severity != Severity.REPORTED for each in found)
        return low if low or seen else None

    def record(self) -> dict:
        """All of it as JSON can hold it."""
        own = dict(kind=self.kind, subject=self.subject, label=self.label, verdict=self.verdict.value)
        return own | dict(passed=self.passed, findings=[*map(asdict, self.findings)])


def within(ratio: float, limit: float) -> Severity:
    """Whether an error over Baseline's is within the rule, as NaN is not."""
    return Severity.PASSES if ratio <= limit else Severity.FAILS


def _plain(x):
    """Numbers of numpy, which a row of a table has, as Python's."""
    if isinstance(x, (list, tuple)):
        return type(x)(map(_plain, x))
    return x.item() if hasattr(x, "item") else x
