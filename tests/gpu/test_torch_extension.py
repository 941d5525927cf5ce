"""Torch's CUDA extensions on the machine: what an extension calls, and what a GPU would refuse."""

from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch.utils.cpp_extension import load, load_inline

from attention_check.gpu import on
from attention_check.gpu.blame import blame
from attention_check.isolation.worker import broken
from ptx_machine import GPU, Fault, Kernel, compile_cuda, torch_extensions
from ptx_machine.extension.runtime import Unlaunched
from ptx_machine.fake_cuda import fake_cuda
from ptx_machine.memory import Asserted, Unwritten

ROOT = Path(__file__).parents[2]
HERE = ROOT / "tests" / "gpu" / "extension"
X = torch.linspace(-3, 3, 100)


@pytest.fixture(scope="module")
def extension():
    with torch_extensions("A100"):
        return load(
            "of_tests", [str(HERE / "main.cpp"), str(HERE / "kernels.cu")], extra_cflags=["", "-O1 -g0"],
            extra_cuda_cflags=["-arch sm_70", "-Xptxas -O3 --keep", "-rdc=true"],
            extra_ldflags=["-ltorch_cuda -lc10_cuda", "-lcudart"])  # fmt: skip


@pytest.fixture(autouse=True)
def on_a_gpu():
    with fake_cuda(GPU.of("A100")):
        yield


def test_a_kernel_has_the_bits_that_it_has_as_a_kernel_of_ptx(extension):
    kernel = Kernel(compile_cuda((HERE / "kernels.cu").read_text()), "scaled")
    kernel.variables["factor"][:] = torch.tensor([1.5]).view(torch.uint8).numpy()
    same = torch.zeros(100)
    kernel((2,), (64,), 0, X, same, 100)
    assert torch.equal(extension.scaled(X, 1.5), same)
    torch.testing.assert_close(same, torch.exp2(1.5 * X))


def test_kernels_of_a_file_share_its_variables(extension):
    before = extension.calls()
    extension.scaled(X, 1.0)
    assert extension.calls() == before + 1


def test_the_extension_is_told_of_the_gpu(extension):
    assert extension.processors() == GPU.of("A100").processors
    assert extension.blocks_at_once(1024) == 2  # 2,048 threads of a multiprocessor
    memory, version, threads, registers, copied = extension.told()
    assert (memory, threads, copied) == (80 << 30, 1024, 1) and version >= 13000 and 0 < registers <= 255


def test_memory_of_cudaMalloc_can_be_written(extension):
    extension.scaled(X, 2.0)
    assert torch.equal(extension.through_malloc(X), extension.scaled(X, 2.0))


def test_a_read_out_of_bounds_names_the_line(extension, capfd):
    with pytest.raises(Fault, match=r"kernels\.cu, line 14"):
        extension.behind(X, 0)
    assert capfd.readouterr().err == ""
    assert extension.scaled(X, 1.0).isfinite().all()  # and the next call is well


@pytest.mark.parametrize(
    ("threads", "bytes_", "why"),
    [(100, 50_000, "in_shared asks for 50,000 bytes of shared memory; it may have 49,152 without cudaFuncSetAttribute"),
     (2000, 8000, r"in_shared: block: got \(2000, 1, 1\)")],
)  # fmt: skip
def test_a_launch_that_a_gpu_refuses_fails(extension, threads, bytes_, why):
    with pytest.raises(Unlaunched, match=f"did not look.*{why}"):
        extension.in_shared(X, threads, bytes_, False, False)
    with pytest.raises(RuntimeError, match="CUDA error: invalid"):
        extension.in_shared(X, threads, bytes_, False, True)


def test_more_shared_memory_is_had_by_asking(extension):
    assert torch.equal(extension.in_shared(X, 100, 100_000, True, True), X + 1)
    with pytest.raises(RuntimeError, match="CUDA error: invalid argument"):
        extension.in_shared(X, 100, 200_000, True, True)  # an A100 has 163 KB


