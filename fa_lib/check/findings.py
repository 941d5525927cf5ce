"""What a check finds, without words: sentences, pages, JSON, figures' titles and exit codes are made from it."""

import math
from dataclasses import asdict, dataclass, field
from enum import StrEnum


class Severity(StrEnum):
    """What a finding means for the judgement."""

    FAILS = "fails"
    NOTES = "notes"  # told, and not counted
    PASSES = "passes"


@dataclass(frozen=True)
class Finding:
    """One thing that a check has found.

    Attributes:
        what: a key; `words` has a sentence for each.
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
        for name in ("number", "limit"):  # as JSON can hold them, whatever library they come from
            value = getattr(self, name)
            finite = value is not None and math.isfinite(value)
            object.__setattr__(self, name, float(value) if finite else None)


@dataclass(frozen=True)
class Judgement:
    """What is judged, and what was found.

    Attributes:
        kind: "kernel", "tensors" or "model". subject: its name. findings: the gravest first.
    """

    kind: str
    subject: str
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """No finding fails."""
        return all(finding.severity != Severity.FAILS for finding in self.findings)

    @property
    def carries(self) -> tuple[str, ...] | None:
        """The sums that a kernel carries in low precision, of `kernel.SUMS`; None: this could not be seen."""
        found = [finding for finding in self.findings if finding.what == "carry"]
        low = tuple(dict.fromkeys(each.where["sum"] for each in found if each.severity == Severity.FAILS))
        seen = found and all(each.severity != Severity.NOTES for each in found)
        return low if low or seen else None

    def record(self) -> dict:
        """All of it as JSON can hold it."""
        return dict(kind=self.kind, subject=self.subject, passed=self.passed, findings=[*map(asdict, self.findings)])


def within(ratio: float, limit: float) -> Severity:
    """Whether an error over Baseline's is within the rule, as NaN is not."""
    return Severity.PASSES if ratio <= limit else Severity.FAILS
