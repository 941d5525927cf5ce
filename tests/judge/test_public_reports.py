"""What was wrong when public reports were tried as their authors would: words, exit codes, commands."""

import json
import math
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

from fa_lib import kernels, modules
from fa_lib.check.attempt import attempt
from fa_lib.check.contract import contract
from fa_lib.check.findings import Finding, Severity
from fa_lib.check.judge_conduct import of_conduct
from fa_lib.check.kernel_words import NOTES
from fa_lib.check.model import Probe
from fa_lib.check.named import check_named, chosen, in_lines
from fa_lib.check.said import as_times, times
from fa_lib.check.skipped import Why
from fa_lib.cli import app
from fa_lib.experiments.sequential import sequential
from fa_lib.formats import BF16, FP32
from fa_lib.inputs import draw
from fa_lib.paths import ROOT

SDPA = "from torch.nn.functional import scaled_dot_product_attention as sdpa\n"


def command(*words):
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [*map(str, words)], prog_name="fa-lib")


def saved(folder, **tensors):
    path = folder / "call.safetensors"
    save_file({name: x.contiguous() for name, x in tensors.items()}, path)
    return path


def normal(*shape, dtype=torch.float32, seed=0):
    return [x.to(dtype) for x in draw("normal", seed, shape)]


def left_padding(n, blind):
    """A causal mask whose first keys are padding, so that the first rows see no key."""
    mask = torch.ones(n, n, dtype=torch.bool).tril()
    mask[:, :blind] = False
    return mask


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_that_see_no_key_are_no_overflow_of_baseline(tmp_path, dtype):
    q, k, v = normal(1, 2, 96, 32, dtype=dtype)
    path = saved(tmp_path, q=q, k=k, v=v, mask=left_padding(96, 7))
    done = command("check", "tensors", path, "--kernel", "reference", "--out", tmp_path, "--gate")
    assert done.exit_code == 0, done.output


def test_the_yardstick_in_fp32_gives_0_and_gradients_of_0_where_a_row_sees_no_key():
    q, k, v = (x.requires_grad_() for x in normal(1, 2, 24, 8))
    for options, blind in ((dict(mask=left_padding(24, 5)), 5), (dict(causal=True), 0)):
        o = sequential(q, k, v, **options)
        golden = kernels.golden(q, k, v, inputs=FP32, **options)
        assert not o[:, :, :blind].any() and (o - golden).abs().max() < 1e-5
        ours, theirs = (torch.autograd.grad(x.sum(), (q, k, v)) for x in (o, golden))
        assert all((a - b).abs().max() < 1e-5 for a, b in zip(ours, theirs))
    more = sequential(q, k[:, :, :20], v[:, :, :20], causal=True)  # the first four rows see none
    assert not more[:, :, :4].any() and more.isfinite().all()


def test_a_kernel_may_return_its_log_sum_exp_too(tmp_path):
    (tmp_path / "two.py").write_text(SDPA + "def f(q, k, v): return sdpa(q, k, v), q[..., 0]")
    done = command("check", "kernel", tmp_path / "two.py:f", "--only", "error", "--gate")
    assert done.exit_code == 0 and "3 passed" in done.output, done.output


def test_of_values_that_are_not_finite_the_rows_are_told_and_whether_they_see_keys():
    q, k, v = normal(1, 2, 16, 8)
    mask = left_padding(16, 3)

    def gives_nan(q, k, v, mask):
        return torch.softmax((q @ k.mT).masked_fill(~mask, -math.inf), -1) @ v

    answer = attempt(gives_nan, q, k, v, mask=mask)
    assert not answer.finite and answer.problem == (
        "returns 48 values that are NaN or infinite, of 256, in 6 rows, 6 of which see no key; "
        "the first is row (0, 0, 0)"
    )
    worse = attempt(lambda q, k, v: torch.full_like(q, math.nan), q, k, v)
    assert "in 32 rows, all of which see keys" in worse.problem