COOPERATIVE, CLUSTER, SERIAL = 2, 4, 6  # cudaLaunchAttributeID


def test_kernels_are_launched_in_other_ways_too(extension):
    for attribute in (-1, COOPERATIVE, SERIAL):
        assert torch.equal(extension.launched_with(X, 2, attribute), extension.scaled(X, 1.0))
    most = 108 * 32  # blocks of 64 threads at once on an A100: 32 a multiprocessor
    assert torch.equal(extension.launched_with(X, most + 1, SERIAL), extension.scaled(X, 1.0))
    for attribute in (-1, COOPERATIVE):
        with pytest.raises(RuntimeError, match="too many blocks in cooperative launch"):
            extension.launched_with(X, most + 1, attribute)
    with pytest.raises(RuntimeError, match="operation not supported"):
        extension.launched_with(X, 2, CLUSTER)


def test_blocks_that_wait_for_each_other_are_refused():
    source = """#include <cooperative_groups.h>
    __global__ void k(float *x) { cooperative_groups::this_grid().sync(); x[threadIdx.x] = 1; }"""
    with pytest.raises(ValueError, match="envreg"):
        Kernel(compile_cuda(source))


def test_an_assertion_of_a_kernel_refuses():
    source = "#include <assert.h>\n__global__ void k(float *x, int n) { assert(n % 32 == 0); x[threadIdx.x] = n; }"
    kernel, x = Kernel(compile_cuda(source)), torch.zeros(32)
    kernel((1,), (32,), 0, x, 64)
    assert (x == 64).all()
    with pytest.raises(Asserted, match=r"kernel\.cu, line 2 .* an assertion fails") as raised:
        kernel((1,), (32,), 0, x, 65)
    assert not broken(raised.value)


@pytest.mark.parametrize("with_malloc", [False, True])
def test_a_read_of_memory_that_nobody_wrote_names_the_line(extension, with_malloc):
    def reads(least):
        return on.kernel(lambda q, k, v: extension.half_written(q, least, with_malloc), "A100")(X, X, X)

    memory = r"cudaMalloc\(400\)" if with_malloc else "a tensor of 400 bytes"
    with pytest.raises(Unwritten, match=rf"50 of 100 elements; .*kernels\.cu, line 25.*200 bytes into {memory}"):
        reads(-1.0)
    assert (reads(0.0)[50:] == 0).all()  # it reads that memory, and nothing depends on it


def test_an_inline_text_may_include_torchs_header_again():
    cpp = "#include <torch/extension.h>\ntorch::Tensor twice(torch::Tensor x) { return x + x; }"
    with torch_extensions("A100"):
        extension = load_inline("of_twice", [cpp], functions=["twice"])
    assert torch.equal(extension.twice(X), 2 * X)


def test_what_is_not_modelled_is_named_when_it_is_loaded():
    cpp = "#include <cublas_v2.h>\nint f() { cublasHandle_t handle; return cublasCreate(&handle); }"
    with torch_extensions("A100"), pytest.raises(RuntimeError, match="calls cublasCreate_v2, which are not modelled"):
        load_inline("of_cublas", [cpp], functions=["f"])


def test_what_does_not_compile_says_where():
    with torch_extensions("A100"), pytest.raises(RuntimeError, match=r"(?s)'broken'.*main\.cpp.*error"):
        load_inline("broken", ["int f() { return x; }"], functions=["f"])
    with torch_extensions("A100"), pytest.raises(RuntimeError, match="cannot find -lnowhere"):
        load_inline("unlinked", ["int f() { return 1; }"], functions=["f"], extra_ldflags=["-lnowhere"])


EXACT = {"hexp": torch.exp, "hsqrt": torch.sqrt, "hlog": torch.log, "hrcp": torch.reciprocal}


@pytest.mark.parametrize("name", EXACT)
def test_functions_of_half_are_rounded_correctly(name):
    source = f"#include <cuda_fp16.h>\n__global__ void k(half *x) {{ x[threadIdx.x] = {name}(x[threadIdx.x]); }}"
    x = torch.linspace(0.1, 4, 64).half()
    due = EXACT[name](x.double()).half()
    Kernel(compile_cuda(source))((1,), (64,), 0, x)
    assert torch.equal(x, due)


