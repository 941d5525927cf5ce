"""Errors that no rounding in the format makes: outputs that are off by one factor, that differ from call to call, or
that are numbers of a coarser format."""

from collections.abc import Iterator

import pandas as pd

from attention_check.isolation.worker import Outcome
from attention_check.judge.findings import Finding, Severity
from attention_check.measure.carry import LOST
from fa_lib.numerics.formats import Format

MADE = 0.8  # of the squared error is made by the factor, in every setting
FEWER = 2  # bits of the outputs than of the format
SAME = 0.1  # of its distance to 1 is what the factor may be off its median: a carry's factor grows with N


def scaled(lengths: pd.DataFrame) -> float | None:
    """The one factor that a kernel's outputs are off by, in a table of its own rows of `examine.measure`; None where
    there is none, or one setting alone to see it in."""
    rows = lengths[lengths.outcome == Outcome.ANSWERED] if "factor" in lengths else lengths[:0]
    if len(rows) < 2 or not (rows.by_factor >= MADE).all():
        return None
    off = rows.factor - 1
    near = (off - off.median()).abs() <= SAME * abs(off.median())
    return float(1 + off.median()) if near.all() else None


def noisy(repeats: pd.DataFrame) -> float | None:
    """How far outputs of one call are apart, in ulp, in a table of `repeats`; None where they are the same but
    for the order of FP32 sums, which turns the last bit."""
    distance = repeats["apart"].max() if "apart" in repeats else 0.0
    return float(distance) if distance > LOST else None


def coarse(lengths: pd.DataFrame) -> dict[str, int]:
    """Formats in which all outputs of a kernel, in a table as above, have at least 2 bits less than the format holds ->
    their bits."""
    rows = lengths[lengths.outcome == Outcome.ANSWERED] if "bits" in lengths else lengths[:0]
    most = rows.groupby("fmt", sort=False).bits.max() if len(rows) else {}
    return {fmt: int(most[fmt]) for fmt in dict(most) if most[fmt] <= Format.of(fmt).precision - FEWER}


def of_wrong(lengths: pd.DataFrame, repeats: pd.DataFrame) -> Iterator[Finding]:
    """A finding for each; all fail, and where there is one, what a carry loses cannot be told from it (in that format,
    where it is of one)."""
    if (distance := noisy(repeats)) is not None:
        runs = int(repeats.runs.iloc[0])
        yield Finding("noise", Severity.FAILS, dict(runs=runs), distance, LOST)
    if (factor := scaled(lengths)) is not None:
        yield Finding("scale", Severity.FAILS, dict(settings=len(lengths)), factor)
    for fmt, count in coarse(lengths).items():
        yield Finding("coarse", Severity.FAILS, dict(fmt=fmt), count, Format.of(fmt).precision - FEWER + 1)
