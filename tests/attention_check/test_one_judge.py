"""The page and pytest judge alike: they have one verdict, on a right kernel and on mutants."""

import math
import re
from dataclasses import dataclass, replace
from html import unescape
from operator import attrgetter

import pandas as pd
import pytest
import torch

from attention_check.checks import shapes
from attention_check.checks.relations import RELATIONS
from attention_check.commands.captured_reports import check_tensors
from attention_check.conventions.conventions import keys_of, what
from attention_check.explain.compare import ComparisonInputs, compare, comparison_lines
from attention_check.explain.explain import explain_call, read
from attention_check.explain.explain_words import groups
from attention_check.explain.verdict import Verdict as Explained
from attention_check.judge import kernel as page
from attention_check.judge.findings import Severity, Verdict
from attention_check.judge.kernel import judge_kernel
from attention_check.measure.examine import examine
from attention_check.measure.measurements import Measurements
from attention_check.measure.plan import QUICK
from attention_check.probe.named_tensors import Reading
from attention_check.testing import assert_attention_close, checks
from attention_check.testing.checks import CHECKS, result, result_of
from benchmarks import judge
from benchmarks.reports import REPORTS, is_cause
from fa_lib import kernels
from fa_lib.kernels.kernel_ref import KernelRef

SMALL = replace(checks.PLAN, lengths=(128,), troubled_n=32)
PAGE = replace(SMALL, shapes=QUICK.shapes, relations=(*RELATIONS,))
ASKED = ("fa2", "delta_forgotten", "noise", "p_truncated")
THREADS = (  # of each kind of answer one that takes few seconds
    "pytorch/pytorch#179578", "ggml-org/llama.cpp#24406", "pytorch/pytorch#196468", "pytorch/pytorch#127055",
    "pytorch/pytorch#133671", "ml-explore/mlx#3452", "FlagOpen/FlagGems#5896", "ScalingIntelligence/KernelBench#165",
    "jax-ml/jax#35916", "microsoft/onnxruntime#29020", "openvinotoolkit/openvino#35796",
)  # fmt: skip
LONG = "ggml-org/llama.cpp, CUDA"  # which `make reports` explains

of_thread = attrgetter("thread")


@pytest.mark.parametrize("each", [each for each in judge.EVERY if each.key in ASKED], ids=lambda each: each.key)
def test_the_page_and_pytest_have_one_verdict(each, monkeypatch):
    """The page fails a kernel where a check of pytest does, each by what it measures itself, in some ten seconds; `make
    mutants` judges every kernel by the page's checks."""
    monkeypatch.setattr(checks, "PLAN", SMALL)
    failing = [name for name in CHECKS if result_of(name, each.name).passed is False]
    judgement = judge_kernel(each.name, examine(each.name, PAGE))
    of_page = [(f.what, f.where) for f in judgement.findings if f.severity == Severity.FAILS]
    assert bool(failing) == (judgement.verdict == Verdict.FAILS), (each.key, failing, of_page)
    assert bool(failing) == (each.key != "fa2"), (each.key, failing)


def test_every_check_of_the_page_but_remarks_is_one_of_pytest():
    """growth and bias are reported, and never fail a kernel. Whether a kernel can be judged is
    asked before (`tested_kernel`), and how its process behaves is the page's question."""
    asked = {check.of for check in CHECKS.values()}
    remarks = {"growth", "causal", "precision", "bias", "repeats"}
    around = {"conventions", "conduct", "on_gpu", "coverage", "unsupported", "not_attention"}
    assert {*page.CHECKS} - asked == remarks | around


def gradients(**changed):
    """A row of `measure_shapes`."""
    row = dict(outcome="answered", problem="", tensor="dq", ratio=1.0, relative=0.01, allowed=3.0, shape="97", seed=0)
    return pd.DataFrame([row | dict(head_dim=64, fmt="BF16") | changed])


@pytest.mark.parametrize(("ratio", "relative", "fails"), [
    (1.0, 0.01, False), (10.0, 0.01, False), (2.9, 0.5, False), (3.1, 0.21, True), (math.nan, math.nan, True),
])  # fmt: skip
def test_one_rule_of_gradients(ratio, relative, fails):
    """Far from attention's, and further than Baseline's own error explains: on the page, and in pytest."""
    table = gradients(ratio=ratio, relative=relative)
    assert [f.what for f in shapes.judged(table) if f.severity == Severity.FAILS] == ["wrong_gradient"] * fails
    assert result(page.CHECKS["rule"].judge(Measurements(shapes=table))).passed is not fails


