"""What strangers' kernels taught the instrument: a small kernel with each habit, and what is said of it."""

import math
import re
from dataclasses import replace
from functools import cache, partial

import pandas as pd
import pytest
import torch
from in_a_folder import command
from own_kernels import found

from attention_check.checks.errors import measure
from attention_check.checks.repeats import repeats
from attention_check.judge.findings import Severity, Verdict
from attention_check.judge.kernel import judge_kernel
from attention_check.measure.capability import LARGE
from attention_check.measure.contract import contract
from attention_check.measure.draws import SIDE
from attention_check.measure.examine import examine
from attention_check.measure.plan import QUICK
from attention_check.measure.reference_cache import Inputs
from attention_check.report.labels import LABELS
from attention_check.report.sentences import headline, judgement_text
from benchmarks.mutants import skeleton
from benchmarks.mutants.casts import no_maximum
from benchmarks.mutants.gradients import Altered
from benchmarks.mutants.masks import top_left
from benchmarks.mutants.skeleton import Steps, valued
from examples import fp8_attention, my_kernel
from fa_lib import BF16, FP16, FP32, kernels
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.rule import ALLOWED
from ptx_machine.memory import Fault

pytestmark = pytest.mark.slow

TINY = replace(QUICK, lengths=(128, 512), shapes=("256",), head_dims=(), seeds=1, bias_seeds=2, runs=2)


@pytest.fixture(scope="module")
def examined():
    """(Measurements, judgement) of a function, once."""

    @cache
    def examined(fn, depth=TINY):
        kernels.register(name := f"stranger {len(kernels.available())} {fn.__name__}", fn)
        found = examine(name, depth)
        return found, judge_kernel(name, found)

    return examined


def attention(q, k, v, causal=False, scale=None):
    """Attention in FP32, rounded at the end."""
    return kernels.unfused(q.float(), k.float(), v.float(), causal=causal, scale=scale).to(q.dtype)


@pytest.mark.parametrize(("fn", "broken"), [(fp8_attention.attention, []), (fp8_attention.unshifted, ["tiny_values"])])
def test_in_fp8_a_kernel_is_judged_beside_baseline_in_fp8(fn, broken, examined):
    measured, judgement = examined(fn, replace(TINY, arithmetic="FP8_HEAD"))
    assert [each.where.get("relation") for each in judgement.findings if each.severity == Severity.FAILS] == broken
    assert found(judgement, "arithmetic") and not len(measured.bounds)
    if not broken:
        assert found(examined(fn)[1], "error")[0].number > 50  # of 16 bits it is far off, though it is right


def few_queries_in_low_precision(q, k, v, causal=False, scale=None):
    """Four keys after four keys, O and l in FP16: as ggml, key by key, accumulates O for fewer than 64 queries."""
    if q.shape[-2] >= 64 or causal or scale:
        return attention(q, k, v, causal, scale)
    in_fp16 = Steps(tile=4, carry=lambda *carried: [valued(x, x.half()) for x in carried])
    return skeleton.attention(q, k, v, steps=in_fp16)


def test_a_kernel_that_is_low_for_few_queries_alone_is_caught_by_error_and_by_carry(examined):
    """Errors and carries are measured at 1, 16 and many queries, and the verdict is of the worst."""
    seen, judgement = examined(few_queries_in_low_precision)
    times = seen.lengths.groupby(["fmt", "n", "queries"]).times_max.max()
    assert times["FP16", 512, 1] > 2 and times["FP16", 512, 16] > 2 and times["FP16", 512, 512] < 1.1
    assert not judgement.passed and set(judgement.carries) == {"accumulator", "row_sum"}
    low = [f for f in found(judgement, "carry") if f.severity == Severity.FAILS]
    assert all(f.where["queries"] == [1, 16] and f.where["tile"] == 4 for f in low if f.where["fmt"] == "FP16")
    assert "for 1 query and 16 queries at a time" in judgement_text(judgement)
    (error,), (growth,) = found(judgement, "error"), found(judgement, "growth")
    assert error.where["queries"] in (1, 16) and error.where["fmt"] == "FP16"
    assert growth.where["queries"] in (1, 16) and growth.number > 2


def causal_alone(q, k, v, causal=False, scale=None):
    if not causal:
        raise NotImplementedError("it is always causal")
    return attention(q, k, v, True, scale)


def causal_unasked(q, k, v):
    return attention(q, k, v, causal=True)


