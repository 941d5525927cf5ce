"""Kernels that take few calls: one query, one head_dim, MLA's 576 and 512. They are judged on what they take."""

from functools import partial

import pytest
import torch

from attention_check.adapters import READINGS
from attention_check.judge.findings import Severity, Verdict
from attention_check.judge.kernel import judge_kernel
from attention_check.measure.examine import examine
from attention_check.measure.plan import CheckPlan
from attention_check.measure.way import way_of
from attention_check.report.sentences import judgement_text
from attention_check.testing.checks import result_of
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.kernels.reference import golden as golden_of

golden = partial(golden_of, inputs="FP64")
TINY = CheckPlan((64,), 1, ("97",), (), 64, 1, 2, square=64, asked_head_dims=())


def attention(q, k, v, scale=None, keys=None):
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1).float()[:, :, :keys] for x in (k, v))
    P = torch.softmax(q.float() @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale), -1)
    return (P.to(q.dtype).float() @ v).to(q.dtype)


def only(allowed, **changed):
    """Attention, or with `changed` something else, at the calls that are allowed."""

    def kernel(q, k, v, scale=None):
        if not allowed(q, v) or q.dtype != torch.bfloat16:
            raise ValueError("another call")
        return attention(q, k, v, scale, **changed)

    return kernel


def one_query(q, v):
    return q.shape[2] == 1


def mla(q, v):
    return (q.shape[-1], v.shape[-1]) == (576, 512)


NARROW = {  # what it takes -> its conventions and its head_dim
    "one query": (one_query, ("one_query",), 64),
    "head_dim 256": (lambda q, v: q.shape[-1] == v.shape[-1] == 256, (), 256),
    "MLA": (mla, ("v_512",), 576),
    "one query of MLA": (lambda q, v: one_query(q, v) and mla(q, v), ("v_512", "one_query"), 576),
}


@pytest.mark.parametrize("key", [pytest.param(key, marks=[pytest.mark.slow] * ("MLA" in key)) for key in NARROW])
def test_a_right_kernel_is_judged_on_what_it_takes(key):
    allowed, conventions, head_dim = NARROW[key]
    kernel = KernelRef("", "narrow", fn=only(allowed))
    found = examine(kernel, TINY)
    judgement = judge_kernel(kernel, found)
    assert found.conventions == conventions and found.lengths.head_dim.unique() == [head_dim]
    assert judgement.verdict == Verdict.PASSES, judgement_text(judgement)
    told = [f.where["key"] for f in judgement.findings if f.what == "takes"]
    assert told == [*conventions] and ("one query a call" in judgement_text(judgement)) == ("one_query" in told)
    assert result_of("error_normal", only(allowed)).passed


def test_a_wrong_kernel_of_one_query_fails():
    kernel = KernelRef("", "narrow", fn=only(one_query, keys=-1))
    judgement = judge_kernel(kernel, examine(kernel, TINY))
    assert any(f.what == "error" and f.severity == Severity.FAILS for f in judgement.findings)
    assert result_of("error_normal", only(one_query, keys=-1)).passed is False


def test_where_a_kernel_is_right_at_other_lengths_it_is_said():
    def next_page(q, k, v):
        if q.dtype != torch.bfloat16 or q.shape[-1] != 64:
            raise ValueError("another call")
        return attention(q, k, v) if k.shape[2] % 16 else 1.5 * attention(q, k, v)

    kernel = KernelRef("", "narrow", fn=next_page)
    judgement = judge_kernel(kernel, examine(kernel, TINY))
    assert judgement.verdict == Verdict.FAILS
    assert "at N = 203 and 1500 it is right" in judgement_text(judgement)


@pytest.mark.parametrize("options", [
    {}, dict(causal=True), dict(mask=torch.ones(5, 9).tril().bool()), dict(mask=torch.zeros(1, 9)), dict(scale=0.3),
    dict(window=(2, 1)), dict(window=(2, 0)), dict(window=(None, 3)), dict(window=(3, None)),
    dict(causal=True, window=(1, 2)),
], ids=str)  # fmt: skip
def test_one_query_after_the_other_and_values_in_parts_are_the_whole_call(options):
    q, k, v = torch.randn(2, 2, 5, 20).double(), *torch.randn(2, 2, 2, 9, 20).double()
    for reading in (READINGS["one_query"], lambda fn: READINGS["v_128"].func(fn, 12)):
        assert torch.allclose(reading(golden)(q, k, v, **options), golden(q, k, v, **options))


def test_a_call_that_cannot_be_cut_is_refused():
    q, k, v = torch.randn(3, 1, 1, 4, 8)
    for options in (dict(window=(1, 0)), dict(causal=True)):
        with pytest.raises(NotImplementedError):
            READINGS["one_query"](golden)(q, k[:, :, :2], v[:, :, :2], **options)
    with pytest.raises(NotImplementedError, match="gradients"):
        READINGS["one_query"](golden)(q.requires_grad_(), k, v)
    with pytest.raises(NotImplementedError, match="512 values"):
        READINGS["v_512"](golden)(q, k, v)


def test_a_right_kernel_is_followed_to_its_head_dim_in_the_order_that_is_tried():
    for d in (128, 192, 40):
        assert way_of(only(lambda q, v, d=d: q.shape[-1] == v.shape[-1] == d)).head_dim == d
