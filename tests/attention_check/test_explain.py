"""`fa-lib explain`: what an output is, from its tensors alone; the page and the text for an issue."""

import json
import math

import numpy as np
import pytest
import torch
from in_a_folder import command
from torch.nn.functional import scaled_dot_product_attention as sdpa

import fa_lib
from attention_check.conventions.attention import Dialect, attend
from attention_check.conventions.conventions import CONVENTIONS
from attention_check.conventions.reading import CapturedCall, Unfit
from attention_check.explain.explain_words import lines
from attention_check.explain.explanation import explanation
from attention_check.explain.verdict import Verdict
from benchmarks.reports import drawn
from fa_lib import kernels
from fa_lib.numerics.formats import BF16

pytestmark = pytest.mark.slow  # half a minute


def turned(x):
    return x.transpose(1, 2)


Q, K, V = drawn(1, 8, 256, 64)
FEW = drawn(1, 8, 32, 64, seed=1)[0]
SHARED = drawn(1, 2, 256, 64, seed=2)
WIDE = drawn(1, 8, 256, 64, dtype=torch.float32)
BSHD = drawn(2, 82, 8, 64, dtype=torch.float32)
BOOLEAN = torch.rand(256, 256, generator=torch.Generator().manual_seed(3)) > 0.5
ALIBI = -0.1 * (torch.arange(256)[None] - torch.arange(256)[:, None]).abs()[None, None].double()
SINKS = torch.linspace(0, 4, 8)


def golden(q, k, v, **options):
    return kernels.golden(q, k, v, inputs=BF16, **options).bfloat16()


def side_by_side(x):
    """Heads in the last dimension, (batch, sequence, heads * head_dim)."""
    return turned(x).flatten(2)


def alibi(heads):
    """The bias of heads that are no power of 2, as arXiv 2108.12409's authors have it."""
    below = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / below) for i in range(below)] + [2 ** (-4 * i / below) for i in range(1, 64, 2)]
    return torch.tensor(slopes[:heads], dtype=torch.float64)[:, None, None] * ALIBI[0] * 10


def in_place(o, at, values):
    o = o.clone()
    o[at] = values
    return o


def dropped():
    torch.manual_seed(0)
    return sdpa(Q, K, V, dropout_p=0.2)


def softmax_over(tensors, dim):
    q, k, v = (x.double() for x in tensors)
    return (torch.softmax(q @ k.mT / 8, dim) @ v).float()