def wrong_without_a_mask(q, k, v, causal=False, scale=None):
    return attention(q, k if causal else k.roll(1, -1), v, causal, scale)


def low_and_causal(q, k, v):
    return my_kernel.attention(q, k, v, causal=True)


@pytest.mark.parametrize("fn, passes", [(causal_alone, True), (causal_unasked, True), (low_and_causal, False)])
def test_a_causal_kernel_is_judged_causally(fn, passes, examined):
    seen, judgement = examined(fn, replace(TINY, shapes=("256", "causal 384")))
    assert judgement.passed is passes and found(judgement, "causal_only")
    assert set(seen.asked.note[seen.asked.asked.isin(("BF16", "FP16"))]) == {"causal_only"}
    assert set(seen.shapes["shape"]) == {"causal 384"} and set(seen.shapes.outcome) == {"answered"}
    assert judgement.carries == (() if passes else ("accumulator", "row_sum"))
    assert seen.lengths.times_max.notna().all() and bool(seen.lengths.times_max.max() < 2) is passes


def test_a_kernel_that_is_wrong_without_a_mask_fails_though_it_is_right_causally(examined):
    _, judgement = examined(wrong_without_a_mask, replace(TINY, shapes=("256", "causal 384")))
    (answer,) = found(judgement, "answer")
    assert not judgement.passed and answer.where["asked"] == "unmasked" and found(judgement, "causal_only")
    assert "a call without a mask" in judgement_text(judgement)


def changes_k(q, k, v, causal=False, scale=None):
    if k.shape[-1] not in (64, 96, 128):
        raise ValueError("headdim should be in [64, 96, 128]")
    o = attention(q, k, v, causal, scale)
    k.sub_(k.mean(-2, keepdim=True))
    return o


def changes_k_at_64(q, k, v, causal=False, scale=None):
    return changes_k(q, k, v, causal, scale) if k.shape[-1] == 64 else attention(q, k, v, causal, scale)


def gradient_of_203_keys_is_nan(q, k, v, causal=False, scale=None):
    return attention(q, Altered.apply(k, lambda dK: dK * math.nan) if k.shape[-2] == 203 else k, v, causal, scale)


class Unsteady:
    """Attention; every second output has an infinite or NaN value."""

    def __init__(self, value: float):
        self.value, self.calls = value, 0

    def __call__(self, q, k, v, causal=False, scale=None):
        o = attention(q, k, v, causal, scale).clone()
        self.calls += 1
        o[0, 0, 0, 0] = self.value if self.calls % 2 == 0 else o[0, 0, 0, 0]
        return o


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_an_output_that_is_not_finite_in_some_runs_is_noise(examined, value):
    measured = repeats(Unsteady(value), "BF16", runs=4, head_dim=32)
    assert measured["apart"] == math.inf
    seen, judgement = examined(attention)
    judgement = judge_kernel(judgement.subject, replace(seen, repeats=pd.DataFrame([measured])))
    assert "It gives other results on each call: not finite in some, limit" in judgement_text(judgement)


def of_another_dtype_once(q, k, v, causal=False, scale=None):
    o = attention(q, k, v, causal, scale)
    return o.double() if (q.shape[-2], k.shape[-2]) == (113, 203) else o


def whole_chunks_alone(q, k, v, causal=False, scale=None):
    n = k.shape[-2] if k.shape[-2] <= 1024 else k.shape[-2] // 1024 * 1024
    return attention(q, k[..., :n, :], v[..., :n, :], causal, scale)


def low_in_fp16(q, k, v, causal=False, scale=None):
    o = attention(q, k, v, causal, scale)
    return o * (1 + 2**-6 * k.shape[-2] / 512) if q.dtype == torch.float16 else o


def outwards_by(ulp):
    def shifted(q, k, v, causal=False, scale=None):
        o = kernels.baseline(q, k, v, causal=causal, scale=scale)
        fmt = {torch.bfloat16: BF16, torch.float16: FP16}.get(q.dtype, FP32)
        odd = torch.arange(o.numel()).reshape(o.shape) % 8 < 8 * ulp  # of every eighth output, one ulp
        return (o.double() + odd * o.double().sign() * fmt.ulp(o.double())).to(q.dtype)

    return shifted


