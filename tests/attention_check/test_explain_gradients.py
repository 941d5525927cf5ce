"""`explain` of what came with an output: the log-sum-exp and the gradients, right and wrong in known ways."""

import math

import pytest
import torch
from in_a_folder import command
from torch.nn.functional import scaled_dot_product_attention as sdpa

import fa_lib
from attention_check.explain.verdict import Verdict
from benchmarks.reports import drawn
from tests.attention_check.test_explain import in_place
from tests.test_kernels import run

N = 192
NAMES = ("dq", "dk", "dv")


def gradients(q, k, v, dO, **options):
    o, *found = run(sdpa, (q, k, v), dO, enable_gqa=True, **options)
    return o, dict(zip(NAMES, found))


def call(dtype=torch.bfloat16):
    """q, k, v, o and what came with it, of two key heads for four query heads, causal."""
    q, dO, _ = drawn(2, 4, N, 64, dtype=dtype)
    k, v, _ = drawn(2, 2, N, 64, dtype=dtype, seed=1)
    o, others = gradients(q, k, v, dO, is_causal=True)
    hidden = torch.ones(N, N, dtype=torch.bool).triu(1)
    S = (q.double() @ k.double().repeat_interleave(2, 1).mT / 8).masked_fill(hidden, -math.inf)
    return dict(q=q, k=k, v=v, o=o, lse=torch.logsumexp(S, -1).float(), dO=dO) | others


RIGHT = call()
Q, K, V, DO = (RIGHT[name] for name in ("q", "k", "v", "dO"))
LSE, DQ, DK, DV = (RIGHT[name] for name in ("lse", *NAMES))


def expanded():
    """dk of each query head."""
    _, found = gradients(Q, K.repeat_interleave(2, 1), V.repeat_interleave(2, 1), DO, is_causal=True)
    return found["dk"]


def by_hand(keys=slice(None), rows=slice(None), delta=1.0, causal=True, features=64):
    """dq of some keys alone, with so many times rowsum(dO * o), and dv of each query head, some rows counted twice; of
    some features of dO and v in dP."""
    q, k, v, dO = (x.double() for x in (Q, K.repeat_interleave(2, 1), V.repeat_interleave(2, 1), DO))
    hidden = torch.ones(N, N, dtype=torch.bool).triu(1)
    P = torch.softmax((q @ k.mT / 8).masked_fill(hidden, -math.inf), -1)
    due = (P * (dO @ v.mT)).sum(-1, keepdim=True)
    if not causal:  # but with the log-sum-exp of keys that are seen
        P = torch.exp(q @ k.mT / 8 - LSE[..., None].double())
    dP = dO[..., :features] @ v[..., :features].mT
    dS = P * (dP - delta * due)
    dv = (P.mT @ dO + P[:, :, rows].mT @ dO[:, :, rows]).unflatten(1, (2, 2)).sum(2)
    return (dS[..., keys] @ k[:, :, keys] / 8).bfloat16(), dv.bfloat16()


