"""What was wrong when public reports were tried as their authors would: words, exit codes, commands."""

import json
import math

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

from fa_lib import kernels
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