CASES = {  # a defect -> q, k, v, o and what the caller believes; the verdict, and the dialect
    "right": lambda: (Q, K, V, sdpa(Q, K, V)),
    "eager": lambda: (Q, K, V, kernels.unfused(Q, K, V)),
    "layout of the output": lambda: (Q, K, V, turned(sdpa(Q, K, V))),
    "three at once": lambda: (
        *BSHD, turned(sdpa(*map(turned, BSHD), scale=1 / 64, is_causal=True)), dict(scale=1 / 8)),
    "key heads interleaved": lambda: (Q, *SHARED[1:], sdpa(Q, *(x.repeat(1, 4, 1, 1) for x in SHARED[1:]))),
    "ALiBi": lambda: (Q, K, V, golden(
        Q, K, V, mask=2.0 ** -torch.arange(1, 9).double()[:, None, None] * ALIBI[0] * 10)),
    "ALiBi of six heads": lambda: (*(x[:, :6] for x in (Q, K, V)), golden(
        Q[:, :6], K[:, :6], V[:, :6], mask=alibi(6))),
    "a window": lambda: (Q, K, V, golden(Q, K, V, causal=True, window=(37, 0)), dict(causal=True)),
    "another window": lambda: (
        Q, K, V, golden(Q, K, V, causal=True, window=(37, 0)), dict(causal=True, window=(64, 0))),
    "a window to both sides": lambda: (Q, K, V, golden(Q, K, V, window=(20, 20))),
    "heads side by side": lambda: tuple(side_by_side(x)[None] for x in (Q, K, V, sdpa(Q, K, V))),
    "fewer key heads side by side": lambda: tuple(
        side_by_side(x)[None] for x in (Q, *SHARED[1:], sdpa(Q, *SHARED[1:], enable_gqa=True))),
    "the mask ignored": lambda: (Q, K, V, sdpa(Q, K, V), dict(mask=BOOLEAN)),
    "softcap dropped": lambda: (Q, K, V, sdpa(Q, K, V), dict(softcap=1.0)),
    "scale twice": lambda: (Q, K, V, sdpa(Q, K, V, scale=1 / 64), dict(scale=1 / 8)),
    "the last keys lost": lambda: (Q, K, V, sdpa(Q, K[:, :, :200], V[:, :, :200])),
    "BF16 execution": lambda: (*WIDE, sdpa(*(x.bfloat16() for x in WIDE)).float()),
    "times 1.25": lambda: (Q, K, V, sdpa(Q, K, V) * 1.25),
    "over heads, first rows wrong": lambda: (
        *WIDE, in_place(softmax_over(WIDE, 1), (slice(None), slice(None), slice(20)), 0.1)),
    "over queries, first rows wrong": lambda: (
        *WIDE, in_place(softmax_over(WIDE, 2), (slice(None), slice(None), slice(20)), 0.1)),
    "NaN rows": lambda: (Q, K, V, in_place(sdpa(Q, K, V), (0, slice(None), slice(100, 110)), math.nan)),
    "NaN hidden": lambda: (in_place(Q, (0, 0, 5), math.nan), K, V, sdpa(Q, K, V)),
    "first rows causal": lambda: (
        Q, K, V, in_place(sdpa(Q, K, V), (0, slice(None), slice(32)), sdpa(Q, K, V, is_causal=True)[0, :, :32])),
    "one head of another tensor": lambda: (Q, K, V, in_place(sdpa(Q, K, V), (0, 3), 0.1 * Q[0, 2])),
    "dropout left on": lambda: (Q, K, V, dropped()),
    "no attention": lambda: (Q, K, V, 0.1 * Q.flip(2)),
}  # fmt: skip
VERDICTS = {
    Verdict.ROUNDING: ("right", "eager"), Verdict.PRECISION: ("BF16 execution",),
    Verdict.CONVENTION: (
        "layout of the output", "key heads interleaved", "ALiBi", "ALiBi of six heads",
        "a window", "a window to both sides", "heads side by side", "fewer key heads side by side"),
}  # fmt: skip
DIALECTS = {
    "layout of the output": dict(layout="o_bshd"), "key heads interleaved": dict(heads="interleaved"),
    "three at once": dict(layout="all_bshd", scale="one_over_d", causal="bottom_right"),
    "ALiBi": dict(alibi="falling"), "ALiBi of six heads": dict(alibi="falling"),
    "a window": dict(window=(37, 0)), "another window": dict(window=(37, 0)),
    "a window to both sides": dict(window=(20, 20)), "heads side by side": dict(layout="flat_64"),
    "fewer key heads side by side": dict(layout="flat_64"),
    "the mask ignored": dict(mask="ignored"), "softcap dropped": dict(softcap="ignored"),
    "scale twice": dict(scale="one_over_d"), "the last keys lost": dict(keys=(0, 200)), "no attention": {},
}  # fmt: skip


def evidence(name):
    q, k, v, o, *options = CASES[name]()
    return CapturedCall(q, k, v, o, *options)


@pytest.mark.parametrize("name", CASES)
def test_the_verdict_and_the_dialect(name):
    found = explanation(evidence(name))
    assert found.verdict == next((verdict for verdict, names in VERDICTS.items() if name in names), Verdict.BUG), found
    if name in DIALECTS:
        assert found.dialect == DIALECTS[name]
    assert lines(found)[0].startswith(found.verdict.name)


def test_one_number_everywhere_is_said():
    found = fa_lib.explain(Q, K, V, torch.zeros_like(V))
    assert (found.verdict, found.constant) == (Verdict.BUG, 0.0)
    alike = V[:, :, :1].expand_as(V)  # then it is right, and no news
    assert fa_lib.explain(Q, K, alike, alike).verdict == Verdict.ROUNDING
    assert fa_lib.explain(Q, K, torch.ones_like(V), torch.ones_like(V)).constant is None


