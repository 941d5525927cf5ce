"""What a wrong answer looks like, and what the contract asks, as docs/reference/checks.md lists it: a small kernel for
each."""

import math
import re
from functools import partial

import pandas as pd
import pytest
import torch
from in_a_folder import command
from own_kernels import own_name
from test_relations import attention

from attention_check.checks.answers import answers
from attention_check.commands import reports
from attention_check.conventions.low_bits import q_0
from attention_check.judge.findings import Judgement, Verdict
from attention_check.judge.kernel import judge_kernel
from attention_check.measure import contract as of_contract
from attention_check.measure import wrong_answers
from attention_check.measure.capability import CAPABILITIES
from attention_check.measure.contract import contract
from attention_check.measure.measurements import Measurements
from attention_check.measure.way import way_of
from attention_check.report.labels import NOTES, noted
from attention_check.report.sentences import headline, judgement_text
from benchmarks.mutants.gradients import Altered
from fa_lib import kernels
from fa_lib.execution.paths import ROOT
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.kernels.rule import baseline_for
from fa_lib.numerics.formats import BF16, FP16


def turned(x):
    return x.transpose(1, 2)


def reads_bshd(q, k, v, causal=False, scale=None, mask=None):
    return turned(attention(*map(turned, (q, k, v)), causal=causal, scale=scale, mask=mask)).contiguous()


def scaled(factor):
    def kernel(q, k, v, causal=False, scale=None):
        return attention(q, k, v, causal, factor(q.shape[-1]))

    return kernel


def over_queries(q, k, v):
    return (torch.softmax(q.float() @ k.float().mT * q.shape[-1] ** -0.5, -2) @ v.float()).to(q.dtype)