def test_a_bias_is_told_beside_baselines_and_from_a_least_size_on(examined):
    kernels_own = replace(TINY, bias_seeds=6, lengths=(128,))
    seen, judgement = examined(outwards_by(0), kernels_own)
    assert (seen.inputs.outwards == seen.inputs.baseline_outwards).all()
    for f in found(judgement, "outwards"):
        assert f.where["baseline"] == pytest.approx(f.number) and "Baseline's do too" in judgement_text(judgement)
    _, judgement = examined(outwards_by(0.5), kernels_own)
    (bias,) = found(judgement, "outwards")
    assert bias.number > bias.where["baseline"] + 2 * SIDE and "Baseline's there, by" in judgement_text(judgement)
    none = seen.inputs.assign(outwards=[-1e-3 - 1e-6 * i for i in range(len(seen.inputs))])
    assert not found(judge_kernel(seen.lengths.kernel.iloc[0], replace(seen, inputs=none)), "outwards")


def no_fp64(q, k, v, causal=False, scale=None):
    return attention(q, k, v, causal, scale).to(q.dtype if q.dtype != torch.float64 else torch.float32)


def nan_in_fp16(q, k, v, causal=False, scale=None):
    return attention(q, k, v, causal, scale) * (math.nan if q.dtype == torch.float16 else 1)


def fp32_in_fp16(q, k, v, causal=False, scale=None):
    q, k, v = (x.half().to(x.dtype) if x.dtype == torch.float32 else x for x in (q, k, v))
    return kernels.unfused(q, k, v, causal=causal, scale=scale)


def test_fp32_that_is_computed_in_less_is_told(examined):
    seen, judgement = examined(fp32_in_fp16)
    (told,) = found(judgement, "less_than_format")
    assert judgement.passed and told.severity == Severity.REPORTED and told.where["fmt"] == "FP32"
    assert told.number == pytest.approx(800, rel=0.5) and told.number > told.limit
    assert re.search(
        r"Of inputs in FP32 its error is not that of FP32: [\d.]+ × that of plain sums", judgement_text(judgement)
    )
    own = seen.asked.set_index("asked").times
    assert own["FP64"] < 20 and own.drop(["FP32", "FP64"]).isna().all()
    (other,) = found(examined(attention)[1], "less_than_format")
    assert other.where["fmt"] == "FP64"  # it computes them in FP32


def defect_in_options(q, k, v, causal=False, scale=None, window=None, sinks=None, softcap=None):
    if softcap is not None:
        raise NotImplementedError("no softcap")
    if window is not None:
        raise ValueError("window: accepted is None")
    return attention(q, k, v, causal, scale) if sinks is None else sinks.of_no_such_name


def raises_at(n_kv, error):
    def kernel(q, k, v, causal=False, scale=None):
        if k.shape[-2] == n_kv:
            raise error
        return attention(q, k, v, causal, scale)

    return kernel


def window_of_one_number(q, k, v, causal=False, scale=None, window=None):
    """Its signature has the word `window`, and it takes a number of keys."""
    if window is None:
        return attention(q, k, v, causal, scale)
    behind = torch.arange(q.shape[-2])[:, None] + k.shape[-2] - q.shape[-2] - torch.arange(k.shape[-2])
    seen = (behind <= window) & (behind >= (0 if causal else -window))
    return kernels.unfused(q.float(), k.float(), v.float(), scale=scale, mask=seen).to(q.dtype)


def defect_in_backward(q, k, v, causal=False, scale=None):
    def unpacked(dK):
        dK, _ = (dK,)

    return attention(q, Altered.apply(k, unpacked), v, causal, scale)


def without_graph(q, k, v, causal=False, scale=None):
    return attention(q.detach(), k.detach(), v.detach(), causal, scale)


def causal_by_default(q, k, v, causal=True, scale=None):
    return attention(q, k, v, causal, scale)


def half_of_the_softcaps_derivative(q, k, v, causal=False, scale=None, softcap=None):
    if softcap is None:
        return attention(q, k, v, causal, scale)
    S = (q.float() @ k.float().mT) * (scale or q.shape[-1] ** -0.5)
    capped = softcap * torch.tanh(S / softcap)
    steep = S + (capped - S).detach()  # its derivative is 1
    S = 0.7 * capped + 0.3 * steep
    S = S.masked_fill(~torch.ones_like(S, dtype=torch.bool).tril(S.shape[-1] - S.shape[-2]), -math.inf) if causal else S
    return (torch.softmax(S, -1) @ v.float()).to(q.dtype)