def test_a_model_of_which_nothing_was_compared_is_not_judged_and_the_reason_is_told(tmp_path, monkeypatch):
    module = "import torch\nfrom torch import nn\n\ndef run():\n    x = torch.randn(1, 4, 8)\n"
    attention = "    nn.MultiheadAttention(8, 2, batch_first=True).train()(x, x, x)\n"
    (tmp_path / "with_weights.py").write_text(module + attention)
    done = command("check", "model", tmp_path / "with_weights.py:run", "--out", tmp_path, "--gate")
    assert done.exit_code == 3 and "is not judged" in done.output and "need_weights=False" in done.output
    with pytest.warns(UserWarning, match="need_weights"), Probe(()) as probe:
        layer, x = nn.MultiheadAttention(8, 2, batch_first=True).train(), torch.randn(1, 4, 8)
        layer(x, x, x)
        layer(x, x, x, need_weights=False)
    assert probe.calls == 1 and probe.skipped == {("all", Why.WEIGHTS): 1}


def test_a_result_that_was_asked_and_does_not_count_is_not_called_unasked():
    results = check_named("unfused", ["hidden_row"])
    assert results["hidden_row"].reported and results["hidden_row"].passed is None
    assert (
        in_lines("unfused", results)[0].endswith("1 reported.") and "not asked" not in in_lines("unfused", results)[1]
    )


def test_checks_are_found_by_any_word_of_their_names_and_written_into_a_folder(tmp_path):
    assert chosen(["softcap"])[0] == "answer_softcap" and "answer_one_query_as_in_decoding" in chosen(["decoding"])
    done = command("check", "kernel", "flash", "--only", "strides", "--out", tmp_path)
    (written,) = tmp_path.glob("*.json")
    assert done.exit_code == 0 and json.loads(written.read_text())["checks"]["strides"]["passed"]


def test_what_an_import_draws_is_no_act_of_the_kernels_calls():
    columns = dict(what="state", detail="numpy's random numbers", number=math.nan, times=1, at="")
    assert list(of_conduct(pd.DataFrame([columns | dict(on_import=True)]))) == []
    (drawn,) = of_conduct(pd.DataFrame([columns | dict(on_import=False)]))
    assert drawn.what == "draws"


@pytest.mark.parametrize(
    "number, told",
    [(2.41, "2.4"), (0.04, "0.04"), (0.0321, "0.03"), (0.00123, "0.001"), (1e-9, "less than 0.0001"), (0.0, "0.0")],
)
def test_a_small_error_is_not_told_as_none(number, told):
    assert as_times(number) == told
    assert times(Finding("error", Severity.PASSES, {}, number, 2.0))[0] == f"{told} × Baseline's"
    assert as_times(2.0004, 2) == "2.0004"


def test_a_model_and_a_plugins_kernel_are_named_by_their_files(tmp_path):
    text = (
        "import torch\n" + SDPA + "def run(): sdpa(*torch.randn(3, 1, 2, 16, 8))\ndef f(q, k, v): return sdpa(q, k, v)"
    )
    (tmp_path / "mine.py").write_text(text)
    done = command("check", "model", tmp_path / "mine.py:run", "--out", tmp_path, "--gate")
    assert done.exit_code == 0, done.output
    done = command("check", "model", tmp_path / "none.py:run")
    assert done.exit_code == 2 and "function: got" in done.output and "there is no file" in done.output


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_in_a_file_is_used_whatever_it_is_called(tmp_path, name, dtype):
    """The right output passes, and that of a kernel which does not know the option fails."""
    given, named, words = OPTIONS[name]
    q, k, v = normal(1, 2, 96, 32, dtype=dtype)
    right, wrong = (kernels.as_shipped(q, k, v, **options) for options in (given, {}))
    for o, code in ((right, 0), (wrong, 1)):
        path = saved(tmp_path, query=q, key=k, value=v, attn_output=o, **named)
        done = command("check", "tensors", path, "--out", tmp_path, "--gate")
        assert done.exit_code == code, done.output
        if words:
            path = saved(tmp_path, q=q, k=k, v=v, out=o)
            assert command("check", "tensors", path, "--out", tmp_path, "--gate", *words).exit_code == code


