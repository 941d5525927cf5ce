"""What was wrong when public reports were tried as their authors would: words, exit codes, commands."""

import json
import math
import re

import numpy as np
import pandas as pd
import pytest
import torch
from in_a_folder import SDPA, command, normal, own_path, recorded, saved, written_test_says  # noqa: F401
from safetensors import safe_open
from torch import nn

from attention_check.adapters import OPTION_NAMES
from attention_check.explain.explain import explain_call
from attention_check.isolation.calls import call_kernel
from attention_check.isolation.isolated_kernel import isolated
from attention_check.judge.captured import judge_model
from attention_check.judge.findings import Finding, Judgement, Severity
from attention_check.measure.capability import CAUSAL_FEWER, CAUSAL_ONE
from attention_check.measure.contract import contract
from attention_check.probe.probe import Probe
from attention_check.probe.skipped import Why
from attention_check.report.labels import LABELS, NOTES
from attention_check.report.sentences import headline
from attention_check.report.wordings import as_times, times
from benchmarks.reports import OF_THEN, REPORTS, is_cause, with_old_library
from fa_lib import kernels
from fa_lib.execution.reader_modules import module_name
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.kernels.rule import baseline_for
from fa_lib.numerics.formats import BF16, FP32

pytestmark = pytest.mark.usefixtures("own_path")


def left_padding(n, blind):
    """A causal mask whose first keys are padding, so that the first rows see no key."""
    mask = torch.ones(n, n, dtype=torch.bool).tril()
    mask[:, :blind] = False
    return mask


def test_the_yardstick_in_fp32_is_attention_and_gives_0_and_gradients_of_0_where_a_row_sees_no_key():
    q, k, v = (x.requires_grad_() for x in normal(1, 4, 24, 8, kv=(1, 2, 24, 8)))
    for options, blind in ((dict(mask=left_padding(24, 5)), 5), (dict(causal=True, scale=0.3), 0), ({}, 0)):
        o = baseline_for(FP32)(q, k, v, **options)
        golden = kernels.golden(q, k, v, inputs=FP32, **options)
        assert not o[:, :, :blind].any() and (o - golden).abs().max() < 1e-5
        ours, theirs = (torch.autograd.grad(x.sum(), (q, k, v)) for x in (o, golden))
        assert all((a - b).abs().max() < 1e-5 for a, b in zip(ours, theirs))
    more = baseline_for(FP32)(q, k[:, :, :20], v[:, :, :20], causal=True)  # the first four rows see none
    assert not more[:, :, :4].any() and more.isfinite().all()


def test_of_values_that_are_not_finite_the_rows_are_told_and_whether_they_see_keys():
    q, k, v = normal(1, 2, 16, 8)
    mask = left_padding(16, 3)

    def gives_nan(q, k, v, mask):
        return torch.softmax((q @ k.mT).masked_fill(~mask, -math.inf), -1) @ v

    answer = call_kernel(gives_nan, q, k, v, mask=mask)
    assert not answer.finite and answer.outcome == "malformed"
    values, of, rows, blind, *first = map(int, re.findall(r"\d+", answer.problem))
    assert (values, of, rows, blind, first) == (48, 256, 6, 6, [0, 0, 0]), answer.problem
    worse = call_kernel(lambda q, k, v: torch.full_like(q, math.nan), q, k, v)
    values, of, rows, *first = map(int, re.findall(r"\d+", worse.problem))
    assert (values, of, rows, first) == (256, 256, 32, [0, 0, 0]), worse.problem


