"""How a kernel's casts round, seen from outside: kernels whose casts are known."""

from dataclasses import asdict, replace
from functools import partial

import pandas as pd
import pytest
import torch

from attention_check.checks.carry import carry
from attention_check.checks.errors import measure
from attention_check.checks.rounding_mode import rounding_mode
from attention_check.judge.findings import Severity
from attention_check.judge.kernel import judge_kernel
from attention_check.measure.measurements import Measurements
from attention_check.measure.reference_cache import Inputs
from attention_check.report.sentences import judgement_text
from benchmarks.mutants.skeleton import Steps, attention
from fa_lib import BF16, FP16, FP32, kernels
from fa_lib.numerics.formats import TF32, Format

MODE = ("nearest_even", "nearest_away", "truncates")


def cast(x, fmt, mode):
    """FP32 x on fmt's grid, from its bits: independent of the library's rounding."""
    drop = 24 - fmt.precision
    bits = x.contiguous().view(torch.int32)
    half = {"nearest_even": (1 << drop - 1) - 1 + (bits >> drop & 1), "nearest_away": 1 << drop - 1, "truncates": 0}
    on_grid = ((bits + half[mode] >> drop) << drop).view(torch.float32)
    return on_grid.where(x.abs() > 2.0**-25, 0) if fmt == FP16 else on_grid  # of its subnormal numbers none is used


def kernel(q, k, v, causal=False, scale=None, p=None, o=None, inputs=None):
    """Attention in FP32, in tiles of 64 keys, with casts of P, of the output, of inputs: (Format, mode)."""
    steps = Steps(
        read=lambda q, k, v: (q, k, cast(v, *inputs) if inputs else v),
        probs=lambda P, _: cast(P, *p) if p else P,
        store=lambda O, dtype: (cast(O, *o) if o else O).to(dtype),
    )
    return attention(q, k, v, causal, scale, steps=steps)


def modes(fn, fmt, **options):
    return {(row["what"], row["into"]): row["mode"] for row in rounding_mode(fn, f"{fmt}", **options)}


@pytest.mark.parametrize("fmt", [BF16, FP16], ids=str)
@pytest.mark.parametrize("mode", MODE)
@pytest.mark.parametrize("causal", [False, True])
def test_the_mode_of_each_cast_is_seen_and_of_no_other(fmt, mode, causal):
    """The other cast rounds to nearest even throughout, as .to(dtype) does."""
    even, output, probs = (fmt, "nearest_even"), ("output", f"{fmt}"), ("probs", f"{fmt}")
    of_output = modes(partial(kernel, p=even, o=(fmt, mode)), fmt, causal=causal)
    assert of_output == {output: mode, probs: "nearest_even"}
    assert modes(partial(kernel, p=(fmt, mode)), fmt, causal=causal) == {output: "nearest_even", probs: mode}


@pytest.mark.parametrize("into", [BF16, FP16, TF32], ids=str)
@pytest.mark.parametrize("mode", MODE)
def test_casts_of_fp32_inputs_are_seen(into, mode):
    """And of no format that V is not cast to."""
    every = modes(partial(kernel, inputs=(into, mode)), FP32)
    assert every.pop(("inputs", into.name)) == mode and set(every.values()) <= {"not_seen"}


def test_where_there_is_no_cast_none_is_seen():
    assert set(modes(kernel, FP32).values()) == {"not_seen"}
    for fn in (kernel, "unfused"):  # P is not rounded; it is, after it was divided by l
        assert modes(fn, BF16) == {("output", "BF16"): "nearest_even", ("probs", "BF16"): "not_seen"}


def test_an_exponential_that_is_not_exact_hides_ties_and_not_truncation():
    """torch's kernel: exp(0) is 5e-5 low, so that no mean is exact; without AVX2 it takes another one, which is."""
    exact = torch.backends.cpu.get_cpu_capability() == "DEFAULT"
    assert set(modes("flash", BF16).values()) == {"nearest_even" if exact else "nearest"}

    def low(q, k, v, **casts):
        k = k.float() * (1 + 1e-4)  # so is a score: each P is off by up to 7e-5
        return kernel(q.float(), k, v.float(), **casts).to(q.dtype)

    for mode, seen in dict(nearest_even="nearest", truncates="truncates").items():
        assert modes(partial(low, p=(BF16, mode)), BF16)["probs", "BF16"] == seen