def test_where_it_is_wrong():
    found = explanation(evidence("first rows causal"))
    assert (
        found.where.rows == ((0, 31),)
        and found.where.heads == ()
        and found.inside[-1].dialect == dict(causal="bottom_right")
    )
    for axis in ("heads", "queries"):
        found = explanation(evidence(f"over {axis}, first rows wrong"))
        assert found.dialect == dict(softmax=f"over_{axis}") and found.where.rows[0][0] == 0
    assert explanation(evidence("one head of another tensor")).where.heads == ((3, 3),)
    assert explanation(evidence("NaN rows")).nan_rows > 0 and explanation(evidence("NaN hidden")).hidden_nan == 1
    like = explanation(evidence("dropout left on"))  # more keys than features: noise of this size may be the cause too
    assert like.dropout is None and like.noise == pytest.approx(0.2, abs=0.03)
    few = [x[:, :, :64] for x in WIDE]
    torch.manual_seed(0)
    solved = fa_lib.explain(*few, sdpa(*few, dropout_p=0.2))
    assert solved.dropout == pytest.approx(0.2, abs=0.03)
    assert explanation(evidence("times 1.25")).dialect["factor"] == pytest.approx(1.25, rel=1e-3)


OPTIONS = [{}, dict(causal=True), dict(mask=BOOLEAN), dict(mask=ALIBI), dict(window=(20, 4)), dict(softcap=1.5),
           dict(sinks=SINKS), dict(causal=True, softcap=2.0, scale=0.3, sinks=SINKS)]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS)
def test_the_believed_dialect_is_the_golden_value(options):
    golden = kernels.golden(Q, K, V, inputs=BF16, **options)
    rows = CapturedCall(Q, K, V, golden.bfloat16(), options).rows(Dialect())
    entries, heads, places = rows.places
    due = golden[entries][:, heads][:, :, places]
    assert torch.allclose(attend(rows), due, rtol=1e-12, atol=1e-13)
    again = kernels.golden(rows.q, rows.k, rows.v, inputs=BF16, **rows.options())  # as a call of its own
    assert torch.allclose(again, due, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("causal", [False, True])
def test_every_convention_is_another_output_or_does_not_fit(causal):
    options = dict(causal=causal, window=(20, 4), softcap=1.0, sinks=SINKS, scale=0.3)
    q, k, v = (x[:, :, :64] for x in (torch.cat([Q, FEW[..., :1].expand(1, 8, 32, 64)], 2), K, V))
    call = CapturedCall(q, k, v, q, options | dict(mask=BOOLEAN[:64, :64]))
    believed = call.rows(Dialect())
    for each in CONVENTIONS:
        if each.fits(call):
            try:
                rows = call.rows(Dialect(**{each.aspect: each.choice}))
            except Unfit:
                continue
            alike = rows.golden.shape == believed.golden.shape and torch.equal(rows.o, believed.o)
            assert not alike or not torch.allclose(rows.golden, believed.golden, rtol=1e-3), each.key


def test_a_file_made_with_numpy_alone(tmp_path):
    """Two outputs of one call, in FP32, under the names of PyTorch."""
    path, (q, k, v) = tmp_path / "call.npz", WIDE
    wrong = sdpa(q, k, v)
    np.savez(path, query=q, key=k, value=v, attn_output=wrong, o_ref=sdpa(q, k, v, is_causal=True))
    done = command("explain", path, "--causal", "--json", tmp_path / "found.json", "--exit-code")
    assert done.exit_code == 1, done.output
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["o"]["verdict"], found["o_ref"]["verdict"]) == ("bug", "rounding")
    assert found["o"]["dialect"] == dict(causal="none")
    assert "BUG: o " in done.output and "ROUNDING: o_ref " in done.output and "o_ref is nearer" in done.output


def test_it_is_called_in_python_too():
    found = fa_lib.explain(Q, K, V, sdpa(Q, K, V, is_causal=True))
    assert found.verdict == Verdict.CONVENTION and f"{found}".startswith("CONVENTION: o ")
    tensors = (turned(x)[0] for x in (Q, K, V, sdpa(Q, K, V)))  # (sequence, heads, head_dim)
    assert fa_lib.explain(*tensors, layout="bshd").verdict == Verdict.ROUNDING
    with pytest.raises(ValueError, match="^alibi: got True"):
        fa_lib.explain(Q, K, V, Q, alibi=True)


