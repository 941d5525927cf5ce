"""`explain` on the public reports of `experiments.reports`, as a cell of a sweep."""

from typing import Any

from fa_lib.check.dialect.evidence import Evidence
from fa_lib.check.explain.explanation import explanation
from fa_lib.check.explain.verdict import Explanation
from fa_lib.execution.lookup import lookup
from fa_lib.experiments.reports import REPORTS

BY_THREAD = {report.thread: report for report in REPORTS}


def explained(thread: str) -> Explanation:
    """The Explanation of a report's output.

    Raises:
        ValueError: there is no such thread.
    """
    call = lookup("thread", thread, BY_THREAD).make()
    return explanation(Evidence(call.q, call.k, call.v, call.o, call.believed))


def report_row(thread: str) -> dict[str, Any]:
    """A cell: what `explain` makes of a report.

    Returns:
        verdict; due (the right one); believed, residual: root mean square of the error over that of the output, as the
        author read the tensors and as they are read in the end, None where the shapes do not fit; bound: the largest
        error over its bound, None where it has none; conventions ("mask_inverted, ..."); fmt of the arithmetic, or "".
    """
    found, report = explained(thread), lookup("thread", thread, BY_THREAD)
    return dict(
        verdict=str(found.verdict), due=report.verdict, believed=found.believed, residual=found.residual,
        bound=found.times_bound, conventions=", ".join(each.key for each in found.conventions),
        fmt=found.arithmetic.fmt if found.arithmetic else "",
    )  # fmt: skip
