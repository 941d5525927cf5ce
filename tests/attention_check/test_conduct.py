"""What a stranger's kernel does beside its work counts in every command that judges it."""

import json
import sys
from contextlib import closing

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from attention_check.isolation.calls import KernelError
from attention_check.isolation.isolated_kernel import IsolatedKernel
from fa_lib.commands.cli import app
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.kernel_ref import KernelRef

RIGHT = """
import torch
import torch.nn.functional as F


def right(q, k, v, causal=False, scale=None):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)


def replaces_softmax(q, k, v, causal=False, scale=None):
    torch.softmax = lambda *given, **named: torch.zeros(1)
    return right(q, k, v, causal, scale)


class _Changes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        return right(q, k, v)

    @staticmethod
    def backward(ctx, dO):
        q, k, v = ctx.saved_tensors
        k.data.add_(1)
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)


def changes_k_in_backward(q, k, v):
    return _Changes.apply(q, k, v)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "of_conduct.py").write_text(RIGHT)
    monkeypatch.syspath_prepend(tmp_path)
    yield "of_conduct"
    assert "of_conduct" not in sys.modules


def checked(*words):
    return CliRunner().invoke(app, ["check", "kernel", *words, "--exit-code"], prog_name="fa-lib")


def test_a_kernel_that_replaces_torchs_functions_fails_with_some_checks_alone(module):
    done = checked(f"{module}:replaces_softmax", "--check", "strides")
    assert done.exit_code == 1 and "strides: passes" in done.stdout
    assert "conduct: FAILS: " in done.stdout and "torch.softmax" in done.stdout
    done = checked(f"{module}:right", "--check", "strides")
    assert done.exit_code == 0 and "conduct: passes" in done.stdout


def test_it_fails_on_captured_tensors(module, tmp_path):
    q, k, v = (x.bfloat16() for x in draw("normal", 0, (1, 1, 64, 32)))
    save_file(dict(q=q, k=k, v=v), tmp_path / "a.safetensors")
    for kernel, code in (("replaces_softmax", 1), ("right", 0)):
        record = tmp_path / f"{kernel}.json"
        words = "--tensors", f"{tmp_path / 'a.safetensors'}", "--out", f"{tmp_path}", "--json", f"{record}"
        done = checked(f"{module}:{kernel}", *words)
        assert done.exit_code == code, done.output
        failed = {one["what"] for one in json.loads(record.read_text())["findings"] if one["severity"] == "fails"}
        assert failed == ({"state"} if code else set())


def test_inputs_that_are_changed_in_the_backward_pass_are_told(module):
    q, k, v = (x.requires_grad_() for x in draw("normal", 0, (1, 1, 8, 16)))
    with closing(IsolatedKernel(KernelRef.of(f"{module}:changes_k_in_backward"))) as fn:
        o = fn(q, k, v)
        with pytest.raises(KernelError, match="changes k in its backward pass"):
            torch.autograd.grad(o.sum(), (q, k, v))
