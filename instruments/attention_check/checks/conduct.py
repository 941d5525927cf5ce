"""How a kernel behaves in its process: what ends it, what it prints and changes."""

from collections.abc import Iterator

import pandas as pd

from attention_check.isolation.worker import DRAWS
from attention_check.judge.findings import Finding, Severity

TOLD = ("prints", "unasked")  # of acts: they are not counted


def judged(conduct: pd.DataFrame) -> Iterator[Finding]:
    """A finding for each kind of act, rows as of `IsolatedKernel.told`: what ends the process, or changes what other
    code computes by, fails; what calls print and draw from random numbers is told."""
    if not len(conduct):
        return
    state = conduct.what == "state"
    settings = conduct[~state | ~conduct.detail.isin(DRAWS)]
    for what, rows in settings.groupby("what", sort=False):
        where = dict(details=[*dict.fromkeys(rows.detail)], times=int(rows.times.sum()), at=rows["at"].iloc[0])
        where |= dict(on_import=bool(rows.on_import.any()))
        yield Finding(what, Severity.REPORTED if what in TOLD else Severity.FAILS, where, rows.number.max())
    draws = conduct[state & conduct.detail.isin(DRAWS) & ~conduct.on_import.astype(bool)]  # imports draw for libraries
    if len(draws):
        yield Finding("draws", Severity.REPORTED, dict(details=[*dict.fromkeys(draws.detail)]))
