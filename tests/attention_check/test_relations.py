"""Relations: kernels that keep them all, and for each relation a small kernel that breaks it."""

import math
from functools import partial

import pandas as pd
import pytest
import torch

from attention_check.checks import relations, shapes
from attention_check.checks.relations import RELATIONS, relate
from attention_check.checks.relations.masks import MORE_QUERIES, WIDE
from attention_check.checks.relations.subject import BITWISE, BREAKS, Found, KernelUnderTest
from attention_check.checks.relations.values import P_BELOW
from attention_check.checks.shapes import measure_shapes
from attention_check.judge.findings import Severity
from attention_check.measure.capability import Capabilities
from attention_check.measure.plan import QUICK, REPORT
from benchmarks import judge
from benchmarks.mutants import masks
from benchmarks.mutants.gradients import Altered, delta_forgotten
from fa_lib import E4M3, kernels
from fa_lib.numerics.formats import FP32, FP64, Format

LOW = {"a mask of -4": -4.0, "a mask of -1e4": -1e4}  # in place of -inf
N = 128  # keys: less work, and two tiles of most kernels


def attention(
    q, k, v, causal=False, scale=None, mask=None, window=None, sinks=None, return_lse=False, wrong=frozenset()
):
    """Attention in FP32 with every option that is asked for, and one thing wrong where it is named."""
    (n_q, d), n = q.shape[-2:], k.shape[-2]
    o_dtype, k_at = q.dtype, torch.arange(n)
    own = torch.arange(n_q)[:, None] + (0 if "top left" in wrong else n - n_q)
    q, k, v = (x.float() for x in (q, k, v))
    S = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT * (scale or d**-0.5)
    if mask is not None:
        low = next((low for name, low in LOW.items() if name in wrong), -math.inf)
        S = S.masked_fill(~mask, low) if mask.dtype == torch.bool else S + mask.float()
    hidden = torch.zeros(n_q, n, dtype=torch.bool)
    if causal:
        hidden |= k_at > own
    if window is not None:
        hidden |= (k_at < own - window[0] - int("a wide window" in wrong)) | (k_at > own + window[1])
    S = S.masked_fill(hidden, -1e4 if "a mask of -1e4" in wrong else -math.inf)
    sink = sinks.float()[:, None, None] if sinks is not None else torch.tensor(-math.inf)
    sink = sink.flip(0) if "sinks of other heads" in wrong else sink
    m = torch.maximum(S.amax(-1, keepdim=True), sink)
    m = m.nan_to_num(neginf=0.0)
    m = torch.zeros_like(m) if "no maximum" in wrong else m
    P = torch.exp(S - m)
    l = P.sum(-1, keepdim=True) + torch.exp(sink - m)
    shared = v.repeat_interleave(q.shape[1] // v.shape[1], 1)
    P = P.where(P >= 2.0**-14, 0.0) if "small P are 0" in wrong else P
    o = P / l.where(l > 0, 1.0) @ shared
    L = ((0 if "a log-sum-exp without the maximum" in wrong else m) + torch.log(l))[..., 0]
    L = L / (math.log(2) if "a log-sum-exp in base 2" in wrong else 1)
    return (o.to(o_dtype), L) if return_lse else o.to(o_dtype)


def altered(**changes):
    """Attention whose gradients of q, k and v are changed."""

    def kernel(q, k, v, mask=None):
        q, k, v = (Altered.apply(x, changes.get(name, lambda dx: dx)) for name, x in zip("qkv", (q, k, v)))
        return attention(q, k, v, mask=mask)

    return kernel


def block_scaled(q, k, v, **options):
    """V in FP8 with one scale for 32 keys."""
    blocks = v.double().unflatten(-2, (-1, 32))
    scale = blocks.abs().amax(-2, keepdim=True) / E4M3.max
    return attention(q, k, (E4M3(blocks / scale) * scale).flatten(-3, -2).to(v.dtype), **options)


def reads_as_if_contiguous(q, k, v):
    return attention(*(torch.as_strided(x, x.shape, torch.empty(x.shape).stride()) for x in (q, k, v)))


def other_splits(q, k, v, causal=False):
    """Few rows in the batch: the keys in halves, merged; the sums are others by rounding alone."""
    if q.shape[0] > 1 or causal:
        return attention(q, k, v, causal=causal)
    (a, x), (b, y) = (
        attention(q.float(), *pair, return_lse=True) for pair in zip(*(t.float().chunk(2, -2) for t in (k, v)))
    )
    w = torch.sigmoid(x - y)[..., None]
    return (w * a + (1 - w) * b).to(q.dtype)


def wrong(*names):
    return partial(attention, wrong=frozenset(names))


(AS_LONG,) = (case for case, beyond in WIDE.items() if beyond < 0)
BREAKERS = {  # relation -> a kernel that breaks it, and a case that shows it
    "batch_invariance": (lambda q, k, v: attention(q, k, v) * (1 + q.shape[0] / 4), "batch"),
    "strides": (reads_as_if_contiguous, "heads and rows swapped"),
    "constant_values": (lambda q, k, v: attention(q, k, v) * (1 + 1 / 64), "V = 1"),
    "powers_of_two": (lambda q, k, v: attention(q, k, v.clamp(-8, 8)), "2^4"),
    "tiny_values": (lambda q, k, v: attention(q, k, v * (v.abs() >= 2.0**-14)), "V below FP16's normal numbers"),
    "every_key": (lambda q, k, v: attention(q, k[:, :, :-1], v[:, :, :-1]), "257 keys"),
    "score_shift": (wrong("no maximum"), "-128"),
    "causality": (block_scaled, "V 8192 times as large"),
    "prefill_decode": (wrong("top left"), "chunks of 64"),
    "masked_values": (wrong("a mask of -4"), "V 8192 times as large"),
    "low_scores": (wrong("a mask of -1e4"), "boolean mask"),
    "masked_nan": (lambda q, k, v, mask: attention(q, k, v + 0 * k, mask=mask), "NaN in K"),
    "hidden_row": (lambda q, k, v, mask: attention(q, k, v, mask=mask | ~mask.any(-1, keepdim=True)), "boolean mask"),
    "window": (lambda q, k, v, window=None: attention(q, k, v, window=window and (8, 8)), AS_LONG),
    "window_edges": (wrong("a wide window"), "16 keys, hidden before"),
    "sinks": (wrong("sinks of other heads"), "scores of 0"),
    "splits": (wrong("a log-sum-exp without the maximum"), "parts of unlike length"),
    "dv_sum": (altered(v=lambda dv: torch.cat([dv[:, :, :-16], 0 * dv[:, :, -16:]], 2)), "no mask"),
    "hidden_gradients": (altered(k=lambda dk: dk + 2.0**-3), "dK of hidden keys"),
    "hidden_row_gradients": (altered(q=lambda dq: dq + 2.0**-10), "boolean mask"),
    "constant_gradients": (delta_forgotten, "dQ"),
}  # fmt: skip


def first_tiles_unwritten(q, k, v, causal=False):
    o = attention(q, k, v, causal=causal)
    o[:, :, : max(q.shape[-2] - k.shape[-2], 0) // 64 * 64] = 7
    return o


ALSO = [  # a relation, another kernel that breaks it, and a case that shows it
    ("strides", lambda q, k, v: attention(q, k, torch.as_strided(v, v.shape, k.stride())), "only V swapped"),
    ("tiny_values", wrong("small P are 0"), P_BELOW),
    ("hidden_row", first_tiles_unwritten, MORE_QUERIES),
]


def two_queries_see_the_last_key(q, k, v, causal=False):
    n_q, n_kv = q.shape[-2], k.shape[-2]
    return attention(q, k, v, causal=causal and (n_q != 2 or n_kv == 2))


def refuses_few_queries(q, k, v, causal=False):
    if causal and q.shape[-2] != k.shape[-2]:
        raise NotImplementedError("as many queries as keys")
    return attention(q, k, v, causal=causal)


def test_causality_is_asked_of_few_queries_too():
    """A tile that holds one key beyond the first query is not masked: with 2 queries that is the last tile."""
    rows = relate(two_queries_see_the_last_key, "causality", "BF16", n=N)
    assert {row["outcome"] for row in rows} == {"breaks", "rounding"}  # the change of V alone is large
    rows = relate(refuses_few_queries, "causality", "BF16", n=N)
    assert {row["outcome"] for row in rows} == {"bitwise"}


NOT_OF = {("tiny_values", "BF16"), ("tiny_values", "FP32")}  # formats not asked for


@pytest.mark.parametrize("fmt", ["BF16", "FP16", "FP32"])
@pytest.mark.parametrize("key", RELATIONS)
def test_a_right_kernel_keeps_every_relation(key, fmt):
    """FP32 inside, rounded at the end: with every option, and gradients of torch's own."""
    rows = relate(attention, key, fmt, n=N)
    asked = [row for row in rows if row["outcome"] != "not_asked"]
    assert {row["outcome"] for row in asked} <= {"bitwise", "rounding"} or key == "masked_nan", rows
    assert bool(asked) == ((key, fmt) not in NOT_OF)
    if key == "masked_nan":  # 0 * NaN of hidden V is NaN
        assert all("V" in row["case"] for row in rows if row["outcome"] == "breaks")
    finite = [row for row in rows if not math.isnan(row["number"])]
    assert all(row["relation"] == key and row["number"] <= max(row["limit"], 0) for row in finite)


@pytest.mark.parametrize("key, fn, case", [(key, *BREAKERS[key]) for key in RELATIONS] + ALSO)
def test_each_relation_is_broken_by_a_kernel_with_that_fault(key, fn, case):
    fmt = "FP16" if key == "tiny_values" else "BF16"
    (row,) = (row for row in relate(fn, key, fmt, n=N) if row["case"] == case)
    assert row["outcome"] == "breaks" and not row["number"] <= row["limit"]


def test_a_log_sum_exp_to_base_2_is_a_convention():
    rows = {row["case"]: row for row in relate(wrong("a log-sum-exp in base 2"), "splits", "BF16", n=N)}
    assert rows.pop("log-sum-exp")["problem"] == "to base 2"
    assert {row["outcome"] for row in rows.values()} == {"rounding"}


@pytest.mark.parametrize("second", ["maximum", "weights", "log-sum-exp in BF16"])
def test_a_second_output_that_nobody_promised_is_no_log_sum_exp(second):
    def kernel(q, k, v, **options):
        S = q.float() @ k.float().mT * q.shape[-1] ** -0.5
        beside = dict(maximum=S.amax(-1), weights=torch.softmax(S, -1)).get(second, S.logsumexp(-1).bfloat16())
        return attention(q, k, v), beside

    outcomes = {row["outcome"] for row in relate(kernel, "splits", "BF16", n=N)}
    assert outcomes == ({"rounding"} if second == "log-sum-exp in BF16" else {"not_asked"})


def masked_by(low, added=False):
    """Attention that hides keys by a finite score, put in their place or added to theirs."""

    def kernel(q, k, v, causal=False, scale=None, mask=None):
        S = q.float() @ k.float().mT * (scale or q.shape[-1] ** -0.5)
        seen = torch.ones(S.shape[-2:], dtype=torch.bool).tril() if causal else mask
        seen = seen if seen.dtype == torch.bool else seen == 0
        P = torch.softmax(torch.where(seen, S, S + low if added else low), -1)
        return (P @ v.float()).to(q.dtype)

    return kernel


@pytest.mark.parametrize("fmt", ["BF16", "FP16", "FP32"])
def test_a_mask_of_a_finite_number_shows_below_it(fmt):
    """-1e4 does; the smallest number of the format, which is -65504 in FP16, does not, but where -1e4 is the mask."""
    for added in (False, True):
        rows = relate(masked_by(-1e4, added), "low_scores", fmt, n=N)
        assert [row["outcome"] for row in rows] == ["breaks"] * 3 + ["rounding"]
        assert all(row["number"] > 3 for row in rows[:3])
        lowest = torch.finfo(Format.of(fmt).dtype).min
        outcomes = [row["outcome"] for row in relate(masked_by(lowest, added), "low_scores", fmt, n=N)]
        assert outcomes == ["bitwise"] * 3 + ["breaks"]
    (finding, _) = relations.judged(pd.DataFrame(rows).assign(key="low_scores", fmt=fmt))
    assert finding.severity == Severity.FAILS


def with_dk_times(factor):
    """Attention whose dK is a factor of q, k and scale off."""

    def kernel(q, k, v, causal=False, scale=None):
        k = Altered.apply(k, lambda dk: dk * factor(q, k, scale or q.shape[-1] ** -0.5))
        return attention(q, k, v, causal, scale)

    return kernel


DK = {  # what dK is in a backward pass by hand -> a factor of q, k and scale
    "right": lambda q, k, scale: 1.0,
    "a mean over the heads that share a key head": lambda q, k, scale: k.shape[1] / q.shape[1],
    "scaled by 1 / sqrt(d)": lambda q, k, scale: q.shape[-1] ** -0.5 / scale,
}


@pytest.mark.parametrize("defect", DK)
@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_a_quick_check_asks_for_gradients_of_shared_heads_and_another_scale(defect, head_dim):
    call = dict(head_dim=head_dim, distribution="normal", fmt="BF16", seed=0, kernel=with_dk_times(DK[defect]))
    at = dict(head_dim=head_dim, fmt="BF16", seed=0)
    rows = [dict(shape=shape) | at | row for shape in QUICK.shapes for row in measure_shapes(shape, **call)]
    failing = [f for f in shapes.judged(pd.DataFrame(rows)) if f.severity == Severity.FAILS]
    assert [f.where["shape"] for f in failing] == ["causal GQA 203"] * (defect != "right")


@pytest.mark.parametrize("key", ["splits_in_fp32", "folded_scale", "fa1"])
def test_log_sum_exps_of_low_scores_are_as_exact_as_fp32(key):
    (each,) = (one for one in judge.EVERY if one.key == key)
    for fmt in ("BF16", "FP32"):
        outcomes = {row["outcome"] for row in relate(each.kernel, "low_scores", fmt)}
        assert outcomes <= {"bitwise", "rounding", "not_asked"}


@pytest.mark.parametrize("key, what", [("hidden_rows_nan", "NaN"), ("hidden_rows_mean", "the mean of V")])
def test_what_many_kernels_give_where_a_row_sees_no_key_is_a_convention(key, what):
    (row,) = (row for row in relate(getattr(masks, key), "hidden_row", "FP16", n=N) if row["case"] == "boolean mask")
    assert row["outcome"] == "convention" and row["problem"] == what
    (finding, _) = relations.judged(pd.DataFrame([dict(key="hidden_row", fmt="FP16") | row]))
    assert finding.severity == Severity.REPORTED


@pytest.mark.parametrize(
    "name, fmt", [("flash", "BF16"), ("flash", "FP32"), ("as_shipped", "FP16"), ("baseline", "BF16")]
)
def test_our_own_kernels_keep_them(name, fmt):
    """NaN in hidden keys is NaN in all of them, 0 * NaN; sinks and a log-sum-exp not all of them have."""
    rows = [row for key in RELATIONS if key != "masked_nan" for row in relate(name, key, fmt, n=N)]
    broken = {row["relation"] for row in rows if row["outcome"] in ("breaks", "broken")}
    assert not broken
    asked = {row["relation"] for row in rows if row["outcome"] != "not_asked"}
    missing = {key for key in RELATIONS if key != "masked_nan" and (key, fmt) not in NOT_OF} - asked
    assert missing == {"flash": {"sinks", "splits"}}.get(name, {"splits"})


def test_gradients_with_hidden_rows_may_not_be_nan():
    """exp(-inf - -inf) in a backward pass by hand."""
    nan = altered(k=lambda dk: dk * math.nan)
    for row in relate(nan, "hidden_row_gradients", "BF16", n=N)[:2]:
        assert row["outcome"] == "broken" and "NaN or infinite values in dQ, dK or dV" in row["problem"]
    nan_rows = lambda q, k, v, mask: attention(q, k, v, mask=mask).where(mask.any(-1, keepdim=True), math.nan)  # noqa: E731
    assert relate(nan_rows, "hidden_row_gradients", "BF16", n=N)[0]["outcome"] == "not_asked"


def test_what_is_carried_in_the_format_breaks_the_sum_of_weights_alone():
    """every_step rounds O and l at each of four tiles: its weights do not sum to one within two roundings, nor do those
    of its backward pass."""
    keys = ("constant_values", "batch_invariance", "powers_of_two", "causality", "dv_sum")
    rows = [row for key in keys for row in relate("every_step", key, "BF16")]
    assert {row["relation"] for row in rows if row["outcome"] == "breaks"} == {"constant_values", "dv_sum"}


def test_bits_and_rounding_are_told_apart():
    rows = {row["case"]: row for row in relate(other_splits, "batch_invariance", "FP32")}
    assert rows["batch"]["outcome"] == "rounding" and 0 < rows["batch"]["number"] < rows["batch"]["limit"]
    assert rows["position in the batch"]["outcome"] == rows["heads"]["outcome"] == "bitwise"


def test_what_a_kernel_lacks_is_not_asked_and_what_it_answers_instead_is_broken():
    plain = lambda q, k, v: attention(q, k, v).detach()  # noqa: E731
    for key in ("causality", "masked_values", "window", "sinks", "splits", "dv_sum"):
        assert {row["outcome"] for row in relate(plain, key, "BF16")} == {"not_asked"}
        assert all(row["problem"].startswith("raises") for row in relate(plain, key, "BF16")) or key == "splits"
    assert {row["outcome"] for row in relate(lambda q, k, v: q[..., :3], "constant_values", "BF16")} == {"broken"}
    (first, *_) = relate(lambda q, k, v: attention(q, k, v) * math.nan, "constant_values", "BF16")
    assert first["outcome"] == "broken" and "NaN or infinite values" in first["problem"]
    none = Capabilities(gradients=False)
    assert {row["outcome"] for row in relate(attention, "dv_sum", "BF16", able=none)} == {"not_asked"}
    with pytest.raises(ValueError, match="key: got 'nothing'; accepted are batch_invariance"):
        relate(attention, "nothing", "BF16")
    assert REPORT.relations is None and set(RELATIONS) > set(QUICK.relations) > set()


def test_a_causal_kernel_is_asked_causally():
    causal = lambda q, k, v: attention(q, k, v, causal=True)  # noqa: E731
    rows = [row for key in RELATIONS for row in relate(causal, key, "BF16", able=Capabilities(causal=True), n=N)]
    assert not [row for row in rows if row["outcome"] in ("breaks", "broken") and row["relation"] != "masked_nan"]
    asked = {row["relation"] for row in rows if row["outcome"] != "not_asked"}
    assert asked >= {"batch_invariance", "causality", "prefill_decode", "constant_values", "score_shift", "dv_sum"}
    top_left = partial(attention, causal=True, wrong={"top left"})
    able = Capabilities(causal=True, top_left=True)
    rows = [row for key in RELATIONS for row in relate(top_left, key, "BF16", able=able, n=N)]
    assert not [row for row in rows if row["outcome"] in ("breaks", "broken") and row["relation"] != "masked_nan"]


def test_allowed_in_fp32_with_a_window_and_sinks_is_that_of_the_same_masks():
    subject = KernelUnderTest(attention, FP32, n=40)
    q, k, v = subject.draw()
    near = torch.ones(40, 40, dtype=torch.bool).tril(2).triu(-3)
    assert subject.allowed(q, k, v, window=(3, 2)) == subject.allowed(q, k, v, mask=near) > 0
    golden = kernels.golden(q, k, v, inputs=FP64, sinks=torch.tensor([1.0, 2.0]))
    one = subject.allowed(q, k, v, sinks=torch.tensor([1.0, 2.0]))
    assert 0 < one < 1e-5 and (attention(q, k, v, sinks=torch.tensor([1.0, 2.0])) - golden).abs().max() < one


def row(key, case, outcome, number=math.nan, limit=0.0, fmt="BF16", problem=""):
    return dict(key=key, fmt=fmt, relation=key, case=case, outcome=outcome, number=number, limit=limit, problem=problem)


def test_a_break_fails_and_bits_that_differ_are_noted():
    table = pd.DataFrame([
        row("constant_values", "V = 1", "breaks", 0.02, 0.008),
        row("constant_values", "V of each feature", "breaks", 0.04, 0.008),
        row("batch_invariance", "batch", "rounding", 0.001, 0.02),
        row("prefill_decode", "two chunks", "rounding", 0.001, 0.02),
        row("masked_nan", "NaN in V", "breaks"),
        row("masked_nan", "NaN in K", "bitwise", 0.0),
        row("strides", "expanded heads", "broken", problem="returns a list"),
        row("sinks", "any scores", "not_asked"),
    ])  # fmt: skip
    found = {finding.where.get("relation", "all"): finding for finding in relations.judged(table)}
    failing = {key for key, finding in found.items() if finding.severity == Severity.FAILS}
    assert failing == {"constant_values", "strides"}
    assert found.keys() - failing == {"batch_invariance", "masked_nan", "all"}
    worst = found["constant_values"]
    assert worst.where["case"] == "V of each feature" and (worst.number, worst.limit) == (0.04, 0.008)
    assert len(worst.where["cases"]) == 2 and found["all"].where == dict(held=4, of=7, not_asked=1)
    kept = [row("powers_of_two", "2^4", "bitwise", 0.0)]
    (only,) = relations.judged(pd.DataFrame(kept))
    assert only.severity == Severity.PASSES and only.where == dict(held=1, of=1, not_asked=0)
    assert not [*relations.judged(pd.DataFrame())]


def test_a_difference_of_nan_breaks_and_of_zero_is_the_same_bits():
    outcomes = [Found(number, limit).outcome for number, limit in ((0, 0), (1, 1), (1.1, 1), (math.nan, 1))]
    assert outcomes == ["bitwise", "rounding", "breaks", "breaks"]


def test_a_call_that_allows_no_error_at_all_is_compared_too(monkeypatch):
    """Where Baseline itself is exact, as for V = 0."""
    monkeypatch.setattr(KernelUnderTest, "allowed", lambda *_, **__: 0.0)
    monkeypatch.setattr(KernelUnderTest, "allowed_gradients", lambda *_, **__: (0.0,) * 3)
    rows = relate(attention, "hidden_row_gradients", "BF16", n=N)
    assert rows and {row["outcome"] for row in rows} <= {BITWISE, BREAKS} and {row["limit"] for row in rows} == {0.0}
