"""Kernels of nvcuda::wmma on the machine: the sums of its tensor cores, bit for bit."""

from pathlib import Path

import pytest
import torch

from ptx_machine import GPU, Fault, Kernel, compile_cuda

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}


@pytest.fixture(scope="module")
def ptx():
    return compile_cuda(Path(__file__).with_name("wmma.cu").read_text())


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("m, n", [(16, 16), (32, 8), (8, 32)])
@pytest.mark.parametrize("factor, result", [("f16", "f32"), ("f16", "f16"), ("bf16", "f32")])
def test_a_product_has_the_bits_of_the_tensor_core(ptx, factor, result, m, n, layout, compiled):
    draw = torch.Generator().manual_seed(0)
    A, B = (torch.randn(*size, generator=draw).to(DTYPES[factor]) for size in ((m, 16), (16, n)))
    C = torch.randn(m, n, generator=draw).to(DTYPES[result])
    core = GPU.of("A100").core(factor, result)
    expected = core.matmul(A.double(), B.double(), (3 * C.float()).to(C.dtype).double()).to(C.dtype)
    a, b, c = (A, B.mT, C) if layout == "rows" else (A.mT, B, C.mT)
    kernel = Kernel(ptx, f"{factor}_{result}_{m}_{n}_{layout}", compiled=compiled)
    d = torch.zeros_like(c.contiguous())
    kernel((1,), (32,), 0, *(x.contiguous() for x in (a, b, c)), d, 3.0)
    assert torch.equal(d if layout == "rows" else d.mT, expected)
    assert not compiled or not kernel.native.left


@pytest.mark.parametrize("short, line", [(1, 15), (2, 16), (3, 19)])
def test_a_matrix_out_of_bounds_names_the_line(ptx, short, line):
    a, b, c, d = (torch.zeros(255 if i == short else 256, dtype=torch.float16 if i < 2 else torch.float32)
                  for i in range(4))  # fmt: skip
    with pytest.raises(Fault, match=rf"kernel\.cu, line {line} "):
        Kernel(ptx, "f16_f32_16_16_rows")((1,), (32,), 0, a, b, c, d, 1.0)