CASES = {  # what is wrong -> it; name -> verdict and change
    "dq unscaled": (dict(dq=DQ * 8), dict(dq=(Verdict.BUG, "unscaled"))),
    "dk scaled twice": (dict(dk=DK / 8), dict(dk=(Verdict.BUG, "scaled_twice"))),
    "dv counted twice": (dict(dv=DV * 2), dict(dv=(Verdict.BUG, "factor"))),
    "the backward pass is not causal": (
        gradients(Q, K, V, DO)[1], {name: (Verdict.BUG, "dialect") for name in NAMES}),
    "dk and dv exchanged": (dict(dk=DV, dv=DK), {name: (Verdict.BUG, "exchanged") for name in ("dk", "dv")}),
    "dv a mean over heads": (dict(dv=DV / 2), dict(dv=(Verdict.BUG, "mean_of_heads"))),
    "dk of one head": (dict(dk=expanded()[:, ::2]), dict(dk=(Verdict.BUG, "of_one_head"))),
    "delta left out": (dict(dq=by_hand(delta=0.0)[0]), dict(dq=(Verdict.BUG, "without_delta"))),
    "delta added": (dict(dq=by_hand(delta=-1.0)[0]), dict(dq=(Verdict.BUG, "delta_times"))),
    "dk summed over every other head": (
        dict(dk=expanded()[:, :2] + expanded()[:, 2:]), dict(dk=(Verdict.BUG, "of_other_heads"))),
    "delta left out in some rows": (
        dict(dq=by_hand(delta=torch.tensor([1.0] * 128 + [0.0] * 64)[:, None])[0]), dict(dq=(Verdict.BUG, "no_delta"))),
    "dP of half of the features": (
        dict(dq=by_hand(features=32)[0]), dict(dq=(Verdict.BUG, "part_of_features"))),
    "the backward pass alone is not causal": (dict(dq=by_hand(causal=False)[0]), dict(dq=(Verdict.BUG, "saved"))),
    "dO in memory order": (
        dict(dO=DO.transpose(1, 2).reshape(DO.shape)), {name: (Verdict.BUG, "dO_in_memory_order") for name in NAMES}),
    "dq with heads last": (dict(dq=DQ.transpose(1, 2)), dict(dq=(Verdict.CONVENTION, "heads_last"))),
    "dk of each query head": (dict(dk=expanded()), dict(dk=(Verdict.CONVENTION, "for_each_query_head"))),
    "a block of dk is lost": (dict(dk=in_place(DK, (0, 1, slice(64, 96)), 0)), dict(dk=(Verdict.BUG, "zero"))),
    "dq of the first keys": (dict(dq=by_hand(slice(128))[0]), dict(dq=(Verdict.BUG, "parts"))),
    "rows counted twice in dv": (dict(dv=by_hand(rows=slice(64, 96))[1]), dict(dv=(Verdict.BUG, "parts"))),
    "features of dv": (dict(dv=in_place(DV, (..., slice(8, 24)), 0.7)), dict(dv=(Verdict.BUG, ""))),
    "NaN in some rows of dq": (
        dict(dq=in_place(DQ, (slice(None), slice(None), slice(0, None, 3)), math.nan)),
        dict(dq=(Verdict.BUG, "not_finite"))),
    "memory that nobody wrote in dq": (
        dict(dq=in_place(DQ, (slice(None), slice(None), slice(64, None)), 3e4)), dict(dq=(Verdict.BUG, ""))),
    "lse in powers of 2": (dict(lse=LSE / math.log(2)), dict(lse=(Verdict.CONVENTION, "base_2"))),
    "lse with heads last": (dict(lse=LSE.transpose(1, 2)), dict(lse=(Verdict.CONVENTION, "heads_last"))),
    "lse in BF16": (dict(lse=LSE.bfloat16().float()), dict(lse=(Verdict.PRECISION, ""))),
    "lse is infinite in some rows": (
        dict(lse=in_place(LSE, (0, slice(2, 4), slice(64, 96)), math.inf)), dict(lse=(Verdict.BUG, ""))),
    "lse is 0": (dict(lse=torch.zeros_like(LSE)), dict(lse=(Verdict.BUG, ""))),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_what_torch_gives_is_rounding(dtype):
    found = fa_lib.explain(**call(dtype), causal=True)
    assert [each.name for each in found.others] == ["lse", *NAMES]
    assert found.is_rounding and not found.not_judged


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_is_named_and_the_rest_is_right(name):
    wrong, due = CASES[name]
    found = fa_lib.explain(**RIGHT | wrong, causal=True)
    assert found.verdict == Verdict.ROUNDING
    assert {each.name: (each.verdict, each.change) for each in found.others} == dict.fromkeys(
        ("lse", *NAMES), (Verdict.ROUNDING, "")
    ) | due
    assert not found.is_rounding


def test_gradients_in_coarser_arithmetic_and_nan():
    wide = call(torch.float32)
    q, k, v, dO = (wide[name] for name in ("q", "k", "v", "dO"))
    _, coarse = gradients(q.bfloat16(), k.bfloat16(), v.bfloat16(), dO.bfloat16(), is_causal=True)
    found = fa_lib.explain(**wide | {name: x.float() for name, x in coarse.items()}, causal=True)
    assert {each.verdict for each in found.others if each.name != "lse"} == {Verdict.PRECISION}
    found = fa_lib.explain(**RIGHT | dict(dq=in_place(DQ, (0, 2, 7, 3), math.nan)), causal=True)
    [dq] = [each for each in found.others if each.name == "dq"]
    assert dq.verdict == Verdict.BUG and (dq.where.heads, dq.where.rows) == (((2, 2),), ((7, 7),))


def test_how_often_parts_count_is_told_in_words():
    with_fewer, with_more = by_hand(slice(128))[0], by_hand(rows=slice(64, 96))[1]
    text = f"{fa_lib.explain(**RIGHT | dict(dq=with_fewer, dv=with_more), causal=True)}"
    assert "dq is right, were each part added once: in rows 0 to 191 keys 128 to 191 count 0 times." in text
    assert ": in keys 0 to 191 rows 64 to 95 count 2 times." in text
    text = f"{fa_lib.explain(**RIGHT | dict(dq=in_place(DQ, (..., slice(64, None), slice(None)), 3e4)), causal=True)}"
    assert "dq is wrong in rows 64 to 191 (67% of the rows), with values of no relation" in text
    text = f"{fa_lib.explain(**RIGHT | dict(dq=1.5 * DQ + 1.0, dk=1.5 * DK + 1.0), causal=True)}"
    assert "dv is right, and so are P and dO: look at dS" in text
    text = f"{fa_lib.explain(**RIGHT | CASES['lse is infinite in some rows'][0], causal=True)}"
    assert "lse is wrong in entry 0, heads 2 to 3, rows 64 to 95 (4% of the rows)" in text
    text = f"{fa_lib.explain(**RIGHT | CASES['a block of dk is lost'][0], causal=True)}"
    assert "dk is 0 in entry 0, head 1, rows 64 to 95 (4% of the rows), and right elsewhere." in text


def test_hidden_keys_may_hold_nan_beside_a_wrong_gradient():
    q, k, v, dO = (x.float() for x in (Q[:, :2], K, V, DO[:, :2]))
    mask = torch.ones(N, N, dtype=torch.bool)
    mask[:, 150:] = False
    o, others = gradients(q, k, v, dO, attn_mask=mask)
    others["dq"][:, :, 64:96] *= 1.5
    k[0, 0, 160], v[0, 0, 170] = math.nan, math.nan
    found = {each.name: each for each in fa_lib.explain(q, k, v, o, mask=mask, dO=dO, **others).others}
    assert found["dq"].verdict == Verdict.BUG


@pytest.mark.parametrize("times", [0, 1, 2])
def test_the_derivative_of_the_softcap_counts_once(times):
    x, dO = [each.double().requires_grad_() for each in drawn(1, 2, 64, 64)], DO[:1, :2, :64].double()
    raw = x[0] @ x[1].mT / 8
    slope = (1 - torch.tanh(raw.detach() / 2).square()) ** (times - 1)
    o = torch.softmax(2 * torch.tanh((raw.detach() + (raw - raw.detach()) * slope) / 2), -1) @ x[2]
    found = dict(zip(NAMES, torch.autograd.grad(o, x, dO)))
    others = fa_lib.explain(*(y.detach() for y in (*x, o)), softcap=2.0, dO=dO, **found).others
    bent = "" if times == 1 else f"softcap_{times}"
    assert {each.name: each.change for each in others} == dict(dq=bent, dk=bent, dv="")


def test_gradients_of_keys_that_no_row_sees_are_zero():
    seen = torch.ones(64, N, dtype=torch.bool).tril()
    o, others = gradients(Q[:, :, :64], K, V, DO[:, :, :64], attn_mask=seen)
    others["dk"][:, :, 64:] = 1.0
    found = fa_lib.explain(Q[:, :, :64], K, V, o, mask=seen, dO=DO[:, :, :64], **others)
    assert "dk is not 0 in rows 64 to 191 (67% of the rows), keys that no row sees, and right elsewhere." in f"{found}"
    found = fa_lib.explain(**RIGHT | dict(dq=in_place(DQ, (..., slice(1), slice(None)), 1.0)), causal=True)
    assert "dq is wrong in row 0 " in f"{found}"  # which sees one key, so that 0 is due


def test_gradients_that_are_zero_are_rounding():
    """Of one key the softmax is 1 whatever the score: dq and dk are 0, and what is left is of sums in FP32."""
    q, dO, _ = drawn(1, 4, 33, 64)
    k, v, _ = drawn(1, 2, 1, 64, seed=1)
    o, others = gradients(q, k, v, dO)
    assert fa_lib.explain(q, k, v, o, dO=dO, **others).is_rounding


def test_gradients_in_another_layout_follow_the_output():
    turned = {name: x.transpose(1, 2) for name, x in RIGHT.items() if name != "lse"}
    found = fa_lib.explain(**turned, lse=LSE, causal=True, layout="bshd")
    assert found.is_rounding, found
    found = fa_lib.explain(**turned, lse=LSE, causal=True)  # as if it were (batch, heads, sequence, head_dim)
    assert found.dialect == dict(layout="all_bshd") and {each.verdict for each in found.others} == {Verdict.ROUNDING}


def test_what_cannot_be_judged_is_said():
    found = fa_lib.explain(Q, K, V, RIGHT["o"], dq=DQ, causal=True)
    assert not found.others and found.not_judged.startswith("dq: dO is")
    found = fa_lib.explain(Q, K, V, RIGHT["o"], dO=DO, dq=DQ[:, :, :5], dk=DK, lse=None, causal=True)
    assert "(2, 4, 5, 64)" in found.not_judged and [each.name for each in found.others] == ["dk"]
    with pytest.raises(ValueError, match=r"^lse: got torch\.int64"):
        fa_lib.explain(Q, K, V, RIGHT["o"], lse=LSE.long(), causal=True)


def test_from_a_file_with_other_names(tmp_path):
    names = dict(dq="grad_q", dk="k_grad", dv="dv", dO="dout", lse="softmax_lse", o="attn_output")
    torch.save({names.get(name, name): x for name, x in RIGHT.items()}, tmp_path / "call.pt")
    result = command("explain", f"{tmp_path / 'call.pt'}", "--causal", "--exit-code")
    assert result.exit_code == 0, result.output
    torch.save(RIGHT | dict(dq=8 * DQ), tmp_path / "call.pt")
    assert command("explain", f"{tmp_path / 'call.pt'}", "--causal", "--exit-code").exit_code == 1
    torch.save(RIGHT | dict(grad_q=DQ), tmp_path / "call.pt")
    result = command("explain", f"{tmp_path / 'call.pt'}", "--causal")
    assert result.exit_code == 2 and "grad_q" in result.output
