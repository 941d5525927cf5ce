"""Kernels by name in a GPU's arithmetic, and the GPU that their code believes in; Triton is in tests/gpu."""

import pytest
import torch
from typer.testing import CliRunner

from attention_check.gpu import on
from fa_lib import kernels
from fa_lib.commands.cli import app
from fa_lib.kernels.kernel_ref import KernelRef
from ptx_machine import GPU
from ptx_machine.fake_cuda import fake_cuda


def test_inside_tensors_and_torch_tell_of_the_gpu_and_everything_is_made_on_the_cpu():
    x = torch.ones(3)
    with fake_cuda(GPU.of("H100")):
        y = torch.empty(2, device=x.device)
        told = x.is_cuda, x.device.type, x.get_device(), x.cuda() is x, x.to("cuda:0").sum().item()
        assert torch.cuda.is_available() and torch.cuda.get_device_capability(x.device) == (9, 0)
        with torch.cuda.device(x.device):
            assert torch.cuda.get_device_properties(0).multi_processor_count == 132
    assert told == (True, "cuda", 0, True, 3.0)
    assert y.device.type == "cpu" and not x.is_cuda and not torch.cuda.is_available()


def test_the_gpu_of_a_kernel_is_where_it_is_loaded(monkeypatch):
    monkeypatch.setattr(on, "kernel", lambda kernel, gpu: lambda q, k, v: (kernel, gpu))
    assert kernels.get("gpu:H100:mine:attention")(1, 2, 3) == (KernelRef("mine", "attention"), "H100")
    assert kernels.get("fa2", gpu="A100")(1, 2, 3) == (KernelRef("", "fa2"), "A100")


def test_what_cannot_be_had_is_told(monkeypatch):
    with pytest.raises(ValueError, match="gpu: got 'P100'; accepted are A100, L40S, H100, H200, B200"):
        kernels.get("fa2", gpu="P100")
    monkeypatch.setattr(on, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"^Triton is not installed: .*'fa_lib\[gpu\]'"):
        kernels.get("mine:attention", gpu="A100")
    done = CliRunner().invoke(app, ["check", "kernel", "mine:attention", "--gpu", "P100"], prog_name="fa-lib")
    assert done.exit_code == 2 and "gpu: got 'P100'" in done.stderr