def test_what_the_example_has_no_kernel_for_is_refused():
    attention = on.kernel("examples.torch_extension.attention:attention", "A100")
    with pytest.raises(NotImplementedError, match="head_dim must be 32, 64 or 128"):
        attention(*torch.zeros(3, 1, 1, 8, 48, dtype=torch.float16))


FP16_SUM = [  # what is replaced in the example, so that it keeps its sum of P V in FP16
    ("flash_example", "flash_fp16"),
    ("sum[D] = {}, m = -INFINITY, l = 0;", "m = -INFINITY, l = 0;\n  __half sum[D] = {};"),
    ("sum[d] * old", "float(sum[d]) * old"),
    ("sum[d] / l", "float(sum[d]) / l"),
]


def test_blame_names_the_line_of_a_sum_in_fp16(tmp_path):
    for name in ("main.cpp", "flash.cu", "attention.py"):
        text = (ROOT / "examples" / "torch_extension" / name).read_text()
        for old, new in FP16_SUM:
            text = text.replace(old, new)
        (tmp_path / name).write_text(text)
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, n, 32, generator=draw).to(torch.float16) for n in (32, 200, 200))
    first = blame(f"{tmp_path}/attention.py:attention", q, k, v, gpu="A100").table.iloc[0]
    assert "sum[d] = float(sum[d]) * old" in first.text and first.share > 0.5


@pytest.fixture(scope="module")
def minimal():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(HERE / "minimal")
        yield lambda name, **options: partial(on.kernel(f"minimal_attention:{name}", "A100"), **options)


def drawn(*size, dtype=torch.float32):
    return torch.randn(3, *size, generator=torch.Generator().manual_seed(0)).to(dtype)


def test_a_module_of_a_setup_py_has_operators_and_gradients(minimal):
    q, k, v = (x.requires_grad_() for x in drawn(1, 2, 50, 32).double())
    gradient = torch.linspace(-1, 1, 32)
    o = (q @ k.mT * 32**-0.5).softmax(-1) @ v
    (o * gradient).sum().backward()
    own = [x.detach().float().requires_grad_() for x in (q, k, v)]
    got = minimal("attention")(*own)
    (got * gradient).sum().backward()
    torch.testing.assert_close(got.double(), o, rtol=1e-5, atol=1e-6)
    for x, exact in zip(own, (q, k, v)):
        torch.testing.assert_close(x.grad.double(), exact.grad, rtol=1e-5, atol=2e-6)


def test_a_setup_py_that_fails_says_why(tmp_path, monkeypatch):
    (tmp_path / "setup.py").write_text(
        "from torch.utils.cpp_extension import CUDAExtension\nraise SystemExit('no GPU')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with torch_extensions("A100"):
        for _ in range(2):
            with pytest.raises(ModuleNotFoundError, match="No module named 'nowhere'; .*setup.py.*SystemExit"):
                import_module("nowhere")
    with pytest.raises(ModuleNotFoundError, match="^No module named 'nowhere'$"):
        import_module("nowhere")


def test_an_operator_whose_sums_begin_with_unwritten_memory_names_the_line(minimal):
    with pytest.raises(Unwritten, match=r"attention\.cu, line 18 "):
        minimal("attention", initial=False)(*drawn(1, 1, 40, 32))


def test_attention_by_wmma(minimal):
    q, k, v = drawn(1, 2, 48, 64, dtype=torch.float16)
    exact = (q.double() @ k.double().mT / 8).softmax(-1) @ v.double()
    torch.testing.assert_close(minimal("half_attention")(q, k, v).double(), exact, rtol=2**-10, atol=2**-11)
    with pytest.raises(Fault, match=r"half_forward.*attention\.cu, line \d+ .*behind its end"):
        minimal("half_attention")(*drawn(1, 1, 48, 32, dtype=torch.float16))  # its head_dim is 64
