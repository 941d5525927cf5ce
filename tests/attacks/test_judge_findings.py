"""Attacks on what the judge says: errors named as others, captures without a page, files that were refused."""

import html
import json
import warnings

import pandas as pd
import pytest
import torch
from in_a_folder import command
from own_kernels import draw, found
from safetensors.torch import save_file

from attention_check.checks.gross_errors import coarse, scaled
from attention_check.commands import captured_reports
from attention_check.judge.findings import Judgement, Severity, Verdict
from attention_check.judge.kernel import judge_kernel
from attention_check.measure.examine import examine
from attention_check.measure.plan import CheckPlan
from attention_check.probe.capture import captured
from attention_check.report.page_files import PageFiles
from attention_check.report.sentences import judgement_text
from attention_check.report.wordings import worded
from attention_check.testing.checks import result_of
from fa_lib import kernels

TINY = CheckPlan(lengths=(64,), seeds=1, shapes=(), head_dims=(), troubled_n=64, bias_seeds=1, runs=3, square=1)
SDPA = torch.nn.functional.scaled_dot_product_attention


def in_bf16(q, k, v):
    if q.dtype != torch.bfloat16:
        raise NotImplementedError("in BF16")
    return SDPA(q, k, v)


def noise(q, k, v):
    o = in_bf16(q, k, v)
    return o * (1 + 0.05 * torch.randn_like(o))


def louder(q, k, v):
    return in_bf16(q, k, v) * 1.15


def test_noise_is_told_as_noise_and_not_as_a_carry():
    kernels.register("noise of 5 %", noise)
    judgement = judge_kernel("noise of 5 %", examine("noise of 5 %", TINY))
    (noisy,) = found(judgement, "noise")
    assert noisy.severity == Severity.FAILS and noisy.number > 10 and judgement.carries is None
    assert "scale" not in {each.what for each in judgement.findings}
    (hidden,) = found(judgement, "carry")
    assert hidden.severity == Severity.REPORTED and hidden.where["because"] == "noise"
    assert f": {noisy.number:.1f} ulp apart, limit {noisy.limit:g} ulp." in judgement_text(judgement)


def test_a_factor_is_told_as_a_factor_and_not_as_a_carry():
    kernels.register("times 1.15", louder)
    judgement = judge_kernel("times 1.15", examine("times 1.15", TINY))
    findings = {each.what: each for each in judgement.findings}
    assert judgement.verdict == Verdict.FAILS and findings["error"].severity == Severity.FAILS
    assert findings["scale"].number == pytest.approx(1.15, abs=0.003) and judgement.carries is None
    assert findings["carry"].severity == Severity.REPORTED and findings["carry"].where["because"] == "scale"
    assert f": {findings['scale'].number:.4g}, limit 1." in judgement_text(judgement)


def fp16_in_bf16(q, k, v):
    """As OpenVINO's CPU plugin, on a processor with instructions for BF16 alone."""
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise NotImplementedError("in 16 bits")
    return SDPA(q.bfloat16(), k.bfloat16(), v.bfloat16()).to(q.dtype)


def test_a_format_computed_in_a_coarser_one_is_told_so_and_not_as_a_carry():
    kernels.register("FP16 in BF16", fp16_in_bf16)
    tables = examine("FP16 in BF16", TINY)
    judgement = judge_kernel("FP16 in BF16", tables)
    (low,) = found(judgement, "coarse")
    assert low.severity == Severity.FAILS and (low.where["fmt"], low.number, low.limit) == ("FP16", 8, 10)
    carries = found(judgement, "carry")
    assert {each.where["fmt"] for each in carries} == {"BF16"} and judgement.carries == ()
    assert ": 8 significant bits, limit 10" in judgement_text(judgement)
    own = tables.lengths
    assert coarse(own[own.fmt == "BF16"]) == {} and coarse(own.drop(columns="bits")) == {}
    result = result_of("carry", lambda q, k, v: fp16_in_bf16(q.half(), k, v) if q.dtype == torch.float16 else 1 / 0)
    assert result.passed is None and "numbers of a coarser format" in result.why


@pytest.mark.parametrize(
    "kernel, told, fails",
    [(louder, "off by a factor", "times a factor: 1.15"), (noise, "differ from call to call", "results on each call")],
)
def test_nor_does_a_single_check_call_it_a_carry(kernel, told, fails):
    result = result_of("carry", kernel)
    assert result.passed is None and told in result.why
    result = result_of("gross_errors", kernel)
    assert result.passed is False and fails in result.why


def test_a_factor_that_grows_with_n_or_one_setting_alone_is_no_scale():
    rows = pd.DataFrame(dict(outcome="answered", factor=[1.1, 1.1, 1.101], by_factor=0.9))
    assert scaled(rows) == pytest.approx(1.1)
    assert scaled(rows.assign(factor=[1.1, 1.2, 1.4])) is None and scaled(rows[:1]) is None
    assert scaled(rows.assign(by_factor=[0.9, 0.9, 0.7])) is None and scaled(rows.drop(columns="factor")) is None