def test_a_model_of_which_nothing_was_compared_is_not_judged_and_the_reason_is_told(tmp_path, monkeypatch):
    module = "import torch\nfrom torch import nn\n\ndef run():\n    x = torch.randn(1, 4, 8)\n"
    attention = "    nn.MultiheadAttention(8, 2, batch_first=True).train()(x, x, x)\n"
    (tmp_path / "with_weights.py").write_text(module + attention)
    done = command("check", "model", tmp_path / "with_weights.py:run", "--out", tmp_path, "--exit-code")
    assert done.exit_code == 3 and "is not judged" in done.output and "need_weights=False" in done.output
    done = command("check", "model", tmp_path / "none.py:run")
    assert done.exit_code == 2 and "function: got" in done.output and "there is no file" in done.output
    with pytest.warns(UserWarning, match="need_weights"), Probe(()) as probe:
        layer, x = nn.MultiheadAttention(8, 2, batch_first=True).train(), torch.randn(1, 4, 8)
        layer(x, x, x)
        layer(x, x, x, need_weights=False)
    assert probe.calls == 1 and probe.skipped == {("all", Why.WEIGHTS): 1}


@pytest.mark.parametrize("number, told", [
    (2.41, "2.4"), (0.04, "0.04"), (0.0321, "0.03"), (0.00123, "0.001"), (1e-9, "less than 0.0001"), (0.0, "0.0"),
])  # fmt: skip
def test_a_small_error_is_not_told_as_none(number, told):
    assert as_times(number) == told
    assert times(Finding("error", Severity.PASSES, {}, number, 2.0))[0] == f"{told} × Baseline's"
    assert as_times(2.0004, 2) == "2.0004"


def test_a_layout_that_was_given_and_is_not_the_kernels_is_told_so():
    rows = contract("flash@bshd")
    assert {row["note"] for row in rows if row["outcome"] == "wrong"} == {"bhsd"}
    assert "leave out --layout bshd" in NOTES["bhsd"] and BF16.name in {row["asked"] for row in rows}


OPTIONS = {  # of a call -> what a file and the command line call it
    "softcap": (dict(softcap=1.5), dict(softcap=torch.tensor(1.5)), ("--softcap", "1.5")),
    "window": (dict(window=(24, 0)), dict(window_size=torch.tensor([24, 0])), ("--window", "24,0")),
    "sinks": (dict(sinks=torch.tensor([2.0, 1.0])), dict(s_aux=torch.tensor([2.0, 1.0])), None),
    "scale": (dict(scale=0.5), dict(softmax_scale=torch.tensor(0.5)), ("--scale", "0.5")),
    "causal": (dict(causal=True), dict(is_causal=torch.tensor(True)), ("--causal",)),
    "mask": (dict(mask=left_padding(96, 0)), dict(attn_mask=left_padding(96, 0)), None),
}


@pytest.mark.parametrize("name, dtype", zip(OPTIONS, 3 * [torch.bfloat16, torch.float32]))
def test_an_option_in_a_file_is_used_whatever_it_is_called(tmp_path, name, dtype):
    """The right output passes, and that of a kernel which does not know the option fails."""
    given, named, words = OPTIONS[name]
    q, k, v = normal(1, 2, 96, 32, dtype=dtype)
    right, wrong = (kernels.as_shipped(q, k, v, **options) for options in (given, {}))
    for o, code in ((right, 0), (wrong, 1)):
        path = saved(tmp_path, query=q, key=k, value=v, attn_output=o, **named)
        done = command("check", "tensors", path, "--out", tmp_path, "--exit-code")
        assert done.exit_code == code, done.output
        if words:
            path = saved(tmp_path, q=q, k=k, v=v, out=o)
            assert command("check", "tensors", path, "--out", tmp_path, "--exit-code", *words).exit_code == code


