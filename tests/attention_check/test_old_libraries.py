"""Public reports with the outputs that the libraries of then gave, which were recorded."""

import pytest
from safetensors import safe_open

from attention_check.explain.explain import explain_call
from benchmarks.reports import OF_THEN, REPORTS, is_cause, with_old_library

with safe_open(OF_THEN, "pt") as file:
    RECORDED = file.metadata()


@pytest.mark.parametrize("report", [report for report in REPORTS if report.thread in RECORDED])
def test_what_a_library_gave_then_is_explained(report):
    own = report.make()
    call, made_by = with_old_library(report, own)
    found = explain_call(call)
    assert made_by == RECORDED[report.thread] and call.o.shape == own.o.shape
    assert found.worst == report.verdict and (is_cause(report, found) or not report.cause)
