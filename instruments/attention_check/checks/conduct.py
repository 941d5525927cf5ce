"""How a kernel behaves in its process: what ends it, what it prints and changes."""

from collections.abc import Iterator

import pandas as pd

from attention_check.judge.findings import Finding, Severity

TOLD = ("prints", "unasked")  # of acts: they are not counted


def judged(conduct: pd.DataFrame) -> Iterator[Finding]:
    """A finding for each kind of act, rows as of `IsolatedKernel.told`: what ends the process, or changes what other
    code computes by, fails; what calls print is told."""
    for what, rows in conduct.groupby("what", sort=False) if len(conduct) else ():
        where = dict(details=[*dict.fromkeys(rows.detail)], times=int(rows.times.sum()), at=rows["at"].iloc[0])
        where |= dict(on_import=bool(rows.on_import.any()))
        yield Finding(what, Severity.REPORTED if what in TOLD else Severity.FAILS, where, rows.number.max())
