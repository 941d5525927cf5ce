"""A judgement on kernels whose faults are known, and on files: what the reports say, and what they refuse."""

import itertools
import json
import math
import re
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from own_kernels import emulated, found, own_name

from attention_check.checks.errors import measure
from attention_check.checks.shapes import calls_of, measure_shapes
from attention_check.commands import captured_reports, reports
from attention_check.isolation.calls import KernelError, call_kernel, with_kernel_errors
from attention_check.judge.findings import Finding, Judgement, Severity, Verdict
from attention_check.judge.kernel import judge_kernel
from attention_check.measure.contract import contract
from attention_check.measure.examine import examine
from attention_check.measure.plan import PLANS, QUICK, CheckPlan
from attention_check.measure.reference_cache import BIASED, WORST, Inputs
from attention_check.report.labels import SUMS
from attention_check.report.sentences import cause, headline, judgement_text, sentences_of
from benchmarks.mutants.gradients import Altered
from fa_lib import kernels
from fa_lib.execution.paths import ROOT
from fa_lib.numerics.confidence import interval

pytestmark = pytest.mark.slow

SMALL = replace(QUICK, shapes=("97", "causal 203"))


def said(judgement, what):
    return [one for group in sentences_of(judgement).values() for one in group if one.what == what]


def test_a_finding_is_json_whatever_library_its_numbers_come_from():
    where = dict(head_dim=np.int64(64), draws=[np.float32(1.5)], dims=(np.int64(1), 2), fmt="BF16", queries=None)
    found = Finding("chance", Severity.REPORTED, where, np.float64(3), np.int64(2))
    assert json.loads(json.dumps(asdict(found)))["where"] == dict(
        head_dim=64, draws=[1.5], dims=[1, 2], fmt="BF16", queries=None
    )
    assert found.where["dims"] == (1, 2) and found.number == 3.0


def test_a_judgement_is_made_from_its_findings_and_nothing_else():
    fails, notes, passes = (
        Finding("error", severity, dict(distribution="normal", fmt="BF16", n=8, queries=None), 3.0, 2)
        for severity in (Severity.FAILS, Severity.REPORTED, Severity.PASSES)
    )
    verdicts = [Judgement("kernel", "mine", found).verdict for found in ((passes, fails), (notes, passes), (notes,))]
    assert verdicts == [Verdict.FAILS, Verdict.PASSES, Verdict.NOT_JUDGED]
    assert Judgement("kernel", "mine", (notes, passes)).passed and not Judgement("kernel", "mine", (notes,)).passed
    assert headline(Judgement("kernel", "mine", (notes,))) == "mine is not judged."
    assert Judgement("kernel", "mine", (notes,)).carries is None
    words = headline(Judgement("kernel", "mine", (fails,)))
    assert words == "mine fails: its largest error breaks the rule (normal inputs, BF16, N = 8)."
    assert {Finding("error", Severity.FAILS, {}, number).number for number in (math.nan, math.inf)} == {None}
    close = replace(fails, number=2.004)
    ((_, (one,)),) = sentences_of(Judgement("kernel", "mine", (close,))).items()
    assert one.line == f"{one.text}: 2.004 × Baseline's, limit 2 ×."


def attention(q, k, v, **options):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)


def in_double(q, k, v):
    return attention(q, k, v).double() if q.dtype != torch.float64 else None


BROKEN = {
    "raises": (lambda q, k, v: 1 / 0, "refused", "raises ZeroDivisionError"),
    "nan": (lambda q, k, v: attention(q, k, v) * math.nan, "malformed", "returns 65536 values"),
    "shape": (lambda q, k, v: attention(q, k, v)[..., :1], "malformed", r"of shape \(2, 2, 256, 1\), where"),
    "dtype": (in_double, "refused", "returns torch.float64"),
    "changes": (lambda q, k, v: k.mul_(2) and None or attention(q, k, v), "refused", "raises RuntimeError"),
    "equal weights": (lambda q, k, v: v.mean(-2, keepdim=True).expand_as(q), "wrong", "scale_zero"),
}  # fmt: skip


def test_an_illegal_access_in_one_format_is_no_refusal_of_it():
    def illegal(q, k, v):
        if q.dtype == torch.float16:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return attention(q, k, v)

    judgement = judge_kernel("illegal", examine(own_name("illegal", illegal), SMALL))
    (found,) = (f for f in judgement.findings if f.what == "answer")
    assert not judgement.passed and found.where["asked"] == "FP16"
    assert found.where["problem"].startswith("fails: CUDA error")
    other = replace(found, where=found.where | dict(outcome="wrong", note="other", problem=""))
    assert "fails: CUDA error" in headline(Judgement("kernel", "illegal", (other, found)))  # what is known goes first