def modulo_heads(q, k, v):
    return attention(q, *(x.repeat(1, q.shape[1] // k.shape[1], 1, 1) for x in (k, v)))


def few(monkeypatch, *asked):
    """The contract asks for BF16 and for these calls alone."""
    monkeypatch.setattr(of_contract, "FORMATS", (BF16,))
    chosen = [each for each in CAPABILITIES if each.key in asked or each.combines and {*asked}.issuperset(each.needs)]
    monkeypatch.setattr(of_contract, "CAPABILITIES", chosen)


WRONG = {  # note -> a kernel that has that fault
    "layout_all_bshd": reads_bshd,
    "layout_o_reshaped": lambda q, k, v: turned(attention(q, k, v)).reshape(q.shape),
    "heads=(1, 0)": lambda q, k, v: attention(q, k, v).flip(1),
    "causal_bottom_right": lambda q, k, v: attention(q, k, v, causal=True),
    "scale_one": scaled(lambda d: 1.0),
    "scale_one_over_d": scaled(lambda d: 1 / d),
    "scale_sqrt_d": scaled(lambda d: d**0.5),
    "scale_log2_e": scaled(lambda d: d**-0.5 / math.log(2)),
    "scale_ln_2": scaled(lambda d: d**-0.5 * math.log(2)),
    "other": lambda q, k, v: v.amax(-2, keepdim=True).expand_as(q),
}


@pytest.mark.parametrize("note", WRONG)
def test_a_wrong_answer_is_recognised(note, monkeypatch):
    few(monkeypatch)
    first, *_ = contract(WRONG[note])
    assert first["asked"] == "BF16" and first["note"] == note and noted(first["outcome"], note, "")
    assert first["outcome"] == "wrong"


OPTIONS = {  # what is asked -> a kernel that takes it and does something else, and the note
    "scale": (lambda q, k, v, scale=None: attention(q, k, v), "scale_default"),
    "boolean_mask": (lambda q, k, v, mask=None: attention(q, k, v), "mask_ignored"),
    "added_mask": (lambda q, k, v, mask=None: attention(q, k, v), "mask_ignored"),
    "softcap": (lambda q, k, v, softcap=None: attention(q, k, v), "softcap_ignored"),
    "sinks": (lambda q, k, v, sinks=None: attention(q, k, v), "sinks_ignored"),
    "causal": (lambda q, k, v, causal=False: attention(q, k, v), "causal_none"),
    "gqa": (modulo_heads, "heads_interleaved"),
    "fewer_queries": (over_queries, "softmax_over_queries"),
    "sinks_gradient": (lambda q, k, v, sinks=None: attention(
        q, k, v, sinks=None if sinks is None else sinks.detach() + 0 * sinks), ""),
    "v_dim_128": (
        lambda q, k, v: attention(q, k, v * (1 if v.shape[-1] == q.shape[-1] else 2)), "factor=2"),
    "head_dim": (lambda q, k, v: attention(q[..., :64], k[..., :64], v, scale=1.0) if q.shape[-1] == 72 else attention(
        q, k, v), "roles_first_64+scale_one"),
}  # fmt: skip


@pytest.mark.parametrize("asked", OPTIONS)
def test_an_option_that_is_not_what_it_says_is_recognised(asked, monkeypatch):
    few(monkeypatch, "sinks" if asked == "sinks_gradient" else asked)
    kernel, note = OPTIONS[asked]
    rows = {row["asked"]: row for row in contract(kernel) if row["dim"] in (0, 72)}
    assert rows["BF16"]["outcome"] == "answered"
    assert (rows[asked]["outcome"], rows[asked]["note"]) == ("wrong", note)


def heads_by_key_heads(q, k, v):
    at = torch.arange(q.shape[1]) // (1 if q.shape[1] == k.shape[1] else k.shape[1]) % k.shape[1]
    return attention(q, k[:, at], v[:, at])


def without(name, where):
    """A kernel with every option but a window and a scale, which forgets one where(q, options)."""

    def kernel(q, k, v, causal=False, mask=None, softcap=None, sinks=None):
        options = dict(causal=causal, mask=mask, softcap=softcap, sinks=sinks)
        return kernels.as_shipped(q, k, v, **options | ({name: None} if where(q, options) else {}))

    return kernel


def nan_of_a_hidden_block(q, k, v, mask=None):
    """exp(-inf + inf), as of a running maximum of -inf."""
    if mask is not None and k.shape[-2] > 512:
        hidden = ~mask if mask.dtype == torch.bool else mask == -math.inf
        if hidden[..., :512].all(-1).any():
            return torch.full_like(q, math.nan)
    return kernels.as_shipped(q, k, v, mask=mask)


def capped_after_the_mask(q, k, v, mask=None, softcap=None):
    if softcap is None or mask is None or mask.dtype != torch.bool:
        return kernels.as_shipped(q, k, v, mask=mask, softcap=softcap)
    S = (q.double() @ k.double().mT * q.shape[-1] ** -0.5).masked_fill(~mask, -math.inf)
    return (torch.softmax(softcap * torch.tanh(S / softcap), -1) @ v.double()).to(q.dtype)


def tanh_by_exponentials(q, k, v, softcap=None):
    """As vllm-project/vllm#56578: it overflows."""
    S = q.float() @ k.float().mT / q.shape[-1] ** 0.5
    if softcap is not None:
        e = torch.exp(2 * S / softcap)
        S = softcap * (e - 1) / (e + 1)
    return (S.softmax(-1) @ v.float()).to(q.dtype)


def lacks_a_key(q, k, v, causal: bool = False, window=None):
    """The first key of the block that is not full."""
    (left, right), n = window or (k.shape[2], 0), k.shape[2]
    if n % 64 == 0 or not (causal or window):
        return baseline_for(BF16)(q, k, v, causal=causal, window=window)
    behind = torch.arange(n) - torch.arange(q.shape[2])[:, None] - n + q.shape[2]
    seen = (behind <= right) & (behind >= -left)
    seen[:, n // 64 * 64] = False
    return baseline_for(BF16)(q, k, v, mask=seen)


def wrong_in_fp16(right):
    """A version for one format, which is right where right(n_q, n_kv, causal)."""

    def kernel(q, k, v, causal: bool = False):
        o = baseline_for(BF16 if q.dtype == torch.bfloat16 else FP16)(q, k, v, causal=causal)
        return o if right(q.shape[2], k.shape[2], causal) or q.dtype != torch.float16 else o.roll(1, -1)

    return kernel


ALONE = [  # a kernel with a fault in some calls, or in their gradients alone; the calls that find it, and their note
    (heads_by_key_heads, "gqa_uneven", "other"),
    (lambda q, k, v: attention(q, k * (q.shape[-2:] != (1, 96)), v), "one_query_96", "scale_zero"),
    (lambda q, k, v, mask=None: attention(
        q, k, v, mask=mask if mask is None or mask.ndim < 4 or mask.shape[-2] > 1 else mask[:1]),
     "boolean_mask_padding", "mask"),
    (lambda q, k, v, causal=False, window=None: attention(
        q, Altered.apply(k, lambda dk: dk * (1 + (causal and window is not None))), v, causal=causal, window=window),
     "causal_window", ""),
    (without("sinks", lambda q, options: q.shape[-2] == 1), "sinks_one_query_decoding", "sinks_ignored"),
    (without("mask", lambda q, options: options["causal"]), "causal_boolean_mask, causal_added_mask", "mask_ignored"),
    (nan_of_a_hidden_block, "boolean_mask_first, added_mask_first", ""),
    (capped_after_the_mask, "boolean_mask_softcap", "softcap_after_mask"),
    (tanh_by_exponentials, "large_scores_softcap", ""),
    (lacks_a_key, "causal_length_203, causal_one_query, causal_one_key, window_length_203, window_first", "other"),
    (wrong_in_fp16(lambda n_q, n_kv, causal: n_kv % 16 == 0 or not causal),
     "causal_length_203 in FP16, causal_one_query in FP16, causal_one_key in FP16", "other"),
    (wrong_in_fp16(lambda n_q, n_kv, causal: n_q > 1 or n_kv > 1), "one_key in FP16, causal_one_key in FP16", "other"),
    (wrong_in_fp16(lambda n_q, n_kv, causal: n_q % 16 == 0 or n_q == 1),
     "length_203 in FP16, fewer_queries in FP16, causal_length_203 in FP16", "other"),
]  # fmt: skip


@pytest.mark.parametrize("kernel, calls, note", ALONE, ids=[calls for _, calls, _ in ALONE])
def test_a_fault_in_some_calls_is_found_by_them_alone(kernel, calls, note, monkeypatch):
    """What is like no other attention is so in test_a_wrong_answer_is_recognised; to find that takes seconds a call."""
    if note == "other":
        monkeypatch.setattr(wrong_answers, "diagnose", lambda call: note)
    wrong = [row for row in contract(kernel) if row["outcome"] in ("wrong", "malformed")]
    assert {row["asked"].removeprefix("gradients_") for row in wrong} == {*calls.split(", ")}
    assert {row["note"].partition("=")[0] for row in wrong} == {note}


def test_a_kernel_that_takes_the_number_of_keys_from_q_is_told_so(monkeypatch):
    few(monkeypatch, "fewer_queries")
    rows = contract(lambda q, k, v: attention(q, *(x[:, :, : q.shape[-2]] for x in (k, v))))
    found = [*answers(pd.DataFrame(rows))]
    assert [each.what for each in found] == ["keys_of_q", "answer"]
    assert "take the number of keys from q" in headline(Judgement("kernel", "of q", (*found,)))


@pytest.mark.parametrize("own", ["", "top left"])
def test_a_right_kernel_has_every_option_that_it_takes(own):
    rows = {row["asked"]: row for row in contract(partial(attention, wrong={own}))}
    assert {asked for asked, row in rows.items() if row["outcome"] != "answered"} == {"softcap"}
    assert {"gqa_sinks", "gqa_one_query_decoding", "window_first"} <= rows.keys()
    noted = {asked for asked, row in rows.items() if row["note"]}
    assert ({"causal_one_query", "window_first"} <= noted if own else not noted) and "sinks_gradient" in rows


@pytest.mark.parametrize("name", ["baseline", "as_shipped", "every_step"])
def test_our_own_have_sinks_softcap_added_masks_and_v_of_another_head_dim(name, monkeypatch):
    few(monkeypatch, "added_mask", "softcap", "sinks", "v_dim_128", "v_dim_512")
    rows = contract(name)
    pairs = {"added_mask_softcap", "added_mask_sinks", "softcap_sinks"}
    assert {row["outcome"] for row in rows} == {"answered"} and pairs <= {row["asked"] for row in rows}


def test_a_kernel_of_the_other_layout_is_told_so():
    registered = own_name("of the other layout", reads_bshd)
    asked = pd.DataFrame(contract(registered))
    told = judge_kernel(registered, Measurements(asked=asked))
    assert told.verdict == Verdict.FAILS
    (gate,) = (f for f in told.findings if f.what == "not_attention")
    assert (gate.where["asked"], gate.where["note"]) == ("BF16", "layout_all_bshd")
    assert NOTES["layout_all_bshd"] in judgement_text(told) and "--layout bshd" in NOTES["layout_all_bshd"]
    rows = {row["asked"]: row["outcome"] for row in contract(f"{registered}@bshd")}
    assert {rows[each] for each in ("BF16", "causal", "fewer_queries", "gradients")} == {"answered"}


def test_a_kernel_that_reads_the_other_layout_is_judged_so(monkeypatch):
    few(monkeypatch, "boolean_mask", "causal")
    kernel = KernelRef("", "of the other layout, unasked", fn=reads_bshd)
    way = way_of(kernel)
    answered = {*way.asked.asked[way.asked.outcome == "answered"]}
    assert way.conventions == ("layout_all_bshd",) and "BF16" in answered and not (way.asked.outcome == "wrong").any()
    told = judge_kernel(kernel, Measurements(way.conventions, way.asked))
    takes = next(f for f in told.findings if f.what == "takes")
    assert takes.severity == "reported" and told.subject == way.kernel.key == "of the other layout, unasked@bshd"
    assert "It reads (batch, sequence, heads, head_dim), and was judged so" in judgement_text(told)


def test_a_kernel_of_another_scale_is_not_judged_further_and_told_so(tmp_path):
    own_scale = KernelRef("", "own scale", fn=scaled(lambda d: 1.0))
    report = reports.check_kernel(own_scale, "quick", out=tmp_path)
    (failed,) = (f for f in report.judgement.findings if f.severity == "fails")
    assert failed.what == "not_attention" and report.judgement.subject == "own scale"
    assert "It was not judged further: asked for BF16 it answers with attention with the scale 1" in judgement_text(
        report.judgement
    )


def test_a_name_with_a_layout():
    q, k, v = torch.randn(3, 1, 2, 8, 4)
    swapped = [turned(x).contiguous() for x in (q, k, v)]
    assert torch.equal(turned(kernels.get("flash@bshd")(*swapped)), kernels.flash(q, k, v))
    ours = kernels.plain("tiled@bshd")(*swapped, causal=True)
    assert torch.equal(turned(ours), kernels.plain("tiled")(q, k, v, causal=True))
    assert kernels.get("flash@bhsd") is kernels.flash
    with_lse = kernels.get("test_relations:attention@bshd")(*swapped, return_lse=True)
    assert torch.equal(turned(with_lse[0]), attention(q, k, v)) and with_lse[1].shape == (1, 2, 8)
    with pytest.raises(ValueError, match="layout: got 'sbhd'; accepted are bhsd, bshd, varlen, paged"):
        kernels.get("flash@sbhd")
    with pytest.raises(ValueError, match="kernel: got 'none'"):
        kernels.get("none@bshd")
    ran = command("check", "kernel", "flash", "--layout", "hsbd")
    assert ran.exit_code == 2 and "layout: got 'hsbd'; accepted are bhsd, bshd, varlen, paged" in ran.output


def test_a_gpu_kernel_that_returns_nan_is_watched_for_races_too():
    """The option that asks for it reached the reference, which refused it: an error of ours."""
    asker = of_contract._Asker(lambda q, k, v, **options: torch.full_like(q, math.nan), 64, "cpu", False, None)
    asker.ask_races(BF16)
    assert asker.rows == []


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


def test_a_cache_of_four_bits_is_not_wrong():
    low = lambda x: q_0(x.double(), 4).to(x.dtype)  # noqa: E731
    rows = contract(lambda q, k, v: baseline_for(BF16)(q, low(k), low(v)))
    assert {row["outcome"] for row in rows} <= {"answered", "refused"}