BIG = 3.38e38
CAPTURES = {  # name -> tensors of Q, K, V; a finding, and a part of its where; the verdict
    "fp16_sigma_200": (lambda q, k, v: dict(q=(200 * q).half(), k=(200 * k).half(), v=v.half()),
                       "baseline_overflows", dict(heads=[0, 1]), Verdict.PASSES),
    "bf16_maxima": (lambda q, k, v: dict(q=(0 * q + BIG).bfloat16(), k=(0 * k + BIG).bfloat16(), v=v.bfloat16()),
                    "baseline_overflows", {}, Verdict.FAILS),
    "fp16_maxima_of_v": (lambda q, k, v: dict(q=q.half(), k=k.half(), v=(0 * v + 65504).half()),
                         "one_signed", dict(heads=[0, 1]), Verdict.PASSES),
    "scale_1e300": (lambda q, k, v: dict(q=q.bfloat16(), k=k.bfloat16(), v=v.bfloat16(),
                                         scale=torch.tensor(1e300, dtype=torch.float64)),
                    "baseline_overflows", {}, Verdict.FAILS),
    "mask_inf": (lambda q, k, v: dict(q=q.bfloat16(), k=k.bfloat16(), v=v.bfloat16(),
                                      mask=torch.zeros(32, 32).fill_diagonal_(torch.inf)),
                 "baseline_overflows", dict(heads=[0, 1]), Verdict.NOT_JUDGED),
}  # fmt: skip
CODES = {Verdict.PASSES: 0, Verdict.FAILS: 1, Verdict.NOT_JUDGED: 3}


@pytest.mark.parametrize("name", CAPTURES)
def test_a_capture_on_which_baseline_overflows_has_its_page(name, tmp_path):
    make, what, part, verdict = CAPTURES[name]
    record = tmp_path / "record.json"
    save_file(make(*draw(32)), tmp_path / f"{name}.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        words = ("check", "tensors", f"{tmp_path / name}.safetensors", "--exit-code", "--out", f"{tmp_path}")
        done = command(*words, "--json", record)
    assert done.exit_code == CODES[verdict], done.output
    judgement = Judgement.of(json.loads(record.read_text()))
    (one,) = [each for each in found(judgement, what) if each.where | part == each.where]
    (said,) = worded([one])
    page = html.unescape((tmp_path / f"{name}.html").read_text().replace("<wbr>", ""))
    assert said.text in done.output and said.text in page


def test_one_head_that_overflows_leaves_the_others_judged(tmp_path):
    q, k, v = (x.half() for x in draw(32))
    q[:, 0], k[:, 0] = q[:, 0] * 200, k[:, 0] * 200
    save_file(dict(q=q, k=k, v=v), tmp_path / "a.safetensors")
    report = captured_reports.check_tensors(tmp_path / "a.safetensors", out=tmp_path, names=("flash",))
    told = {each.what: each.where for each in report.judgement.findings}
    assert report.judgement.passed
    assert told["baseline_overflows"]["heads"] == [0] and told["head_error"]["heads"] == 1


def test_a_pt_file_whose_tensors_want_gradients_is_read(tmp_path):
    q, k, v = draw(32)
    torch.save(dict(q=q.requires_grad_(), k=k, v=torch.nn.Parameter(v)), tmp_path / "a.pt")
    held = captured(tmp_path / "a.pt")
    assert torch.equal(held.q, q) and not held.q.requires_grad and not held.v.requires_grad
    assert command("check", "tensors", tmp_path / "a.pt", "--out", tmp_path).exit_code == 0


def test_a_name_of_dots_writes_into_out_and_nowhere_else(tmp_path):
    q, k, v = draw(32)
    out = tmp_path / "deep" / "out"
    save_file(dict(q=q, k=k, v=v), tmp_path / "...safetensors")  # its stem is ".."
    page = captured_reports.check_tensors(tmp_path / "...safetensors", out=out, names=("flash",)).page
    assert page.parent == out and not page.name.startswith(".")
    assert {PageFiles.of(out, name).page.parent for name in ("..", ".", "", "..a", "/", "../b")} == {out}
    assert [*(tmp_path / "deep").iterdir()] == [out]


def test_an_empty_name_of_a_kernel_is_told_in_a_line(tmp_path):
    save_file(dict(zip("qkv", draw(32))), tmp_path / "a.safetensors")
    file, out = f"{tmp_path / 'a.safetensors'}", f"{tmp_path / 'out'}"
    for words in (("check", "tensors", file, "--kernel", "", "--out", out), ("check", "kernel", "", "--out", out),
                  ("compare", "", "flash"), ("shrink", file, "--kernel", "")):  # fmt: skip
        done = command(*words)
        assert done.exit_code == 2 and isinstance(done.exception, SystemExit), words
        assert done.stderr.startswith("fa-lib: kernel: got ''; accepted are") and done.stderr.count("\n") == 1
