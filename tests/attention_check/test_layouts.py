"""Packed and paged kernels behind f(q, k, v): a plain one of each is attention, one that looks aside is not. And
kernels that take few calls (one query, one head_dim, MLA's 576 and 512), which are judged on what they take."""

from functools import partial

import pytest
import torch
from test_relations import attention

from attention_check.adapters import LOUD, NEIGHBOUR, PAGE, READINGS, paged, varlen
from attention_check.isolation.calls import call_kernel
from attention_check.isolation.isolated_kernel import isolated
from attention_check.judge.findings import Severity, Verdict
from attention_check.judge.kernel import judge_kernel
from attention_check.measure.examine import examine
from attention_check.measure.plan import CheckPlan
from attention_check.measure.way import way_of
from attention_check.report.sentences import judgement_text
from attention_check.testing.checks import result_of
from fa_lib import draw, kernels
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.kernels.reference import golden as golden_of


def packed_attention(q, k, v, starts_q, starts_k, longest_q, longest_k, softmax_scale=None, causal=False, beyond=0):
    """As flash_attn_varlen_func: each sequence alone; `beyond` keys more of the next one, for the fault."""
    parts = []
    assert (starts_q.dtype, starts_k.dtype) == (torch.int32, torch.int32) and starts_q[-1] == len(q)
    for (i, j), (a, b) in zip(zip(starts_q, starts_q[1:]), zip(starts_k, starts_k[1:])):
        assert j - i <= longest_q and b - a <= longest_k
        one = (q[i:j], k[a : b + beyond], v[a : b + beyond])
        one = attention(*(x.transpose(0, 1)[None] for x in one), causal=causal, scale=softmax_scale)
        parts.append(one[0].transpose(0, 1))
    return torch.cat(parts)


def cached_attention(
    q, k, v, cache_seqlens, block_table, softmax_scale=None, causal=False, beyond=0, table=None, lengths=None
):  # fmt: skip
    """As flash_attn_with_kvcache: pages gathered by the table, cut to the length; `beyond` keys more, for the fault."""
    parts = []
    cache_seqlens = cache_seqlens if lengths is None else lengths(cache_seqlens)
    for i, n in enumerate(cache_seqlens.tolist()):
        pages = block_table[i].long() if table is None else table(block_table[i].long())
        one = (q[i], *(cache[pages].flatten(0, 1)[: n + beyond] for cache in (k, v)))
        one = attention(*(x.transpose(0, 1)[None] for x in one), causal=causal, scale=softmax_scale)
        parts.append(one[0].transpose(0, 1))
    return torch.stack(parts)


@pytest.mark.parametrize("options", [dict(), dict(causal=True), dict(scale=0.3)], ids=str)
@pytest.mark.parametrize("adapted", [varlen(packed_attention), paged(cached_attention)], ids=["varlen", "paged"])
def test_a_right_kernel_is_attention(adapted, options):
    for n_q, n in ((50, 50), (3, 50), (1, 48), (20, 64)):
        q, k, v = (x.float() for x in draw("normal", 0, (3, 4, n_q, 16), (3, 2, n, 16)))
        assert torch.allclose(adapted(q, k, v, **options), attention(q, k, v, **options), rtol=0, atol=1e-6)


def test_packed_gradients_are_those_of_the_batch():
    q, k, v = (x.float().requires_grad_() for x in draw("normal", 0, (2, 2, 9, 8)))
    ours, theirs = (torch.autograd.grad(fn(q, k, v).sum(), (q, k, v)) for fn in (varlen(packed_attention), attention))
    assert all(torch.allclose(a, b, rtol=0, atol=1e-5) for a, b in zip(ours, theirs))


def of(adapter, kernel, **fault):
    return adapter(lambda *given, **options: kernel(*given, **options, **fault))


ASIDE = {
    "varlen, a neighbour's key": of(varlen, packed_attention, beyond=1),
    "paged, a key behind the last": of(paged, cached_attention, beyond=1),
    "paged, order": of(paged, cached_attention, table=lambda pages: pages.flip(0)),
    "paged, without the table": of(paged, cached_attention, table=lambda pages: torch.arange(len(pages))),
    "paged, the first one's length for all": of(paged, cached_attention, lengths=lambda n: n[:1].expand(len(n))),
}


@pytest.mark.parametrize("fault", ASIDE)
def test_one_that_looks_aside_is_far_from_attention(fault):
    q, k, v = (x.float() for x in draw("normal", 0, (2, 2, 40, 16)))
    assert (ASIDE[fault](q, k, v) - attention(q, k, v)).abs().max() > 1
    assert 40 % PAGE and NEIGHBOUR % PAGE and LOUD > 10


def a_key_later(q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k, causal=False, shift=1):
    return packed_attention(q, k, v, cu_seqlens_q, cu_seqlens_k + shift, max_seqlen_q, max_seqlen_k, causal=causal)


own_order = partial(a_key_later, shift=0)
KERNELS = ("packed_attention@varlen", "own_order@varlen", "a_key_later@varlen", "cached_attention@paged")


@pytest.mark.parametrize("name", KERNELS)
def test_in_a_separate_process_they_are_called_alike(name):
    q, k, v = (x.float() for x in draw("normal", 0, (2, 4, 3, 16), (2, 2, 40, 16)))
    with isolated(KernelRef.of(f"test_layouts:{name}")) as kernel:
        off = (kernels.get(kernel)(q, k, v, causal=True) - attention(q, k, v, causal=True)).abs().max()
    assert (off < 1e-6) == (name != "a_key_later@varlen")


def test_by_name_and_what_they_have_not():
    q, k, v = (x.float() for x in draw("normal", 0, (2, 2, 40, 16)))
    for name in ("test_layouts:packed_attention@varlen", "test_layouts:cached_attention@paged"):
        assert torch.allclose(kernels.get(name)(q, k, v), attention(q, k, v), rtol=0, atol=1e-6)
        answer = call_kernel(kernels.get(name), q, k, v, mask=torch.ones(40, 40, dtype=torch.bool))
        assert answer.outcome == "refused" and "unexpected keyword argument 'mask'" in answer.problem
    with pytest.raises(TypeError, match="the kernel returns NoneType,"):
        varlen(lambda *given: None)(q, k, v)


golden = partial(golden_of, inputs="FP64")
TINY = CheckPlan((64,), 1, ("97",), (), 64, 1, 2, square=64, asked_head_dims=())


def plain(q, k, v, scale=None, keys=None):
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1).float()[:, :, :keys] for x in (k, v))
    P = torch.softmax(q.float() @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale), -1)
    return (P.to(q.dtype).float() @ v).to(q.dtype)


def only(allowed, **changed):
    """Attention, or with `changed` something else, at the calls that are allowed."""

    def kernel(q, k, v, scale=None):
        if not allowed(q, v) or q.dtype != torch.bfloat16:
            raise ValueError("another call")
        return plain(q, k, v, scale, **changed)

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
    assert result_of("error", only(allowed)).passed


def test_a_wrong_kernel_of_one_query_fails():
    kernel = KernelRef("", "narrow", fn=only(one_query, keys=-1))
    judgement = judge_kernel(kernel, examine(kernel, TINY))
    assert any(f.what == "error" and f.severity == Severity.FAILS for f in judgement.findings)
    assert result_of("error", only(one_query, keys=-1)).passed is False


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