def test_a_tensor_that_means_nothing_or_stands_twice_or_contradicts_the_command_is_refused(tmp_path):
    q, k, v = normal(1, 2, 16, 8)
    o = kernels.as_shipped(q, k, v)
    for more, words, told in (
        (dict(o=o, o3=2 * o), (), "o3: got a tensor of this name, which would not be used; accepted are q or query; k"),
        (dict(o=o, o3=2 * o), (), "lse or softmax_lse or logsumexp or log_sum_exp; dlse or"),
        (dict(o=o, o2=2 * o, o_ref=3 * o), (), "got it beside o"),
        (dict(o=o, k_scale=torch.ones(3)), (), "k_scale: got shape (1, 3) for k (1, 2, 16, 8); accepted is one"),
        (dict(o=o, cu_seqlens=torch.tensor([0, 16])), (), "q: got shape (1, 2, 16, 8); accepted with cu_seqlens is"),
        (dict(o=o, out=2 * o), (), "out: got it beside o;"),
        (dict(o=o, scale=torch.tensor([1.0, 2.0])), (), "scale: got 2 numbers; accepted is one number"),
        (dict(o=o, scale=torch.tensor(0.5)), ("--scale", "0.25"), "scale: got 0.25, and 0.5 in the file"),
        (dict(o=o, window=torch.tensor(5)), (), "window: got 1 numbers; accepted is two"),
        (dict(o=o), ("--window", "5"), "window: got '5';"),
    ):
        done = command("check", "tensors", saved(tmp_path, q=q, k=k, v=v, **more), *words)
        assert done.exit_code == 2 and told in done.output.replace("\n", " "), done.output
    path = saved(tmp_path, q=q[:, :, :4], k=k, v=v, is_causal=torch.tensor(True))
    done = command("check", "tensors", path)
    assert done.exit_code == 2 and "is_causal: got it" in done.output
    path = saved(tmp_path, **{name: (9 * x).to(torch.int8) for name, x in zip("qkv", (q, k, v))})
    done = command("check", "tensors", path)
    assert done.exit_code == 2 and "INT8 without q_scale" in done.output


def test_packed_sequences_and_eight_bits_with_scales_are_judged_by_check(tmp_path):
    q, k, v = (x[0].transpose(0, 1).contiguous() for x in normal(1, 2, 96, 32, dtype=torch.bfloat16))
    scales = dict(k_scale=torch.tensor([0.25, 0.5]), v_scale=torch.tensor(2.0))
    low = {name: (x / 4).to(torch.float8_e4m3fn) for name, x in dict(k=k, v=v).items()}
    wide = (low["k"].float() * scales["k_scale"][:, None]).bfloat16(), (low["v"].float() * 2).bfloat16()
    parts = [
        kernels.as_shipped(*(x[at].transpose(0, 1)[None] for x in (q, *wide)), causal=True)
        for at in (slice(0, 40), slice(40, 96))
    ]
    o = torch.cat(parts, 2)[0].transpose(0, 1).contiguous()
    packed = dict(q=q, **low, **scales, cu_seqlens=torch.tensor([0, 40, 96]))
    for output, code in ((o, 0), (o * 2, 1)):
        path = saved(tmp_path, o=output, **packed)
        for words in (("check", "tensors", path, "--out", tmp_path), ("explain", path)):
            assert command(*words, "--causal", "--exit-code").exit_code == code


def test_a_file_that_explain_takes_is_judged_by_check_and_what_is_left_to_explain_is_said(tmp_path):
    q, k, v = normal(1, 2, 64, 32, dtype=torch.bfloat16)
    o = kernels.as_shipped(q, k, v)
    beside = dict(o_ref=o, lse=torch.zeros(1, 2, 64), dO=o, dq=q, dk=k, dv=v)
    path = saved(tmp_path, q=q, k=k, v=v, o=o, **{name: x.contiguous().clone() for name, x in beside.items()})
    cases = (("tensors", path), 1, "o_ref"), (("tensors", path, "--kernel", "flash"), 0, "o_ref, lse, dq, dk, dv")
    for words, code, left in cases:
        done = command("check", *words, "--out", tmp_path, "--exit-code")
        told = f"Not judged here, though the file has it: {left}. `fa-lib explain` judges that."
        assert done.exit_code == code and told in done.output, done.output
    assert command("explain", path).exit_code == 0


