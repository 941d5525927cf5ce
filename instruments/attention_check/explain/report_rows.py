"""`explain` on the public reports of `experiments.reports`, as a cell of a sweep."""

from dataclasses import replace
from typing import Any

from torch import Tensor

from attention_check.conventions.evidence import Evidence
from attention_check.explain.explain import explain_call
from attention_check.explain.verdict import Explanation
from attention_check.public_reports.reports import REPORTS, Report
from fa_lib.execution.lookup import lookup

BY_THREAD = {report.thread: report for report in REPORTS}


def explained(thread: str, o: Tensor | None = None) -> Explanation:
    """The Explanation of a report's output, or of another one for its call, of the same shape.

    Raises:
        ValueError: there is no such thread.
    """
    call = lookup("thread", thread, BY_THREAD).make()
    call = call if o is None else replace(call, o=o)
    return explain_call(Evidence(call.q, call.k, call.v, call.o, call.believed, call.others))


def is_cause(report: Report, found: Explanation) -> bool:
    """Whether the cause that is named is the report's."""
    if "fmt" in report.cause:
        return found.arithmetic is not None and found.arithmetic.fmt == report.cause["fmt"]
    if "change" in report.cause:
        return report.cause["change"] in {each.change for each in found.others}
    return found.dialect == report.cause


def report_row(thread: str) -> dict[str, Any]:
    """A cell: what `explain` makes of a report.

    Returns:
        verdict (the worst of the output and what came with it); due (the right one); believed, residual: root mean
        square of the error over that of the output, as the author read the tensors and as they are read in the end,
        None where the shapes do not fit; bound: the largest error over its bound, None where it has none; conventions
        ("mask_inverted, ..."); fmt of the arithmetic, or "".
    """
    found, report = explained(thread), lookup("thread", thread, BY_THREAD)
    return dict(
        verdict=str(found.worst), due=report.verdict, believed=found.believed, residual=found.residual,
        bound=found.times_bound, conventions=", ".join(each.key for each in found.conventions),
        fmt=found.arithmetic.fmt if found.arithmetic else "",
    )  # fmt: skip