def test_a_tensor_that_means_nothing_or_stands_twice_or_contradicts_the_command_is_refused(tmp_path):
    q, k, v = normal(1, 2, 16, 8)
    o = kernels.as_shipped(q, k, v)
    for more, words, told in (
        (dict(o=o, o2=2 * o), (), "o2: got a tensor of this name, which would not be used; accepted are q or query"),
        (dict(o=o, out=2 * o), (), "out: got it beside o; accepted is one of the two"),
        (dict(o=o, scale=torch.tensor([1.0, 2.0])), (), "scale: got 2 numbers; accepted is one number"),
        (dict(o=o, scale=torch.tensor(0.5)), ("--scale", "0.25"), "scale: got 0.25, and 0.5 in the file"),
        (dict(o=o, window=torch.tensor(5)), (), "window: got 1 numbers; accepted is two"),
        (dict(o=o), ("--window", "5"), "window: got '5'; accepted are two whole numbers"),
    ):
        done = command("check", "tensors", saved(tmp_path, q=q, k=k, v=v, **more), *words)
        assert done.exit_code == 2 and told in done.output.replace("\n", " "), done.output
    path = saved(tmp_path, q=q[:, :, :4], k=k, v=v, is_causal=torch.tensor(True))
    done = command("check", "tensors", path)
    assert done.exit_code == 2 and "torch aligns it top-left" in done.output
    path = saved(tmp_path, **{name: x.to(torch.float8_e4m3fn) for name, x in zip("qkv", (q, k, v))})
    done = command("check", "tensors", path)
    assert done.exit_code == 2 and "q: got torch.float8_e4m3fn; accepted are BF16, FP16, FP32 and FP64" in done.output


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_that_are_stored_in_more_are_judged_in_sixteen(tmp_path, dtype):
    """A .npz file has no BF16."""
    q, k, v = normal(1, 2, 96, 32, dtype=dtype)
    o, fmt = kernels.flash(q, k, v), {torch.bfloat16: "BF16", torch.float16: "FP16"}[dtype]
    wide = {name: x.float() for name, x in dict(q=q, k=k, v=v, o=o).items()}
    for held in (wide, {name: x.double() for name, x in wide.items()}):
        np.savez(tmp_path / "a.npz", **{name: x.numpy() for name, x in held.items()})
        for words in ((), ("--format", fmt)):
            done = command("check", "tensors", tmp_path / "a.npz", "--out", tmp_path, "--gate", *words)
            assert done.exit_code == 0 and "The kernel that ran passes" in done.output, done.output
    assert "stored in FP64" in (tmp_path / "a.html").read_text() or words
    np.savez(tmp_path / "a.npz", **{name: x.numpy() for name, x in (wide | dict(o=wide["o"] * 1.0001)).items()})
    assert command("check", "tensors", tmp_path / "a.npz", "--out", tmp_path, "--gate").exit_code == 1  # FP32's o


def test_an_output_that_is_no_answer_to_rounded_inputs_is_not_replaced_in_silence(tmp_path):
    q, k, v = normal(1, 2, 32, 8)
    path = saved(tmp_path, q=q, k=k, v=v, o=kernels.as_shipped(q, k, v))
    done = command("check", "tensors", path, "--format", "BF16")
    assert done.exit_code == 2 and "rounding q, k and v to BF16 changes them" in done.output
    assert command("check", "tensors", path, "--format", "BF16", "--kernel", "flash", "--gate").exit_code == 0


@pytest.mark.parametrize("name", ["window", "softcap", "sinks"])
def test_compare_and_shrink_read_options_and_layouts(tmp_path, name, monkeypatch):
    given, named, _ = OPTIONS[name]
    (tmp_path / f"forgets_{name}.py").write_text(
        "from fa_lib import kernels\n"
        f"def right(q, k, v, {name}=None, **options): return kernels.as_shipped(q, k, v, {name}={name}, **options)\n"
        f"def wrong(q, k, v, {name}=None, **options): return kernels.as_shipped(q, k, v, **options)\n"
    )
    monkeypatch.setattr(modules, "_FOLDERS", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    q, k, v = (x.transpose(1, 2) for x in normal(1, 2, 96, 32, dtype=torch.bfloat16))
    path = saved(tmp_path, q=q, k=k, v=v, **named)
    mine = tmp_path / f"forgets_{name}.py"
    done = command("compare", f"{mine}:right", "as_shipped", "--on", path, "--layout", "bshd")
    assert done.exit_code == 0 and "A and B give the same bits" in done.output, done.output
    done = command("shrink", path, "--kernel", f"{mine}:right", "--layout", "bshd", "--out", tmp_path / "test_r.py")
    assert done.exit_code == 2 and "does not fail" in done.output
    done = command("shrink", path, "--kernel", f"{mine}:wrong", "--layout", "bshd", "--out", tmp_path / "test_w.py")
    assert done.exit_code == 0, done.output
    for kernel, code in (("", 1), (f"forgets_{name}:right", 0)):
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_w.py"]
        env = os.environ | dict(KERNEL=kernel)
        assert subprocess.run(words, cwd=tmp_path, env=env, capture_output=True).returncode == code
