"""From the table of relations to findings."""

from collections.abc import Iterator

import pandas as pd

from attention_check.judge.findings import Finding, Severity
from attention_check.measure.relations import RELATIONS
from attention_check.measure.relations.subject import BREAKS, BROKEN, CONVENTION, NOT_ASKED, ROUNDING


def of_relations(related: pd.DataFrame) -> Iterator[Finding]:
    """A finding for each relation that does not hold, of its gravest case, and how many cases do. A difference within
    rounding is reported where the mathematics says the same bits, and so is what many kernels give by convention, and a
    break of a relation that does not count.

    Args:
        related: table of `relations.relate`, with columns key and fmt.
    """
    if not len(related):
        return
    answered = related[related.outcome != NOT_ASKED]
    answered = answered.assign(uncounted=uncounted_breaks(answered))
    kept_cases = 0
    for key, rows in answered.groupby("key", sort=False):
        relation = RELATIONS[key]
        reported = rows.outcome.eq(ROUNDING) & relation.bits
        reported |= rows.uncounted | rows.outcome.eq(CONVENTION)
        failed = rows.outcome.isin((BREAKS, BROKEN)) & ~reported
        kept_cases += int((~rows.outcome.isin((BREAKS, BROKEN)) | (reported & relation.counts)).sum())
        if not (failed | reported).any():
            continue
        bad = rows[failed] if failed.any() else rows[reported]
        over = bad.number / bad.limit.where(bad.limit > 0, 1)  # the worst in its own limits
        worst = bad.loc[over.idxmax()] if over.notna().any() else bad.iloc[0]
        where = dict(relation=key, cases=[*dict.fromkeys(bad.case)], case=worst.case, fmt=worst.fmt)
        where |= dict(outcome=worst.outcome, problem=worst.problem)
        severity = Severity.FAILS if failed.any() else Severity.REPORTED
        yield Finding("relation", severity, where, worst.number, worst.limit)
    if len(answered):
        counts = dict(held=kept_cases, of=len(answered), not_asked=len(related) - len(answered))
        yield Finding("relations", Severity.PASSES if kept_cases == len(answered) else Severity.REPORTED, counts)


def uncounted_breaks(related: pd.DataFrame) -> pd.Series:
    """Which rows of a table of `relations.relate`, with a column key, break their relation and do not count: NaN where
    the relation says so, and all breaks of a relation that does not count."""
    relations = related.key.map(RELATIONS)
    nan = related.number.isna() & relations.map(lambda relation: relation.nan_is_told).astype(bool)
    return related.outcome.eq(BREAKS) & (nan | ~relations.map(lambda relation: relation.counts).astype(bool))