def test_what_no_file_may_lack(tmp_path):
    path = tmp_path / "call.npz"
    np.savez(path, q=WIDE[0], k=WIDE[1], v=WIDE[2])
    done = command("explain", path)
    assert done.exit_code == 2 and "holds no tensor named 'o', but" in done.output
    np.savez(path, q=WIDE[0], k=WIDE[1], v=WIDE[2], o=WIDE[0][:, :, :7])
    assert command("explain", path).exit_code == 2


def test_what_one_large_head_or_an_unsampled_row_would_hide():
    """Each was called rounding once."""
    large = in_place(V, (0, 0), 100 * V[0, 0])
    o = sdpa(Q, K, large)
    zeros = explanation(CapturedCall(Q, K, large, in_place(o, (0, 3), torch.zeros_like(Q[0, 0]))))
    assert zeros.where.heads == ((3, 3),)
    assert explanation(CapturedCall(Q, K, V, 1.02 * sdpa(Q, K, V))).verdict != Verdict.ROUNDING
    q, k, v = drawn(1, 2, 512, 64)
    few = explanation(CapturedCall(q, k, v, in_place(sdpa(q, k, v), (0, slice(None), slice(4, 10)), math.nan)))
    assert few.verdict == Verdict.BUG and few.nan_rows == 12
    q, k, v = drawn(4, 16, 64, 64)
    lost = explanation(CapturedCall(q, k, v, in_place(sdpa(q, k, v), 2, torch.zeros_like(q[0]))))
    assert lost.verdict == Verdict.BUG and lost.where.entries == ((2, 2),)


def test_values_that_no_row_sees_may_be_nan():
    mask = torch.arange(256)[None] < 200
    k, v = (in_place(x, (0, slice(None), slice(200, None)), math.nan) for x in (K, V))
    o = sdpa(Q, K, V, attn_mask=mask)
    assert explanation(CapturedCall(Q, k, v, o, dict(mask=mask))).verdict == Verdict.ROUNDING
    seen = in_place(V, (0, 0, 7), math.nan)
    assert explanation(CapturedCall(Q, K, seen, o, dict(mask=mask))).hidden_nan > 0


def test_where_no_row_sees_a_key_nothing_is_rounding():
    mask = torch.zeros(256, 256, dtype=torch.bool)
    assert explanation(CapturedCall(Q, K, V, sdpa(Q, K, V), dict(mask=mask))).dialect == dict(mask="ignored")
    assert explanation(CapturedCall(Q, K, V, 7 * Q, dict(mask=mask))).verdict == Verdict.BUG


def test_a_key_lost_of_many():
    q, k, v = drawn(1, 2, 2048, 64)
    few = q[:, :, :64]
    lost = explanation(CapturedCall(few, k, v, sdpa(few, k[:, :, :2047], v[:, :, :2047])))
    assert lost.dialect == dict(keys=(0, 2047))


@pytest.mark.parametrize("change, words", [
    (dict(window=5), "window: got 5"), (dict(mask=[[True]]), "mask: got list"),
    (dict(dropout_p=0.1), "dropout_p: got 0.1"), (dict(mask=torch.ones(1, 7, 256)), "mask: got shape"),
])  # fmt: skip
def test_an_option_that_no_call_has_is_refused(change, words):
    with pytest.raises(ValueError, match=words):
        fa_lib.explain(Q, K, V, Q, **change)


def test_what_came_with_a_right_output_may_be_wrong(tmp_path):
    q, k, v, o, *_ = CASES["right"]()
    lse = torch.logsumexp(q.double() @ k.double().mT / 8, -1)
    torch.save(dict(q=q, k=k, v=v, o=o, lse=lse * 2), tmp_path / "call.pt")
    output = command("explain", f"{tmp_path / 'call.pt'}").output
    assert output.startswith("ROUNDING") and "Nothing to fix" not in output and "BUG: lse" in output