def test_sixteen_bits_that_are_stored_in_more_are_judged_in_sixteen(tmp_path):
    """A .npz file has no BF16."""
    q, k, v = normal(1, 2, 96, 32, dtype=torch.bfloat16)
    wide = {name: x.float() for name, x in dict(q=q, k=k, v=v, o=kernels.flash(q, k, v)).items()}
    for held, words in ((wide, ("--format", "BF16")), ({name: x.double() for name, x in wide.items()}, ())):
        np.savez(tmp_path / "a.npz", **{name: x.numpy() for name, x in held.items()})
        done = command("check", "tensors", tmp_path / "a.npz", "--out", tmp_path, "--exit-code", *words)
        assert done.exit_code == 0 and "The kernel that ran passes" in done.output, done.output
    assert "stored in FP64" in (tmp_path / "a.html").read_text()
    np.savez(tmp_path / "a.npz", **{name: x.numpy() for name, x in (wide | dict(o=wide["o"] * 1.0001)).items()})
    assert command("check", "tensors", tmp_path / "a.npz", "--out", tmp_path, "--exit-code").exit_code == 1  # FP32's o


def test_an_output_that_is_no_answer_to_rounded_inputs_is_not_replaced_in_silence(tmp_path):
    q, k, v = normal(1, 2, 32, 8)
    path = saved(tmp_path, q=q, k=k, v=v, o=kernels.as_shipped(q, k, v))
    done = command("check", "tensors", path, "--format", "BF16")
    assert done.exit_code == 2 and re.search(r"\bformat: .* to BF16 ", done.output), done.output
    assert command("check", "tensors", path, "--format", "BF16", "--kernel", "flash", "--exit-code").exit_code == 0


