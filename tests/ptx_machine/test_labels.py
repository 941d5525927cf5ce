"""A kernel's name, its key for workers and files, and the label that readers see: "mine:attention on A100"."""

import pytest

from attention_check.report.about import package_of
from fa_lib.execution.machine import installed
from fa_lib.kernels.kernel_ref import KernelRef


@pytest.mark.parametrize("name, words", [
    ("flash", "flash"), ("attention_gallery:mlx_sdpa", "gallery:mlx_sdpa"), ("mine:f@bshd", "mine:f@bshd"),
    ("gpu:A100:attention_gallery.flash_attn_kernels:fa2_cuda", "gallery:fa2_cuda on A100"),
    ("gpu:H100~1:mine:attention@bshd", "mine:attention@bshd on H100~1"), ("gpu:A100:fa2", "fa2 on A100"),
    ("mine:f@bshd@scale_one", "mine:f@bshd@scale_one"), ("mine:f@one_query", "mine:f@one_query"),
])  # fmt: skip
def test_a_text_is_read_once_and_the_kernel_says_its_key_and_its_label(name, words):
    kernel = KernelRef.of(name)
    assert (kernel.label, kernel.key, f"{kernel}") == (words, name, name)
    assert KernelRef.of(kernel) is kernel and KernelRef.of(kernel.key) == kernel
    assert KernelRef.of("mine:f", "H100", "bshd").key == "gpu:H100:mine:f@bshd"
    assert KernelRef.of("gallery:mlx_sdpa") == KernelRef.of("attention_gallery:mlx_sdpa")
    with pytest.raises(ValueError, match="layout: got 'sbhd'; accepted are bhsd, bshd"):
        KernelRef.of("mine:f@sbhd")


@pytest.mark.parametrize("name, package", [
    ("fa2", "flash-attn 2.8.3"), ("attention_gallery.flash_attn_kernels:fa2_cuda", "flash-attn 2.8.3"),
    ("numpy:dot", f"numpy {installed('numpy')}"),
])  # fmt: skip
def test_the_package_of_a_page_is_the_kernels(name, package):
    assert package_of(KernelRef.of(name, "A100")) == package
