"""Public reports with the outputs that the libraries of then gave, which were recorded."""

import pytest
from safetensors import safe_open

from attention_check.public_reports import BY_THREAD, explained, is_cause
from benchmarks.reports import OF_THEN, with_old_library

with safe_open(OF_THEN, "pt") as file:
    RECORDED = file.metadata()


@pytest.mark.parametrize("thread", sorted(RECORDED))  # the file gives them in another order each time
def test_what_a_library_gave_then_is_explained(thread):
    report = BY_THREAD[thread]
    call, made_by = with_old_library(report, report.make())
    found = explained(thread, call.o)
    assert made_by == RECORDED[thread] and call.o.shape == report.make().o.shape
    assert found.worst == report.verdict and (is_cause(report, found) or not report.cause)