@pytest.mark.parametrize(
    "kernel, check",
    [
        ("benchmarks.mutants.gradients:dv_wrong_at_96", "answer_gradients_at_96"),
        ("benchmarks.mutants.gradients:dk_not_scaled", "rule"),
        ("benchmarks.mutants.casts:p_truncated", "rounding"),
        ("benchmarks.mutants.scores:scale_ignored", "answer_scale"),
    ],
)
def test_a_defect_fails_the_check_of_its_name_and_a_right_kernel_passes(kernel, check):
    assert result_of(check, kernel).passed is False
    assert result_of(check, "benchmarks.mutants.controls:fa2").passed is True


def test_a_kernel_need_not_be_hashable_and_a_name_may_stand_for_another_one_later():
    @dataclass
    class Kernel:
        longest: int

        def __call__(self, q, k, v):
            if k.shape[-2] > self.longest:
                raise NotImplementedError("more keys")
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    long, short = Kernel(4096), Kernel(1024)
    with pytest.raises(TypeError, match="unhashable"):
        hash(long)
    check = "answer_length_1500"
    assert result_of(check, long).passed and result_of(check, short).passed is None
    for kernel in (long, short):
        assert result_of(check, KernelRef("", "by_name", fn=kernel)).passed is (True if kernel is long else None)


def test_what_a_kernel_refuses_is_not_judged():
    def multiples_of_128(q, k, v):
        if k.shape[-2] % 128:
            raise NotImplementedError("multiples of 128 keys")
        return kernels.as_shipped(q, k, v)

    found = {check: result_of(check, multiples_of_128) for check in ("answer_length_203", "sinks", "rule")}
    assert [each.passed for each in found.values()] == [None, None, True]
    assert found["answer_length_203"].why == "the kernel raises NotImplementedError: multiples of 128 keys"


@pytest.mark.slow
@pytest.mark.parametrize("report", [each for each in REPORTS if each.thread not in (*THREADS, LONG)], ids=of_thread)
def test_the_other_reports_are_explained(report):
    found = explain_call(report.make())
    assert found.worst == report.verdict and (not report.cause or is_cause(report, found)), found


@pytest.mark.slow
@pytest.mark.parametrize("report", [each for each in REPORTS if each.thread in THREADS], ids=of_thread)
def test_of_the_same_tensors_all_commands_say_the_same(report, tmp_path):
    """`explain`, `check tensors`, `compare` and `assert_attention_close`, on the tensors of public reports, whose
    right verdict and cause is known."""
    call, path, name = report.make(), tmp_path / "call.pt", f"stored_{REPORTS.index(report)}"
    options = {key: torch.as_tensor(x) for key, x in call.options.items() if x is not None}
    torch.save(dict(q=call.q, k=call.k, v=call.v, o=call.o) | options | call.others, path)
    found = explain_call(read(path, Reading())["o"])
    assert found.worst == report.verdict and (not report.cause or is_cause(report, found)), found
    report_of_check = check_tensors(path, out=tmp_path)
    told = [f.where for f in report_of_check.judgement.findings if f.what == "explained"]
    assert {each["tensor"]: each["verdict"] for each in told} == {key: str(x.name) for key, x, _ in found.verdicts}
    assert found.worst != Explained.BUG or not report_of_check.judgement.passed
    text = unescape(report_of_check.page.read_text())
    assert all(line.strip() in text for _, (line, *_) in groups(found))
    if call.o.shape != (*call.q.shape[:3], call.v.shape[-1]) or not call.o.isfinite().all():
        return
    kernels.register(name, lambda *tensors, **options: call.o)
    compared = compare("as_shipped", name, ComparisonInputs(path))
    row, words = compared.bounds.get("b"), "\n".join(comparison_lines(compared))
    if found.verdict == Explained.ROUNDING and (found.times_bound or 0) <= 1:
        assert row and row["times"] <= 1, words
    elif row and found.dialect and found.where is None:
        assert row["key"] == keys_of(found.dialect) and what(found.dialect) in words
        with pytest.raises(AssertionError, match=f"{re.escape(what(found.dialect))}|see no key"):
            assert_attention_close(call.o, call.q, call.k, call.v, precision=call.q.dtype, **call.options)
