"""From the table of relations to findings."""

from collections.abc import Iterator

import pandas as pd

from fa_lib.check.judge.findings import Finding, Severity
from fa_lib.check.measure.relations import RELATIONS
from fa_lib.check.measure.relations.subject import BREAKS, BROKEN, NOT_ASKED, ROUNDING


def of_relations(related: pd.DataFrame) -> Iterator[Finding]:
    """A finding for each relation that does not hold, of its gravest case, and how many cases do. A difference within
    rounding is told where the mathematics says the same bits, and so is NaN where many kernels give it.

    Args:
        related: table of `relations.relate`, with columns key and fmt.
    """
    if not len(related):
        return
    asked = related[related.outcome != NOT_ASKED]
    held = 0
    for key, rows in asked.groupby("key", sort=False):
        relation = RELATIONS[key]
        told = rows.outcome.eq(ROUNDING) & relation.bits
        told |= rows.outcome.eq(BREAKS) & rows.number.isna() & relation.nan_is_told
        failed = rows.outcome.isin((BREAKS, BROKEN)) & ~told
        held += int((~failed).sum())
        if not (failed | told).any():
            continue
        bad = rows[failed] if failed.any() else rows[told]
        over = bad.number / bad.limit.where(bad.limit > 0, 1)  # the worst in its own limits
        worst = bad.loc[over.idxmax()] if over.notna().any() else bad.iloc[0]
        where = dict(relation=key, cases=[*dict.fromkeys(bad.case)], case=worst.case, fmt=worst.fmt)
        where |= dict(outcome=worst.outcome, problem=worst.problem)
        severity = Severity.FAILS if failed.any() else Severity.REPORTED
        yield Finding("relation", severity, where, worst.number, worst.limit)
    if len(asked):
        counts = dict(held=held, of=len(asked), not_asked=len(related) - len(asked))
        yield Finding("relations", Severity.PASSES if held == len(asked) else Severity.REPORTED, counts)
