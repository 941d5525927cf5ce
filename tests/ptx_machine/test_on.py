"""Kernels by name in a GPU's arithmetic, the label that readers see, and the GPU that their code believes in; Triton is
in tests/gpu."""

import re

import pytest
import torch
from in_a_folder import command

from attention_check.commands import reports
from attention_check.gpu import on
from attention_check.judge.findings import Judgement
from attention_check.measure.plan import CheckPlan
from attention_check.report.page import package_of
from fa_lib import kernels
from fa_lib.execution.machine import installed
from fa_lib.kernels.kernel_ref import KernelRef, unavailable
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


def test_torch_cuda_has_streams_events_and_what_the_gpu_has():
    with fake_cuda(GPU.of("L40S")):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        with torch.cuda.stream(torch.cuda.Stream()), torch.cuda.nvtx.range("attention"):
            x = torch.ones(2, device=0).to(0).pin_memory()
        end.record(torch.cuda.default_stream())
        torch.cuda.current_stream().synchronize()
        torch.cuda.init(), torch.cuda.reset_peak_memory_stats()
        drawn = torch.rand(2, generator=torch.Generator(device="cuda").manual_seed(0), device="cuda")
        has = torch.cuda.get_device_properties(0)
        assert start.elapsed_time(end) > 0 and x.is_cuda and torch.cuda.mem_get_info()[1] == has.total_memory
        assert torch.version.cuda == "13.0"
        with pytest.raises(NotImplementedError, match="CUDA graphs are not modelled"):
            torch.cuda.CUDAGraph()
        assert (has.max_threads_per_multi_processor, has.L2_cache_size) == (1536, 96 << 20)
    assert torch.equal(drawn, torch.rand(2, generator=torch.Generator().manual_seed(0)))


def test_an_import_that_fails_gives_the_errors_own_text():
    kernel = KernelRef("mine", "f")
    known = str(unavailable(kernel, repr(RuntimeError("g++ fails:\nx.cpp:1: error in 'f'"))))
    assert known == "kernel: got 'mine:f'; it cannot be had: RuntimeError: g++ fails:\nx.cpp:1: error in 'f'"
    assert str(unavailable(kernel, repr(ValueError(known)))) == known
    assert "Error: no; modules are looked for in" in str(unavailable(kernel, repr(ModuleNotFoundError("no"))))


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
    done = command("check", "kernel", "mine:attention", "--gpu", "P100")
    assert done.exit_code == 2 and "gpu: got 'P100'" in done.stderr


@pytest.mark.parametrize("name, words", [
    ("flash", "flash"), ("attention_gallery:mlx_sdpa", "gallery:mlx_sdpa"), ("mine:f@bshd", "mine:f@bshd"),
    ("gpu:A100:attention_gallery.flash_attn_kernels:fa2_cuda", "gallery:fa2_cuda on A100"),
    ("gpu:H100~1:mine:attention@bshd", "mine:attention@bshd on H100~1"), ("gpu:A100:fa2", "fa2 on A100"),
    ("mine:f@bshd@one_query", "mine:f@bshd@one_query"), ("mine:f@one_query", "mine:f@one_query"),
])  # fmt: skip
def test_a_text_is_read_once_and_the_kernel_says_its_key_and_its_label(name, words):
    kernel = KernelRef.of(name)
    assert (kernel.label, kernel.key, f"{kernel}") == (words, name, name)
    assert KernelRef.of(kernel) is kernel and KernelRef.of(kernel.key) == kernel
    assert KernelRef.of("mine:f", "H100", "bshd").key == "gpu:H100:mine:f@bshd"
    assert KernelRef.of("gallery:mlx_sdpa") == KernelRef.of("attention_gallery:mlx_sdpa")
    with pytest.raises(ValueError, match="layout: got 'sbhd'; accepted are bhsd, bshd"):
        KernelRef.of("mine:f@sbhd")


TINY = CheckPlan(lengths=(64,), seeds=1, shapes=(), head_dims=(), troubled_n=64, bias_seeds=1, runs=2, square=1)
FLASH = KernelRef.of("fa_lib.kernels.compiled:flash", "A100")


def test_a_page_its_files_and_its_record_name_the_kernel_and_the_gpu(tmp_path):
    report = reports.check_kernel(FLASH, TINY, tmp_path)
    page = report.page.read_text()
    assert report.page.name == "fa_lib.kernels.compiled_flash_on_A100.html" and FLASH.label in page
    assert not re.findall(r"gpu[.:]on:|attention_check\.gpu", page)
    assert report.record["label"] == FLASH.label and Judgement.of(report.record).subject == FLASH.key


@pytest.mark.parametrize("name, package", [
    ("fa2", "flash-attn 2.8.3"), ("attention_gallery.flash_attn_kernels:fa2_cuda", "flash-attn 2.8.3"),
    ("numpy:dot", f"numpy {installed('numpy')}"),
])  # fmt: skip
def test_the_package_of_a_page_is_the_kernels(name, package):
    assert package_of(KernelRef.of(name, "A100")) == package