@pytest.mark.parametrize("name", ["window", "softcap", "sinks"])
def test_compare_and_shrink_read_options_and_layouts(tmp_path, name, monkeypatch):
    given, named, _ = OPTIONS[name]
    (tmp_path / f"forgets_{name}.py").write_text(
        "from fa_lib import kernels\n"
        f"def right(q, k, v, {name}=None, **options): return kernels.as_shipped(q, k, v, {name}={name}, **options)\n"
        f"def wrong(q, k, v, {name}=None, **options): return kernels.as_shipped(q, k, v, **options)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    q, k, v = (x.transpose(1, 2) for x in normal(1, 2, 96, 32, dtype=torch.bfloat16))
    path = saved(tmp_path, q=q, k=k, v=v, **named)
    mine = tmp_path / f"forgets_{name}.py"
    record = tmp_path / "compared.json"
    words = ("--tensors", path, "--layout", "bshd", "--json", record)
    done = command("compare", f"{mine}:right", "as_shipped", *words)
    assert done.exit_code == 0 and json.loads(record.read_text())["apart"]["max"] == 0, done.output
    done = command("shrink", path, "--kernel", f"{mine}:right", "--layout", "bshd", "--out", tmp_path / "test_r.py")
    assert done.exit_code == 2 and "does not fail" in done.output
    done = command("shrink", path, "--kernel", f"{mine}:wrong", "--layout", "bshd", "--out", tmp_path / "test_w.py")
    assert done.exit_code == 0, done.output
    assert written_test_says(tmp_path / "test_w.py", monkeypatch)
    assert written_test_says(tmp_path / "test_w.py", monkeypatch, f"forgets_{name}:right") == ""


def test_a_scale_that_is_a_fifth_too_large_does_not_pass_on_peaked_scores(tmp_path):
    """The rule of two is blind there: Baseline rounds large scores, and its own error is as large."""
    q, k, v = (x.bfloat16() for x in draw("peaked", 0, (1, 2, 256, 64)))
    for factor, code in ((1.0, 0), (1.2, 1)):
        path = saved(tmp_path, q=q, k=k, v=v, o=kernels.as_shipped(q, k, v, scale=factor / 8))
        done = command("check", "tensors", path, "--out", tmp_path, "--exit-code")
        assert done.exit_code == code, done.output
    assert "attention with 1.2 times its scale" in done.output.splitlines()[0]
    baseline = saved(tmp_path, q=q, k=k, v=v, o=kernels.baseline(q, k, v))  # right, in its own way
    assert command("check", "tensors", baseline, "--out", tmp_path, "--exit-code").exit_code == 0
    (tmp_path / "scaled.py").write_text(
        f"import torch\nfrom safetensors.torch import load_file\n{SDPA}"
        f"def run():\n    x = load_file({str(baseline)!r})\n    sdpa(x['q'], x['k'], x['v'], scale=0.125)\n"
    )
    record = tmp_path / "scaled.json"
    done = command("check", "model", tmp_path / "scaled.py:run", "--out", tmp_path, "--exit-code", "--json", record)
    (bound,) = recorded(record, "bound")
    assert done.exit_code == 0 and bound["severity"] == "passes" and bound["number"] <= 1, done.output


MASKS = {  # what a model hands to attention -> what is found of it
    "none": ({}, {"sees_later"}),
    "causal": (dict(is_causal=True), set()),
    "idle": (dict(attn_mask=torch.ones(16, 16, dtype=torch.bool)), {"sees_later", "idle_mask"}),
    "of zeros": (dict(attn_mask=torch.zeros(16, 16)), {"sees_later", "idle_mask"}),
    "of numbers": (dict(attn_mask=torch.ones(16, 16).triu(1)), {"sees_later"}),
    "inverted": (dict(attn_mask=~torch.ones(16, 16, dtype=torch.bool).tril()), {"sees_later", "own_hidden"}),
}


@pytest.mark.parametrize("which", MASKS)
def test_what_the_masks_of_a_model_show_is_told(which):
    given, found = MASKS[which]
    with Probe() as probe:
        nn.functional.scaled_dot_product_attention(*normal(1, 2, 16, 8), **given)
    for causal, fails in ((False, False), (True, bool(found))):
        judgement = judge_model("m", probe.table, causal=causal, close=())
        assert judgement.passed != fails
        of = {f.what: f.severity for f in judgement.findings if f.what in ("sees_later", "own_hidden", "idle_mask")}
        assert of.keys() == found and (of.get("sees_later") == Severity.FAILS) == fails
        assert {of[what] for what in found - {"sees_later"}} <= {Severity.REPORTED}
        assert ("as a decoder" in headline(judgement)) == (bool(found) and not fails)


CALLED = {  # what a project calls an option -> its kernel
    "torch": "def f(query, key, value, attn_mask=None, is_causal=False, scale=None):\n"
             "    return sdpa(query, key, value, attn_mask, is_causal=is_causal, scale=scale)",
    "flash-attn": "def f(q, k, v, softmax_scale=None, causal=False, window_size=(-1, -1)):\n"
                  "    left, right = (None if side < 0 else side for side in window_size)\n"
                  "    return kernels.as_shipped(q, k, v, scale=softmax_scale, causal=causal, window=(left, right))",
    "transformers": "def f(q, k, v, attention_mask=None, scaling=None, is_causal=False, **kwargs):\n"  # of no option
                    "    return sdpa(q, k, v, attention_mask, is_causal=is_causal, scale=scaling)",
}  # fmt: skip


@pytest.mark.parametrize("project", CALLED)
def test_options_are_asked_under_the_names_that_a_kernel_gives_them(tmp_path, project):
    name = f"of_{project.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(f"from fa_lib import kernels\n{SDPA}{CALLED[project]}")
    kernel = module_name(f"{tmp_path}/{name}.py:f")
    with isolated(KernelRef.of(kernel)) as subject:
        rows = {row["asked"]: row for row in contract(subject)}
    asked = ("causal", "scale", "window" if project == "flash-attn" else "boolean_mask")
    assert {rows[each]["outcome"] for each in asked} == {"answered"}
    assert {rows[each]["outcome"] for each in ("softcap", "sinks")} == {"refused"}


def test_torchs_own_function_is_asked_for_its_options_and_the_headline_says_what_was_not(tmp_path):
    """It is built in, and has its parameters in its documentation alone."""
    kernel = "torch.nn.functional:scaled_dot_product_attention"
    with isolated(KernelRef.of(kernel)) as subject:
        rows = {row["asked"]: row for row in contract(subject)}
    for asked in ("causal", "boolean_mask", "added_mask", "scale", "gqa"):
        assert rows[asked]["outcome"] == "answered", asked
    assert rows[CAUSAL_FEWER]["note"] == rows[CAUSAL_ONE]["note"] == "top_left"
    asked = pd.DataFrame([*rows.values()])
    no = [*asked.asked[asked.outcome == "refused"]]
    found = Judgement("kernel", kernel, (Finding("unsupported", Severity.REPORTED, dict(asked=no, dims=[0] * len(no))),
                                         Finding("error", Severity.PASSES, {}, 1.0, 2.0)))  # fmt: skip
    words = headline(found)
    assert "softcap" in words and "sinks" in words and LABELS["window"] in words and "boolean" not in words
    page = command("check", "kernel", "--help").output
    assert all(name in page for names in OPTION_NAMES.values() for name in names)


SHRUNK = """
import math, torch
def right(q, k, v, causal=False, scale=None, mask=None):
    S = q.double() @ k.double().mT * (scale or q.shape[-1] ** -0.5)
    S = S if mask is None else S.masked_fill(~mask, -math.inf)
    S = S.masked_fill(torch.ones(S.shape[-2:]).triu(k.shape[-2] - q.shape[-2] + 1) > 0, -math.inf) if causal else S
    return (torch.softmax(S, -1) @ v.double()).to(q.dtype)
def no_mask(q, k, v, mask=None, scale=None): return right(q, k, v, scale=scale)
def fixed_scale(q, k, v, mask=None): return right(q, k, v, scale=0.125)
def nan_of_a_hidden_block(q, k, v, mask=None):
    hidden = ~mask[..., :16].any(-1)[..., None]
    return right(q, k, v, mask=mask).masked_fill(hidden & (k.shape[-2] > 16), math.nan)
def torchs_names(query, key, value, attn_mask=None, is_causal=False): return right(query, key, value)
"""


@pytest.mark.parametrize("name", ["no_mask", "fixed_scale", "nan_of_a_hidden_block", "torchs_names"])
def test_a_shrunk_case_fails_for_what_it_began_with_and_passes_for_a_right_kernel(tmp_path, name, monkeypatch):
    """The right kernel gives NaN where a row sees no key: that may not become the failure."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"shrunk_{name}.py").write_text(SHRUNK)
    q, k, v = normal(1, 2, 64, 64, dtype=torch.bfloat16)
    mask = torch.rand(64, 64, generator=torch.Generator().manual_seed(1)) < 0.4
    mask[3] = False  # sees no key
    mask[40:50, :16] = False
    path = saved(tmp_path, q=q, k=k, v=v, mask=mask)
    words = ("shrink", path, "--kernel", f"{tmp_path}/shrunk_{name}.py:{name}", "--out", tmp_path / "test_it.py")
    done = command(*words)
    assert done.exit_code == 0, done.output
    says = "NaN" if "nan" in name else r" is [\d.]+ times"
    assert re.search(says, written_test_says(tmp_path / "test_it.py", monkeypatch))
    assert written_test_says(tmp_path / "test_it.py", monkeypatch, f"shrunk_{name}:right") == ""


with safe_open(OF_THEN, "pt") as file:  # outputs that the libraries of then gave, which were recorded
    RECORDED = file.metadata()


@pytest.mark.parametrize("report", [report for report in REPORTS if report.thread in RECORDED])
def test_what_a_library_gave_then_is_explained(report):
    own = report.make()
    call, made_by = with_old_library(report, own)
    found = explain_call(call)
    assert made_by == RECORDED[report.thread] and call.o.shape == own.o.shape
    assert found.worst == report.verdict and (is_cause(report, found) or not report.cause)
