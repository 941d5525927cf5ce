"""An output beside its own bound: what counts."""

from collections.abc import Iterator

import pandas as pd

from attention_check.judge.findings import Finding, Severity
from attention_check.measure.mistakes import ROUNDINGS


def of_bound(close: pd.DataFrame, kernel: str) -> Iterator[Finding]:
    """A finding for each row of `closeness.closeness` or `bounds.bounds` that is beyond its bound, or one for the row
    that is nearest to it.

    Beyond its bound, with the very error of another attention, an output fails: the rule does not see that where
    Baseline's own error is large, as where few keys have most of the weight. Beyond it with the error of a rounding, or
    of nothing that was tried, it is reported: a kernel that carries less than FP32 is beyond it, too."""
    rows = close.sort_values("times", ascending=False).to_dict("records") if len(close) else []
    for row in [each for each in rows if each["times"] > 1] or rows[:1]:
        where = dict(kernel=kernel) | {name: x for name, x in row.items() if name in WHERE}
        if row["times"] <= 1:
            yield Finding("bound", Severity.PASSES, where, row["times"], 1.0)
        elif row["same"] and row["key"] not in ROUNDINGS:
            yield Finding("mistake", Severity.FAILS, where, row["times"], 1.0)
        else:
            yield Finding("bound", Severity.REPORTED, where, row["times"], 1.0)


WHERE = ("judged", "distribution", "n", "rows", "of", "key", "same", "share", "fmt", "tiles", "factor")