@pytest.mark.parametrize("name", BROKEN)
def test_a_kernel_that_is_none_is_reported_as_that(name):
    fn, outcome, detail = BROKEN[name]
    asked = pd.DataFrame(contract(own_name(f"broken {name}", fn)))
    told = asked.note.iloc[0] or asked.problem.iloc[0]
    assert asked.outcome.iloc[0] == outcome and re.search(detail, told), asked.iloc[0]
    judgement = judge_kernel(f"broken {name}", examine(f"broken {name}", SMALL))
    assert not judgement.passed and judgement.carries is None
    (gate,) = (f for f in judgement.findings if f.what in ("not_run", "not_attention"))
    assert gate.severity == Severity.FAILS
    assert (gate.what == "not_run") == (set(asked.outcome) == {"refused"})
    first = asked[asked.outcome == gate.where["outcome"]].iloc[0]
    assert (gate.where["asked"], gate.where["problem"]) == (first.asked, first.problem)
    assert f"asked for {first.asked} it" in judgement_text(judgement)


@pytest.mark.parametrize(
    "becomes",
    [
        lambda q: q.view_as(q).neg_(),  # 0 becomes -0
        lambda q: q.resize_(1, 2, 8, 8),
        lambda q: q.set_(torch.ones(q.numel() + 1, dtype=q.dtype)[1:].view(q.shape)),  # at no multiple of eight bytes
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_change_of_an_input_is_seen_by_its_bits(becomes, dtype):
    q, k, v = (x.to(dtype) for x in (torch.zeros(1, 2, 8, 16), *torch.randn(2, 1, 2, 8, 16)))
    k[..., 0] = math.nan  # a value that differs from itself, and does not change

    def changes(q, k, v):
        o = torch.zeros_like(q)
        becomes(q)
        return o

    assert call_kernel(lambda q, k, v: torch.zeros_like(q), q, k, v).outcome == "answered"
    assert call_kernel(changes, q, k, v).problem == "changes its inputs: q"


def examined(name, fn, **changes):
    return judge_kernel(name, examine(own_name(name, fn), replace(SMALL, **changes)))


def test_the_worst_inputs_found_hurt_a_kernel_that_carries_bf16_and_no_other():
    names = ["every_step", "as_shipped", "flash"]
    rows = [measure(name, Inputs("BF16", WORST, 512, seed)) for seed in range(3) for name in names]
    times = pd.DataFrame(rows).groupby("kernel").times_max.mean()
    assert times["every_step"] > 5 and times[["as_shipped", "flash"]].max() < 1.5


def test_a_kernel_without_gradients_or_long_lengths_is_judged_by_the_rest():
    def short(q, k, v):
        assert k.shape[-2] < 600, "too long"
        return torch.from_numpy(kernels.unfused(q.float(), k.float(), v.float()).numpy()).to(q.dtype)

    judgement = examined("short", short)
    problem, carries = found(judgement, "problem")[0], found(judgement, "carry")
    assert judgement.passed and {problem.severity} == {f.severity for f in carries} == {Severity.REPORTED}
    assert problem.where | dict(distribution="uniform", fmt="BF16", n=1024, queries=1) == problem.where
    assert {f.where["problem"] for f in (problem, *carries)} == {"raises AssertionError: too long"}


def test_the_bias_is_of_the_kernel_and_not_of_the_rounding_of_its_output():
    """With two maxima and V > 0 the rounded golden value errs to one side itself, as does one that carries FP32."""
    low = own_name("O alone", partial(emulated, steps=("accumulator",), block_kv=512))
    rows = [measure(name, Inputs("BF16", BIASED, 256, 0)) for name in ("as_shipped", "baseline", low)]
    outwards = {row["kernel"]: row["outwards"] for row in rows}
    assert abs(outwards["as_shipped"]) < 1e-3 and outwards["baseline"] > 0.05 and outwards[low] > 0.05


def test_a_confidence_interval_is_students():
    mean, low, high = interval(pd.Series([1.0, 2.0, 3.0]))
    assert mean == 2 and high - 2 == pytest.approx(4.302653 / 3**0.5, rel=1e-6) and low == pytest.approx(4 - high)


def test_errors_of_a_kernel_are_its_own_forwards_and_backwards():
    def refused(dO):
        raise SystemExit("no backward pass yet")

    def refuses(q, k, v, **options):
        return Altered.apply(attention(q, k, v, **options), refused)

    q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 2, 8, 16))
    for fn, words in ((refuses, "no backward pass yet"), (lambda q, k, v: q.detach(), "does not require grad")):
        o = with_kernel_errors(fn)(q, k, v)
        with pytest.raises(KernelError, match=words):
            torch.autograd.grad(o.sum(), (q, k, v))
    row = contract(own_name("no backward", refuses))[-1]
    assert (row["asked"], row["outcome"], row["problem"]) == (
        "gradients", "refused", "raises SystemExit: no backward pass yet",
    )  # fmt: skip
    rows = measure_shapes("97", 32, "normal", "BF16", 0, "no backward")
    assert [row["tensor"] for row in rows] == ["o"] and rows[0]["passed"]  # its output is judged all the same
    ours, own = (torch.autograd.grad(fn(q, k, v).sum(), (q, k, v)) for fn in (with_kernel_errors(attention), attention))
    assert all(map(torch.equal, ours, own))


