"""What judging a kernel of the gallery came to, as a row of a table."""

from typing import Any

import pandas as pd

from attention_check.judge.findings import Judgement, Severity
from attention_check.measure.draws import OF_LENGTHS, worst_draws
from attention_gallery.entry import Entry
from fa_lib.kernels.rule import ALLOWED

QUERIES = {"1": "1", "16": "16", "many": "as many as keys"}
BY_FEW_BITS = {"error", "outputs", "relation", "sum_error", "coarse", "gradients"}  # findings that few bits make


def row(entry: Entry, record: dict | None) -> dict[str, Any]:
    """What a kernel came to.

    Args:
        record: of `judge_one`; None where the kernel cannot run here.

    Returns:
        key, project, version (of its distribution), use; verdict ("passes", "fails", "not_judged", "cannot_run");
        times_1, times_16, times_many: largest error over Baseline's by number of queries, the largest over formats, N
        and ordinary inputs, inf where an output is not finite; relative_1 and so on: largest relative error;
        carries, carried_in, tile: the sums carried in low precision, their format and tile; outwards and
        baseline_outwards (ulp), gradients (largest error over Baseline's), problem; over_bits: as of `caches`, of a
        kernel that holds K and V in few bits.
    """
    told = dict(key=entry.key, project=entry.project, version="" if entry.cannot else entry.version, use=entry.use)
    if record is None or "findings" not in record:
        verdict = "cannot_run" if record is None else record["verdict"]
        return told | dict(verdict=verdict, problem=entry.problem if record is None else record["problem"])
    found = Judgement.of(record).findings
    low = [f for f in found if f.what == "carry" and f.severity == Severity.FAILS]
    carried = dict(
        carries=" ".join(dict.fromkeys(f.where["sum"] for f in low)),
        carried_in=" ".join(dict.fromkeys(f.where["fmt"] for f in low)),
        tile=max((f.where["tile"] or 0 for f in low), default=0) or None,
    )
    gradients = max((f.number for f in found if f.what == "gradients" and f.number), default=None)
    side = next((f for f in found if f.what == "outwards"), None)
    bias = dict(outwards=side and side.number, baseline_outwards=side and side.where.get("baseline"))
    causes = dict.fromkeys(f.what for f in found if f.severity == Severity.FAILS or f.what == "rounded_splits")
    return told | dict(verdict=record["verdict"]) | record["numbers"] | carried | bias | dict(
        gradients=gradients, cause=" ".join(causes), problem="", over_bits=record.get("over_bits"),
    )  # fmt: skip


def errors(lengths: pd.DataFrame) -> dict[str, float]:
    """times_<queries> and relative_<queries> of a table of `examine.measure`, see `row`; NaN where nothing ran."""
    numbers = {}
    if not len(lengths):
        return numbers
    groups = lengths.queries.where(lengths.queries < lengths.n, "many").astype(str)
    for queries, rows in lengths.groupby(groups):
        if queries in QUERIES:
            infinite = (~rows.finite.astype(bool)).any()
            numbers[f"times_{queries}"] = (
                float("inf") if infinite else float(worst_draws(rows, OF_LENGTHS, ALLOWED["o"]).times_max.max())
            )
            numbers[f"relative_{queries}"] = float("inf") if infinite else float(rows.relative.max())
    return numbers


def of_few_bits(record: dict) -> str:
    """The verdict of a kernel that holds K and V in few bits: what these bits cost does not count against it."""
    grave = {f.what for f in Judgement.of(record).findings if f.severity == Severity.FAILS} - BY_FEW_BITS
    return "fails" if grave or record["over_bits"] > ALLOWED["o"] else "passes"
