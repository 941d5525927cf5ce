"""The derived bound beside the rule in a kernel's own judgement, and causes in its headline."""

import pandas as pd
import pytest
import torch
from own_kernels import own_name

from attention_check.checks.bounds import BOUNDED, bounds
from attention_check.checks.bounds import judged as of_bound
from attention_check.judge.findings import Severity
from attention_check.judge.kernel import judge_kernel
from attention_check.measure.examine import examine
from attention_check.measure.plan import QUICK
from attention_check.report.labels import has_this_error, subject
from attention_check.report.sentences import cause, headline, judgement_text
from fa_lib import kernels
from fa_lib.kernels.inputs import DISTRIBUTIONS

pytestmark = pytest.mark.slow


def too_steep_on_peaked_scores(q, k, v, causal=False, scale=None):
    """Right but where scores are large: there its scale is 8 % too large, which the rule of two allows on them."""
    scale = scale or q.shape[-1] ** -0.5
    peaked = (q.float() @ k.float().mT * scale).std() > 4
    return kernels.flash(q, k, v, causal=causal, scale=scale * (1.08 if peaked else 1))


@pytest.mark.parametrize("fmt", ["BF16", "FP16", "FP32"])
@pytest.mark.parametrize("kernel", ["flash", "as_shipped"])
def test_a_right_kernel_is_within_its_bound_on_every_kind_of_inputs(kernel, fmt):
    (row,) = bounds(kernel, fmt, 256, 0, 64)
    assert 0 < row["times"] <= 1 and row["rows"] == 0 and row["of"] == BOUNDED * len(DISTRIBUTIONS) and not row["key"]


def test_a_kernel_that_carries_bf16_is_beyond_it_and_its_emulation_is_named():
    (row,) = bounds("every_step", "BF16", 256, 0, 64)
    assert row["times"] > 10 and row["same"] and (row["key"], row["fmt"], row["tiles"]) == ("every_step", "BF16", 4)


def test_a_kernel_that_gives_nothing_finite_has_no_row():
    name = own_name("nothing", lambda q, k, v, causal=False, scale=None: torch.full_like(q, torch.nan))
    assert bounds(name, "BF16", 64, 0, 64) == []


def test_another_attention_that_the_rule_allows_on_peaked_scores_fails_by_its_bound():
    name = own_name("steep", too_steep_on_peaked_scores)
    judgement = judge_kernel(name, examine(name, QUICK))
    found = [f for f in judgement.findings if f.what == "mistake"]
    assert found and all(f.severity == Severity.FAILS and f.where["distribution"] == "peaked" for f in found)
    assert abs(found[0].where["factor"] - 1.08) < 0.01
    (first, *_) = cause(judgement)
    assert first.what == "mistake" and first.where["key"].startswith("scale=1.08")
    assert headline(judgement).startswith("steep fails: it computes another attention: ")
    assert subject(first.where) in headline(judgement) and "1.08" in headline(judgement)


def test_a_judgement_reports_the_bound_without_failing_for_a_rounding():
    judgement = judge_kernel("unfused", examine("unfused", QUICK))
    found = [f for f in judgement.findings if f.what == "bound"]
    assert judgement.passed and found and {f.where["key"] for f in found} == {"scores"}
    assert {f.severity for f in found} == {Severity.REPORTED} and "BF16" in {f.where["fmt"] for f in found}
    assert all(has_this_error(f.where) in judgement_text(judgement) for f in found)


def test_of_rows_within_their_bounds_the_nearest_is_told():
    row = dict(distribution="flat", rows=0, of=9, key="", same=False, share=0.0, fmt="", tiles=0, factor=1.0)
    close = pd.DataFrame([row | dict(judged=fmt, times=times) for fmt, times in (("BF16", 0.5), ("FP16", 0.75))])
    (found,) = of_bound(close, "mine")
    assert (found.severity, found.number, found.where["judged"]) == (Severity.PASSES, 0.75, "FP16")