@pytest.mark.parametrize(
    "at",
    [
        "attention_check.measure.wrong_answers.distance",
        "attention_check.measure.reference_cache.baseline_in",
        "fa_lib.kernels.rule.deviation",
    ],
)
def test_a_bug_of_ours_is_no_fault_of_the_kernels(at, monkeypatch):
    def bug(*_, **__):
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(at, bug)
    with pytest.raises(RuntimeError, match="a bug of ours"):
        examine("flash", replace(SMALL, lengths=(128,), shapes=("97",)))


@pytest.mark.parametrize("head_dims", [(32, 64), (64, 96, 128)])
def test_every_two_of_a_shape_a_head_dim_and_a_format_meet(head_dims):
    shapes, formats = ("97", "1024", "causal 203", "GQA 384", "1500"), ("BF16", "FP16")

    asked = pd.DataFrame(calls_of(shapes, head_dims, formats, 0))
    assert len(asked) == len(shapes) * len(head_dims)
    for one, other in itertools.combinations((("shape", shapes), ("head_dim", head_dims), ("fmt", formats)), 2):
        met = set(asked[[one[0], other[0]]].itertuples(index=False, name=None))
        assert met == set(itertools.product(one[1], other[1]))
    assert len(calls_of(shapes, head_dims, ["FP32"], 0)) == len(shapes) * len(head_dims)
    assert len(calls_of(shapes, head_dims[:1], formats, 0)) == len(shapes) * len(formats)
    assert not calls_of((), head_dims, formats, 0)


def test_the_presets_are_known_and_a_wrong_shape_is_refused():
    assert PLANS["quick"] is QUICK and PLANS["report"].runs == 100
    with pytest.raises(ValueError, match="shape: got '96'; accepted are 97, 113 x 203"):
        CheckPlan(**asdict(QUICK) | dict(shapes=("96",)))
    with pytest.raises(ValueError, match="depth: got 'deep'; accepted are quick, report"):
        reports.check_kernel("flash", "deep")


def test_a_users_file_is_reported_on_in_one_page(tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.py").write_text((ROOT / "examples" / "my_kernel.py").read_text())
    monkeypatch.syspath_prepend(tmp_path)
    out = tmp_path / "reports"
    out.mkdir()
    (out / "own.mine_attention.html").write_text("old")
    (out / "own.mine_attention").mkdir()
    (out / "own.mine_attention" / "sums.csv").write_text("old")
    report = reports.check_kernel("own.mine:attention", "quick", out)
    words = judgement_text(report.judgement)
    assert not report.judgement.passed and report.page == out / "own.mine_attention.html"
    because = cause(report.judgement)
    assert {f.what for f in because} == {"carry"} and report.judgement.carries == ("accumulator", "row_sum")
    assert words.startswith("own.mine:attention fails: ")
    assert all(each in headline(report.judgement) for each in SUMS.values())
    assert {f.where["tile"] for f in because} == {32} and "32 keys" in words
    html = report.page.read_text()
    (carried,) = said(report.judgement, "carry")
    assert html.count("data:image/png;base64") == 4 and "<table>" in html and carried.text in html
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", html) and "cell/s" not in html
    held = json.loads(json.dumps(report.record, allow_nan=False))
    assert held["passed"] is False and len(held["findings"]) == len(report.judgement.findings)
    assert held["versions"]["torch"] and held["parameters"]["kernel"] == "own.mine:attention"
    assert {f["what"] for f in held["findings"]} >= {"carry", "error", "outputs", "repeats"}
    names = {"asked", "shapes", "lengths", "inputs", "bounds", "sums", "repeats", "relations", "rounding"}
    assert {path.stem for path in (out / "own.mine_attention").glob("*.csv")} == names
    sums = pd.read_csv(out / "own.mine_attention" / "sums.csv")
    assert len(sums) == 2 * 3 * 2 * 10  # formats, numbers of queries, sums, sizes of tiles


def test_bad_words_are_refused_before_anything_runs(tmp_path):
    out = tmp_path / "reports"
    for kernel in ("no_such_module:f", "fa_lib:kernels", "attention"):
        with pytest.raises(ValueError, match=f"kernel: got '{kernel}'"):
            reports.check_kernel(kernel, out=out)
    with pytest.raises(OSError, match="nowhere.safetensors"):
        captured_reports.check_tensors("nowhere.safetensors", out=out)
    assert not out.exists()


def test_a_kernel_of_one_query_a_call_is_asked_for_few():
    most = []

    def counting(q, k, v, causal=False, scale=None, mask=None):
        most.append(q.shape[-2])
        return kernels.baseline(q, k, v, causal=causal, scale=scale, mask=mask)

    name = own_name("counting", counting)
    asked = pd.DataFrame(contract(name, queries=16)).set_index("asked")
    assert max(most) == 16
    whole = pd.DataFrame(contract(name)).set_index("asked")
    assert max(most) == 1500 and asked.outcome.equals(whole.outcome) and asked.note.equals(whole.note)