def test_a_low_carry_is_not_called_truncation():
    """Its O is rounded as the output is, tile by tile; the probe has one tile."""
    every = modes("every_step", BF16) | modes(partial(kernels.plain("tiled")), FP16)
    assert "truncates" not in every.values()


def test_a_quantised_cache_is_not_called_truncation():
    """It holds 1, and not the next numbers of the format: every mean of both is 1."""

    def cached(q, k, v):
        return kernel(q.float(), k, v.to(torch.float8_e4m3fn)).to(q.dtype)

    for fmt in (BF16, FP16):
        assert "truncates" not in modes(cached, fmt).values()


def test_what_cannot_run_says_why():
    def refuses(q, k, v):
        raise NotImplementedError("no")

    for row in rounding_mode(refuses, "BF16"):
        assert row["mode"] == "not_seen" and row["outcome"] == "refused" and "NotImplementedError" in row["problem"]
    assert set(modes(kernel, BF16, head_dim=32)) == {("output", "BF16")}  # 1 / sqrt(32) is rounded itself


def rounding(what):
    """The table of a kernel that truncates P, or its output, or neither."""

    def fn(q, k, v):
        fmt = Format.of(q.dtype)
        casts = dict(p=(fmt, "nearest_even"), o=(fmt, "nearest_even"))
        return kernel(q, k, v, **casts | ({what: (fmt, "truncates")} if what else {}))

    return pd.DataFrame([row for fmt in ("BF16", "FP16") for row in rounding_mode(fn, fmt)])


@pytest.fixture(scope="module")
def right():
    """Tables of a right kernel: a few of those of `examine`."""
    inputs = Inputs("BF16", "uniform", 128, 0)
    lengths = pd.DataFrame([asdict(inputs) | measure(kernel, inputs)])
    asked = pd.DataFrame([dict(asked="BF16", head_dim=64, outcome="answered", note="", problem="", times=float("nan"))])
    repeats = pd.DataFrame([dict(runs=1, outputs=1, gradients=None)])
    sums = pd.DataFrame(carry(kernel, "BF16", 1)).assign(fmt="BF16", queries=1)
    own = lengths.assign(kernel="right")
    return Measurements(asked=asked, lengths=own, inputs=own, sums=sums, repeats=repeats)


@pytest.mark.parametrize("what, of", [("p", "probs"), ("o", "output"), (None, None)])
def test_truncation_of_p_or_of_the_output_fails(what, of, right):
    judgement = judge_kernel("right", replace(right, rounding=rounding(what)))
    found = [f for f in judgement.findings if f.what == "rounding_mode"]
    failed = [f.where for f in found if f.severity == Severity.FAILS]
    assert failed == ([dict(what=of, mode="truncates", into=["BF16", "FP16"])] if what else [])
    assert judgement.passed == (what is None) and {f.where["what"] for f in found} == {"output", "probs"}
    text = judgement_text(judgement)
    assert ("drop bits" in text) == (what is not None) and "ties to even" in text


def test_a_low_carry_says_nothing_of_the_output_s_cast(right):
    carried = right.sums.assign(lost=100.0, control=0.0, **{"all": 100.0})  # all is lost in every tile
    found = judge_kernel("right", replace(right, sums=carried, rounding=rounding("o"))).findings
    assert {f.where["what"] for f in found if f.what == "rounding_mode"} == {"probs"}


def test_p_that_is_no_power_of_two_is_no_cast_that_drops_bits():
    def constant_maximum(q, k, v):
        P = torch.exp(q.float() @ k.float().mT / q.shape[-1] ** 0.5 - 10)
        return (P.to(v.dtype).float() @ v.float() / P.sum(-1, keepdim=True)).to(q.dtype)

    assert "truncates" not in {row["mode"] for fmt in ("BF16", "FP16") for row in rounding_mode(constant_maximum, fmt)}
