"""Errors that are no rounding: outputs off by a factor, of a coarser format, or other ones at each call."""

from collections.abc import Iterator

import pandas as pd

from attention_check.isolation.worker import Outcome
from attention_check.judge.findings import Finding, Severity
from attention_check.measure.measurements import Measurements
from fa_lib.numerics.formats import Format

LOST = 2  # ulp: output, P and scores are rounded once each, at most half an ulp; sums of FP32 add nothing that shows
MADE = 0.8  # of the squared error is made by the factor, in every setting
FEWER = 2  # bits of the outputs than of the format
SAME = 0.1  # of its distance to 1 is what the factor may be off its median: a carry's factor grows with N


def gross_errors(found: Measurements) -> Iterator[Finding]:
    """A finding for each error that `lengths` and `repeats` show to be no rounding; all fail, and where there is one,
    what a carry loses cannot be told from it (in that format, where it is of one)."""
    lengths, repeats = found.lengths, found.repeats
    distance = repeats["apart"].max() if "apart" in repeats else 0.0  # ulp
    if distance > LOST:  # more than another order of FP32 sums, which turns the last bit
        yield Finding("noise", Severity.FAILS, dict(runs=int(repeats.runs.iloc[0])), distance, LOST)
    if (factor := scaled(lengths)) is not None:
        yield Finding("scale", Severity.FAILS, dict(settings=len(lengths)), factor)
    for fmt, count in coarse(lengths).items():
        yield Finding("coarse", Severity.FAILS, dict(fmt=fmt), count, Format.of(fmt).precision - FEWER + 1)


def scaled(lengths: pd.DataFrame) -> float | None:
    """The one factor that a kernel's outputs are off by, in a table of its own rows of `errors.measure`; None where
    there is none, or one setting alone to see it in."""
    rows = lengths[lengths.outcome == Outcome.ANSWERED] if "factor" in lengths else lengths[:0]
    if len(rows) < 2 or not (rows.by_factor >= MADE).all():
        return None
    off = rows.factor - 1
    near = (off - off.median()).abs() <= SAME * abs(off.median())
    return float(1 + off.median()) if near.all() else None


def coarse(lengths: pd.DataFrame) -> dict[str, int]:
    """Formats of which all outputs of a kernel, in a table as above, lack FEWER bits or more -> the bits they have."""
    rows = lengths[lengths.outcome == Outcome.ANSWERED] if "bits" in lengths else lengths[:0]
    most = rows.groupby("fmt", sort=False).bits.max() if len(rows) else {}
    return {fmt: int(most[fmt]) for fmt in dict(most) if most[fmt] <= Format.of(fmt).precision - FEWER}