def multiples_of_128(q, k, v, causal=False, scale=None):
    if q.shape[-2] % 128 or k.shape[-2] % 128:
        raise ValueError("lengths must be multiples of 128")
    return attention(q, k, v, causal, scale)


def one_head_of_k_each(q, k, v, causal=False, scale=None):
    """On a GPU: it does not look how many heads K has."""
    if k.shape[1] != q.shape[1]:
        raise Fault("16 bytes at 0x10 are outside of argument 1, 0 bytes behind its end")
    return attention(q, k, v, causal, scale)


def only_256(q, k, v):
    if q.shape[-2] != 256 or k.shape[-2] != 256:
        raise ValueError("lengths must be 256")
    return attention(q, k, v)


def of_one_format(dtype):
    def kernel(q, k, v, causal=False, scale=None):
        assert q.dtype == dtype, "not this one"
        return attention(q, k, v, causal, scale)

    return kernel


def nan_on_peaked(q, k, v):
    return attention(q, k, v) * (math.nan if q.std() * 8 > 20 and q.shape[-2] == 128 else 1)


RECTANGLE, ODD = dict(shapes=("113 x 203",)), dict(shapes=("97", "256"))
HABITS = [  # a kernel; how TINY is changed; whether it passes; one of its findings, with a part of its where; words
    (changes_k, {}, False, "", {}, "changes its inputs: k"),
    (changes_k_at_64, {}, False, "", {}, r"Asked for BF16 at head_dim 64 it changes its inputs: k\."),
    (gradient_of_203_keys_is_nan, RECTANGLE, False, "wrong_gradient", dict(tensor="dk"),
     r"dK is not attention's gradient \(.*\): not finite, limit 20%"),
    (of_another_dtype_once, RECTANGLE, False, "problem", dict(shape="113 x 203"), "At the shape 113 x 203 in "),
    (whole_chunks_alone, {}, False, "answer", dict(asked="length_1500", note="keys=(0, 1024)"), LABELS["length_1500"]),
    (low_in_fp16, {}, False, "growth", dict(fmt="FP16"), "FP16"),
    (no_fp64, {}, True, "unsupported",
     dict(asked=["FP64", "boolean_mask", "added_mask", "window", "softcap", "sinks"]), ""),
    (nan_in_fp16, {}, False, "", {}, "FP16"),
    (defect_in_options, {}, False, "answer", dict(asked="sinks"), "Asked for sinks it raises AttributeError: 'Tensor'"),
    (defect_in_backward, {}, False, "answer", dict(asked="gradients"), "ValueError: not enough values"),
    (raises_at(203, IndexError("of a tile")), {}, False, "answer", dict(asked="length_203"), "IndexError: of a tile"),
    (raises_at(203, AssertionError("128 at a time")), {}, True, "unsupported",
     dict(asked=["length_203", "causal_one_query", "boolean_mask", "added_mask", "window", "softcap", "sinks"]), ""),
    (raises_at(97, ZeroDivisionError("by 0")), ODD, False, "problem", dict(shape="97"), "At the shape 97 in .*by 0"),
    (raises_at(512, KeyError(512)), {}, False, "problem", dict(n=512), "N = 512.*KeyError: 512"),
    (window_of_one_number, {}, True, "raises", dict(asked=["window"]),
     "Not judged, since it raises an error that is no refusal: a window.*the first raises TypeError"),
    (one_head_of_k_each, dict(shapes=("256", "GQA 384")), True, "outside", dict(asked=["v_dim_512", "gqa"]),
     "not judged: .*GQA 4 to 2; the first fails: 16 bytes"),
    (causal_by_default, {}, True, "causal_by_default", {}, ""),
    (half_of_the_softcaps_derivative, {}, False, "answer", dict(asked="gradients_softcap"), ""),
    (multiples_of_128, ODD, True, "coverage", dict(settings=8, settings_of=24, shapes=2, shapes_of=4),
     "8 of 24.*2 of 4"),
    (of_one_format(torch.float32), {}, True, "", {}, ""), (of_one_format(torch.float16), {}, True, "", {}, ""),
    (no_maximum, {}, False, "answer", dict(asked=LARGE.key, outcome="malformed"), ""),
    (nan_on_peaked, {}, False, "problem", dict(distribution="peaked", fmt="BF16", n=128), "returns 8192 values"),
    (top_left, dict(shapes=("causal 203", "causal 113 x 203")), True, "top_left", {}, "aligned top-left"),
]  # fmt: skip


