"""Packed and paged kernels behind f(q, k, v): a plain one of each is attention, one that looks aside is not."""

from functools import partial

import pytest
import torch
from test_relations import attention

from attention_check.adapters import LOUD, NEIGHBOUR, PAGE, paged, varlen
from attention_check.isolation.calls import call_kernel
from attention_check.isolation.isolated_kernel import isolated
from fa_lib import draw, kernels
from fa_lib.kernels.kernel_ref import KernelRef


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
