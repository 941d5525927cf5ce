"""`explain` in corners: rows that a sample misses, NaN, rows that see nothing, last tiles, tiny and packed tensors."""

import math

import pytest
import torch
from in_a_folder import command
from torch.nn.functional import scaled_dot_product_attention as sdpa

import fa_lib
from attention_check.explain.explain_words import lines
from attention_check.explain.verdict import Verdict
from benchmarks.reports import drawn
from tests.attention_check.test_explain import golden, in_place, side_by_side
from tests.attention_check.test_explain_gradients import gradients

FP32 = torch.float32


def test_odd_rows_of_the_sample_hide_no_others():
    q, k, v = drawn(1, 2, 256, 16, dtype=FP32)
    mask = torch.zeros(256, 256)
    mask[:8] = -1e9  # in FP32 all scores become the same there: the golden value keeps them
    o = sdpa(q, k, v, attn_mask=mask)
    assert fa_lib.explain(q, k, v, o, mask=mask).verdict == Verdict.ROUNDING
    o[:, :, 9:250:3] = 0
    found = fa_lib.explain(q, k, v, o, mask=mask)
    assert found.verdict == Verdict.BUG and found.where is not None


def test_a_head_that_should_be_zero_and_is_not():
    q, k, v = drawn(1, 16, 64, 16, dtype=FP32)
    v[:, 1] = 0
    o = sdpa(q, k, v)
    assert fa_lib.explain(q, k, v, o).verdict == Verdict.ROUNDING
    found = fa_lib.explain(q, k, v, in_place(o, (0, 1), 5.0))
    assert found.verdict == Verdict.BUG and found.where.heads == ((1, 1),)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, FP32, torch.float64])
