"""Errors that no rounding makes: outputs that are off by one factor, or that differ from call to call."""

from collections.abc import Iterator

import pandas as pd

from fa_lib.check.carry import LOST
from fa_lib.check.findings import Finding, Severity

MADE = 0.8  # of the squared error is made by the factor, in every setting
SAME = 0.1  # of its distance to 1 is what the factor may be off its median: a carry's factor grows with N


def scaled(lengths: pd.DataFrame) -> float | None:
    """The one factor that a kernel's outputs are off by, in a table of its own rows of `kernel.measure`; None where
    there is none, or one setting alone to see it in."""
    rows = lengths[lengths.outcome == "yes"] if "factor" in lengths else lengths[:0]
    if len(rows) < 2 or not (rows.by_factor >= MADE).all():
        return None
    off = rows.factor - 1
    same = (off - off.median()).abs() <= SAME * abs(off.median())
    return float(1 + off.median()) if same.all() else None


def noisy(repeats: pd.DataFrame) -> float | None:
    """How far outputs of one call are apart, in ulp, in a table of `repeats`; None where they are the same but
    for the order of FP32 sums, which turns the last bit."""
    apart = repeats["apart"].max() if "apart" in repeats else 0.0
    return float(apart) if apart > LOST else None


def of_wrong(lengths: pd.DataFrame, repeats: pd.DataFrame) -> Iterator[Finding]:
    """A finding for each; both fail, and where there is one, what a carry loses cannot be told from it."""
    if (apart := noisy(repeats)) is not None:
        runs = int(repeats.runs.iloc[0])
        yield Finding("noise", Severity.FAILS, dict(runs=runs), apart, LOST)
    if (factor := scaled(lengths)) is not None:
        yield Finding("scale", Severity.FAILS, dict(settings=len(lengths)), factor)
