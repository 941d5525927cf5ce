"""A finding in words: one short sentence, its number, its limit, and what explains it. Nothing reads them back."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from attention_check.judge.findings import Finding, Severity
from fa_lib.execution.untrusted import Untrusted

LIKE = 3  # findings of a kind that are shown; the others are folded


@dataclass(frozen=True)
class Sentence:
    """What is said of a finding. Its texts may hold a stranger's, and are `Untrusted`.

    Attributes:
        text: a sentence without its full stop.
        number: what was measured, with its unit; limit: up to which that passes. "" where there is none.
        more: whole sentences: how it is known. change: what to change, "hold O in FP32".
        severity: what it means for the judgement. what: the finding's.
        beyond: it is reported alone, and its number is beyond a limit.
    """

    text: str
    number: str = ""
    limit: str = ""
    more: str = ""
    change: str = ""
    severity: Severity = Severity.REPORTED
    what: str = ""
    beyond: bool = False

    def __post_init__(self):
        for name in ("text", "number", "limit", "more", "change"):
            object.__setattr__(self, name, Untrusted(getattr(self, name)))

    @property
    def remedy(self) -> str:
        """What to change, as a sentence; "" where nothing is known."""
        return f"What to change: {self.change}." if self.change else ""

    @property
    def line(self) -> str:
        """Sentence, number and limit as one sentence."""
        limit = f", limit {self.limit}" if self.limit else ""
        return f"{self.text}{': ' if self.number else ''}{self.number}{limit}."


def gravity(finding: Finding) -> tuple[int, float]:
    """What sorts findings, the gravest first: what counts against it, then by how far it is beyond its limit."""
    order = (Severity.FAILS, Severity.REPORTED, Severity.PASSES)
    if finding.limit is None:
        return order.index(finding.severity), 0.0
    over = float("inf") if finding.number is None else finding.number / (finding.limit or 1)
    return order.index(finding.severity), -over


def beyond(finding: Finding) -> bool:
    """Whether it does not count, though it is beyond its limit or not finite."""
    if finding.severity != Severity.REPORTED or finding.limit is None:
        return False
    return finding.number is None or finding.number > finding.limit


def times(finding: Finding) -> tuple[str, str]:
    """Number and limit of an error over Baseline's: "2.4 × Baseline's", "2 ×"; "" where nothing is limited."""
    limit = "" if finding.limit is None else f"{finding.limit:g} ×"
    if finding.number is None:
        return "not finite", limit
    return f"{as_times(finding.number, finding.limit)} × Baseline's", limit


def as_times(number: float, limit: float | None = None) -> str:
    """How many times something is something else, with as many digits as show that it is not 0, and on which side of a
    limit it is: "2.4", "0.03", "2.001"; from 100 on in three digits, from 10,000 on in two and a power of ten: "461",
    "1,230", "4.4e8"."""
    if number >= 9995:
        return f"{number:.1e}".replace("e+0", "e").replace("e+", "e")
    if number >= 99.95:
        return f"{float(f'{number:.3g}'):,.0f}"
    digits = 1
    while number > 0 and not round(number, digits) and digits < 4:
        digits += 1
    while limit and round(number, digits) == limit != number and digits < 6:
        digits += 1
    if number > 0 and not round(number, digits):
        return f"less than {10.0**-digits:g}"
    return f"{number:.{digits}f}"


def folded(group: Iterable[Sentence]) -> list[tuple[list[Sentence], list[Sentence]]]:
    """Findings of each kind: those that are shown, the gravest; and those that are folded, none where it is one."""
    kinds = [[*like] for _, like in groupby(group, key=lambda one: one.what)]
    return [(like[:LIKE], like[LIKE:]) if len(like) > LIKE + 1 else (like, []) for like in kinds]