@pytest.mark.parametrize("fn, changes, passes, what, part, words", HABITS, ids=[each[0].__name__ for each in HABITS])
def test_a_habit_is_told(fn, changes, passes, what, part, words, examined):
    _, judgement = examined(fn, replace(TINY, **changes))
    text = " ".join(judgement_text(judgement).split())
    assert judgement.passed is passes and re.search(words, text) and "nan ×" not in text, text
    told = [f for f in judgement.findings if re.fullmatch(what, f.what) and f.where | part == f.where]
    assert not what or len(told) == 1, judgement.findings


def test_what_a_habit_is_taken_for_no_other(examined):
    seen, judgement = examined(changes_k_at_64)
    assert set(seen.lengths.head_dim) == {128} and "headdim should be" not in judgement_text(judgement)
    assert not found(examined(without_graph)[1], "raises")
    (seen, judgement), (plain, _) = examined(causal_by_default), examined(attention)
    assert not found(judgement, "causal_only") and seen.lengths["max"].equals(plain.lengths["max"])
    assert {"causal", "causal_fewer_queries"} <= {*seen.asked[seen.asked.outcome == "answered"].asked}


def test_a_kernel_of_which_no_error_was_measured_is_not_judged(examined, tmp_path, monkeypatch):
    seen, judgement = examined(only_256, replace(TINY, shapes=("113 x 203",)))
    assert judgement.verdict == Verdict.NOT_JUDGED and not judgement.passed
    assert judgement_text(judgement).startswith(f"{judgement.subject} is not judged.")
    assert judgement.record()["verdict"] == "not_judged" and headline(judgement).startswith(judgement.subject)
    (tmp_path / "odd.py").write_text(
        "from fa_lib import kernels\n\n\ndef attention(q, k, v):\n    assert q.dtype.itemsize == 8\n"
        "    return kernels.unfused(q, k, v)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    done = command("check", "kernel", "odd:attention", "--quick", "--exit-code", "--out", tmp_path)
    assert done.exit_code == 3 and "odd:attention is not judged." in done.output
    assert 'class="verdict not_judged"' in (tmp_path / "odd_attention.html").read_text()


def key_by_key(exp=torch.exp):
    """FP32, with an online softmax over single keys: sums in order, rescaled where the maximum rises."""
    return partial(skeleton.attention, steps=Steps(tile=1, exp=exp, probs=lambda P, _: P))


def test_fp32_sums_one_by_one_are_within_the_rule_and_less_than_fp32_is_not():
    """To torch's own sums the same kernel is several times worse."""
    inputs = [Inputs("FP32", "uniform", 2048, seed, queries) for seed in range(2) for queries in (1, 16)]
    times = [measure(key_by_key(), each)["times_max"] for each in inputs]
    assert max(times) <= ALLOWED["o"]
    q, k, v = inputs[1].tensors()
    exact_one = kernels.golden(q, k, v, inputs=FP32)
    best = (kernels.unfused(q, k, v) - exact_one).abs().max()
    assert (key_by_key()(q, k, v) - exact_one).abs().max() > ALLOWED["o"] * best
    low = key_by_key(lambda x: torch.exp(x).bfloat16().float())
    assert measure(low, inputs[1])["times_max"] > ALLOWED["o"]


def test_inputs_with_as_many_queries_as_keys_take_no_others():
    with pytest.raises(ValueError, match="queries: got 1; accepted with 'two maxima' is None"):
        Inputs("BF16", "two maxima", 128, 0, 1)


@pytest.mark.parametrize("noise, due", [(0.0, "wrong"), (0.06, "answered")])
def test_a_head_dim_whose_last_features_are_left_out_is_wrong_and_a_coarse_kernel_is_not(noise, due):
    """Without 8 of 248 features of Q and K an output is off by less than what another answer is."""

    def kernel(q, k, v, causal=False, scale=None):
        d = q.shape[-1]
        keep = 240 if d == 248 and not noise else d
        o = kernels.reference(
            q[..., :keep], k[..., :keep], v, causal=causal, scale=scale or d**-0.5, precision=Precision.kernel(q.dtype)
        )
        gain = noise * torch.randn(o.shape, generator=torch.Generator().manual_seed(0)).to(o)
        return o + gain * o.square().mean().sqrt()

    rows = {(row["asked"], row["dim"]): row for row in contract(kernel, head_dims=(240, 248))}
    assert rows["head_dim", 240]["outcome"] == "answered" and rows["head_dim", 248]["outcome"] == due