def test_tiny_tensors_of_torch_are_rounding(dtype):
    for seed in range(12):
        d, n = (1, 2, 4)[seed % 3], (2, 64, 300)[seed // 4]
        q, k, v = drawn(2, 4, n, d, dtype=dtype, seed=seed)
        found = fa_lib.explain(q, k, v, sdpa(q, k, v))
        assert found.verdict == Verdict.ROUNDING, (seed, lines(found))


def test_sequences_of_one_token_and_one_of_two():
    starts = torch.tensor([*range(100), *range(101, 257)]).int()
    q, k, v = (x[0].transpose(0, 1) for x in drawn(1, 2, 256, 16, dtype=FP32))
    o = torch.cat([
        sdpa(*(x[a:b].transpose(0, 1)[None] for x in (q, k, v)))[0].transpose(0, 1)
        for a, b in zip(starts.tolist(), starts.tolist()[1:])
    ])  # fmt: skip
    assert fa_lib.explain(q, k, v, o, cu_seqlens=starts).verdict == Verdict.ROUNDING


def test_a_last_tile_of_gradients_that_was_never_written():
    q, k, v = drawn(1, 2, 1024, 32)
    dO = drawn(1, 2, 1024, 32, seed=1)[0]
    dO[:, 1] *= 0.01
    o, right = gradients(q, k, v, dO, is_causal=True)
    assert fa_lib.explain(q, k, v, o, dO=dO, causal=True, **right).is_rounding
    last = (0, slice(None), slice(-64, None))
    wrong = dict(dv=in_place(right["dv"], last, 0), dk=in_place(right["dk"], last, 0),
                 dq=in_place(right["dq"], (0, 1), 0))  # fmt: skip
    found = fa_lib.explain(q, k, v, o, dO=dO, causal=True, **wrong)
    assert {each.name: each.verdict for each in found.others} == dict.fromkeys(("dq", "dk", "dv"), Verdict.BUG)


def test_nan_in_a_key_that_some_rows_do_not_see():
    q, k, v = drawn(1, 4, 64, 32)
    k[:, :, 60] = math.nan
    o = golden(q, k.nan_to_num(0.0), v, causal=True)
    o[:, :, 60:] = math.nan
    assert fa_lib.explain(q, k, v, o, causal=True).verdict == Verdict.ROUNDING
    coarse = golden(q, (k.nan_to_num(0.0).float() * 16).round().bfloat16() / 16, v, causal=True)
    found = fa_lib.explain(q, k, v, in_place(coarse, (0, slice(None), slice(60, None)), math.nan), causal=True)
    assert found.verdict == Verdict.PRECISION
    q, k, v = drawn(1, 1, 16, 32)
    k[0, 0, 0] = math.nan  # every row sees it
    assert fa_lib.explain(q, k, v, torch.full_like(v, math.nan), causal=True).verdict == Verdict.ROUNDING


def test_no_row_sees_a_key(tmp_path):
    q, k, v = drawn(1, 2, 16, 32)
    mask = torch.zeros(16, 16, dtype=torch.bool)
    found = fa_lib.explain(q, k, v, torch.zeros_like(v), mask=mask)
    assert (found.verdict, found.blind_rows) == (Verdict.ROUNDING, "zero")
    torch.save(dict(q=q, k=k, v=v, o=torch.zeros_like(v), mask=mask), tmp_path / "call.pt")
    result = command("explain", f"{tmp_path / 'call.pt'}")
    assert result.exit_code == 0, result.output


def test_one_query_with_a_window_has_a_window():
    q, k, v = drawn(1, 4, 256, 32)
    q = q[:, :, -1:]
    found = fa_lib.explain(q, k, v, golden(q, k, v, causal=True, window=(63, 0)), causal=True)
    assert (found.verdict, found.dialect) == (Verdict.CONVENTION, dict(window=(63, 0)))
    found = fa_lib.explain(q, k, v, golden(q, k[:, :, 1:], v[:, :, 1:], causal=True), causal=True)
    assert (found.verdict, found.dialect) == (Verdict.BUG, dict(keys=(1, 256)))  # the first key is lost


@pytest.mark.parametrize("factor", [0.5, 2, 5])
def test_a_factor_is_seen_beside_rows_of_nan_that_see_nothing(factor):
    q, k, v = drawn(1, 2, 64, 32)
    k, v = k[:, :, :48], v[:, :, :48]
    o = factor * golden(q, k, v, causal=True)
    o[:, :, :16] = math.nan
    found = fa_lib.explain(q, k, v, o, causal=True)
    assert found.verdict == Verdict.BUG and found.dialect["factor"] == pytest.approx(factor, rel=0.01)


def test_layouts_of_people():
    q, k, v = drawn(2, 4, 64, 32)
    o = sdpa(q, k, v)
    found = fa_lib.explain(q, k, v, side_by_side(o)[None])  # as Hugging Face returns it
    assert (found.verdict, found.dialect) == (Verdict.CONVENTION, dict(layout="o_flat"))
    found = fa_lib.explain(q, k, v, o.reshape(2, 64, 128)[None])  # viewed, where it should be transposed first
    assert (found.verdict, found.dialect) == (Verdict.BUG, dict(layout="o_flat_reshaped"))
    q, k, v = drawn(2, 8, 64, 64)
    mask = torch.rand(2, 1, 64, 64, generator=torch.Generator().manual_seed(0)) < 0.7
    flat = [side_by_side(x) for x in (q, k, v, sdpa(q, k, v, attn_mask=mask))]
    assert fa_lib.explain(*flat, mask=mask).dialect == dict(layout="flat_64")
    bshd = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    found = fa_lib.explain(*bshd, torch.full_like(bshd[0], math.nan))
    assert found.verdict == Verdict.BUG and found.nan_rows


def test_log_sum_exps_of_people():
    q, k, v = drawn(1, 4, 64, 32, dtype=FP32)
    S, o = q.double() @ k.double().mT / 32**0.5, sdpa(q, k, v)
    lse = torch.logsumexp(S, -1)
    [one_row] = fa_lib.explain(q, k, v, o, lse=in_place(lse, (0, 1, 7), 9.0)).others
    assert one_row.verdict == Verdict.BUG
    plus_one = (torch.softmax(torch.cat([S, torch.zeros(1, 4, 64, 1)], -1), -1)[..., :-1] @ v.double()).float()
    found = fa_lib.explain(q, k, v, plus_one, lse=torch.logaddexp(lse, torch.zeros(1, dtype=torch.float64)))
    assert found.dialect == dict(softmax="plus_one") and found.others[0].verdict == Verdict.ROUNDING
    sinks = torch.linspace(0, 3, 4)
    [without] = fa_lib.explain(q, k, v, golden(q, k, v, sinks=sinks).float(), sinks=sinks, lse=lse).others
    assert (without.verdict, without.dialect) == (Verdict.CONVENTION, dict(sinks="ignored"))


def test_heads_in_another_order():
    q, k, v = drawn(2, 8, 64, 32)
    k, v = k[:, :2], v[:, :2]
    order = [3, 0, 1, 2, 4, 6, 5, 7]
    found = fa_lib.explain(q, k, v, sdpa(q, k, v, enable_gqa=True)[:, order])
    where = [order.index(head) for head in range(8)]  # the head of the output that holds each
    assert (found.verdict, found.dialect) == (Verdict.BUG, dict(heads=tuple(where)))
    assert "in the order 1, 2, 3, 0, 4, 6, 5, 7" in "".join(lines(found))


def test_wrong_features_chunks_and_keys_of_zeros():
    q, k, v = drawn(1, 2, 200, 80)
    at, filled = torch.arange(200) // 64, (torch.arange(200) < 192)[:, None]
    found = fa_lib.explain(q, k, v, sdpa(q, k, v) * (torch.arange(80) < 64))
    assert found.where.features == ((64, 79),) and not found.where.heads
    found = fa_lib.explain(q, k, v, sdpa(q, k * (torch.arange(80) < 64), v))
    assert (found.verdict, found.dialect) == (Verdict.BUG, dict(roles="first_64"))
    found = fa_lib.explain(q, k, v, sdpa(q, k, v, attn_mask=(at[:, None] == at).tril()), causal=True)
    assert (found.verdict, found.dialect) == (Verdict.BUG, dict(causal="chunks_of_64"))
    assert fa_lib.explain(q, k, v, sdpa(q, k * filled, v * filled)).dialect == dict(roles="kv_of_0", part=(192, 200))


def test_what_was_not_judged_has_an_exit_code(tmp_path):
    q, k, v = drawn(1, 2, 64, 32)
    torch.save(dict(q=q, k=k, v=v, o=sdpa(q, k, v), dq=q), tmp_path / "call.pt")
    assert command("explain", f"{tmp_path / 'call.pt'}", "--exit-code").exit_code == 3


def packed(lengths, key_lengths=None, causal=True, **options):
    """Sequences of these lengths in one: q, k, v, o, and where each begins."""
    key_lengths = key_lengths or lengths
    found = []
    for i, (n_q, n_kv) in enumerate(zip(lengths, key_lengths)):
        q, _, _ = drawn(1, 4, n_q, 64, seed=i)
        k, v, _ = drawn(1, 2, n_kv, 64, seed=i + 10)
        found.append((q, k, v, golden(q, k, v, causal=causal, **options)))
    starts = (torch.tensor([0, *each]).cumsum(0).int() for each in (lengths, key_lengths))
    return *(torch.cat([x[0].transpose(0, 1) for x in xs]) for xs in zip(*found)), *starts


def test_packed_sequences(tmp_path):
    q, k, v, o, starts, _ = packed((40, 100, 7))
    assert fa_lib.explain(q, k, v, o, cu_seqlens=starts, causal=True).verdict == Verdict.ROUNDING
    joined = golden(*(x.transpose(0, 1)[None] for x in (q, k, v)), causal=True)[0].transpose(0, 1)
    found = fa_lib.explain(q, k, v, joined, cu_seqlens=starts, causal=True)
    assert found.verdict == Verdict.BUG and found.dialect == dict(mask="together")
    q, k, v, o, starts, key_starts = packed((1, 1, 5), (40, 60, 20), window=(30, 0))
    options = dict(cu_seqlens_q=starts, cu_seqlens_k=key_starts, causal=True, window=(30, 0))
    assert fa_lib.explain(q, k, v, o, **options).verdict == Verdict.ROUNDING
    torch.save(dict(q=q, k=k, v=v, o=o, cu_seqlens_q=starts, cu_seqlens_k=key_starts), tmp_path / "call.pt")
    result = command("explain", f"{tmp_path / 'call.pt'}", "--causal", "--window", "30,0")
    assert result.output.startswith("ROUNDING"), result.output
    q, k, v, _, starts, key_starts = packed((40, 60), (60, 120))
    for choice, places in dict(starts_of_q=(0, 40), lengths_of_q=(0, 60)).items():
        parts = [(q[a:b], k[at : at + b - a], v[at : at + b - a]) for a, b, at in zip((0, 40), (40, 100), places)]
        wrong = [golden(*(x[None].transpose(1, 2) for x in part), causal=True) for part in parts]
        o = torch.cat(wrong, 2)[0].transpose(0, 1)
        found = fa_lib.explain(q, k, v, o, cu_seqlens=starts, cu_seqlens_k=key_starts, causal=True)
        assert (found.verdict, found.dialect) == (Verdict.BUG, dict(mask=choice)), f"{found}"
    with pytest.raises(ValueError, match=r"^cu_seqlens: got \[0, 1, 2, 8\]"):
        fa_lib.explain(q, k, v, o, cu_seqlens=torch.tensor([0, 1, 2, 8]))
