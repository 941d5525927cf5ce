"""Which calls the judge makes: options by shapes, forwards and backwards, as docs/reference/checks.md lists them."""

import re

import torch

from attention_check.explain.integer_caches import q4_0
from attention_check.measure.contract import contract
from fa_lib.execution.paths import ROOT
from fa_lib.kernels.rule import baseline_for
from fa_lib.numerics.formats import BF16, FP16

PAGE = ROOT / "docs" / "reference" / "checks.md"
GQA = {4: "GQA, 4 to 2 heads", 6: "GQA, 6 to 2 heads"}
SHAPES = ("as many", "off the tiles", "fewer", "more", "one")  # queries, beside keys


def seen_calls():
    found = set()  # (option, shape, forwards or backwards) of every call of at most one option, GQA among them

    def kernel(q, k, v, causal: bool = False, mask=None, window=None, scale=None, softcap=None, sinks=None):
        if q.dtype != torch.bfloat16:
            raise NotImplementedError("BF16 alone")
        given = dict(causal=causal or None, mask=mask, window=window, scale=scale, softcap=softcap, sinks=sinks)
        options = {name: x for name, x in given.items() if x is not None}
        masks = {"mask": "boolean mask" if mask is not None and mask.dtype == torch.bool else "added mask"}
        named = [masks.get(name, name) for name in options] + [GQA.get(q.shape[1], GQA[4])] * (k.shape[1] < q.shape[1])
        n_q, n_kv = q.shape[2], k.shape[2]
        even = "as many" if n_q % 16 == 0 else "off the tiles"
        shape = even if n_q == n_kv else "one" if n_q == 1 else "fewer" if n_q < n_kv else "more"
        if len(named) < 2:
            found.add((*(named or ["none"]), shape, "backwards" if q.requires_grad else "forwards"))
        return baseline_for(BF16)(q, k, v, **options)

    outcomes = {row["outcome"] for row in contract(kernel) if row["asked"] not in ("FP16", "FP32", "FP64")}
    assert outcomes == {"answered"}
    return found


def test_the_page_lists_the_calls_that_a_kernel_sees():
    table = re.search(r"\| option \| (.*) \|\n\|[-| ]*\n((?:\|.*\n)*)", PAGE.read_text())
    assert tuple(table[1].split(" | ")) == SHAPES
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2].splitlines()]
    cells = {(option, shape): cell for option, *found in rows for shape, cell in zip(SHAPES, found, strict=True)}
    assert {(*at, way) for at, cell in cells.items() for way in cell.split(", ") if way} == seen_calls()


def test_a_row_that_lacks_one_key_is_wrong_and_a_cache_of_four_bits_is_not():
    def lacks_a_key(q, k, v, causal: bool = False, window=None):
        (left, right), n = window or (k.shape[2], 0), k.shape[2]
        if n % 64 == 0 or not (causal or window):
            return baseline_for(BF16)(q, k, v, causal=causal, window=window)
        behind = torch.arange(n) - torch.arange(q.shape[2])[:, None] - n + q.shape[2]
        seen = (behind <= right) & (behind >= -left)
        seen[:, n // 64 * 64] = False  # the first key of the block that is not full
        return baseline_for(BF16)(q, k, v, mask=seen)

    low = lambda x: q4_0(x.double()).to(x.dtype)  # noqa: E731
    wrong = {row["asked"] for row in contract(lacks_a_key) if row["outcome"] == "wrong"}
    assert wrong == {"causal_length_203", "causal_one_query", "window_length_203", "window_first"}
    rows = contract(lambda q, k, v: baseline_for(BF16)(q, low(k), low(v)))
    assert {row["outcome"] for row in rows} <= {"answered", "refused"}


def test_a_version_for_one_format_and_one_class_of_lengths_is_seen():
    def wrong_in(dtype, right):
        def kernel(q, k, v, causal: bool = False):
            o = baseline_for(BF16 if q.dtype == torch.bfloat16 else FP16)(q, k, v, causal=causal)
            return o if right(q.shape[2], k.shape[2], causal) or q.dtype != dtype else o.roll(1, -1)

        return {row["asked"] for row in contract(kernel) if row["outcome"] == "wrong"}

    assert wrong_in(torch.float16, lambda n_q, n_kv, causal: n_kv % 16 == 0 or not causal) == {
        "causal_length_203", "causal_one_query",
    }  # fmt: skip
    assert wrong_in(torch.float16, lambda n_q, n_kv, causal: n_q > 1 or n_kv > 1) == {"one_key"}
    assert "fewer_queries" in wrong_in(torch.float16, lambda n_q, n_kv, causal: n_q % 16 == 0 or n_q == 1)


def test_a_softcap_whose_tanh_overflows_is_seen():
    def kernel(q, k, v, softcap=None):
        S = q.float() @ k.float().mT / q.shape[-1] ** 0.5
        if softcap is not None:  # as vllm-project/vllm#56578
            e = torch.exp(2 * S / softcap)
            S = softcap * (e - 1) / (e + 1)
        return (S.softmax(-1) @ v.float()).to(q.dtype)

    (row,) = (row for row in contract(kernel) if row["asked"] == "large_scores_softcap")
    assert row["outcome"] == "malformed" and "NaN" in row["problem"]
