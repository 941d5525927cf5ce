"""torch.compile(flex_attention) on a GPU that is not there: Inductor itself writes the Triton kernels and the code
around them, as for that GPU, and they run on CPU tensors.

Dynamo and AOTAutograd trace CPU tensors. Before Inductor lowers the graph, its fake tensors are moved to CUDA, and
torch.cuda describes the GPU. Line numbers are of torch 2.13, torch/_inductor.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.nn.attention.flex_attention import flex_attention

from attention_gallery.adapters import HALF, accepts
from attention_gallery.torch_kernels import flex
from ptx_machine.device import GPU
from ptx_machine.triton_driver import triton

CUDA = torch.device("cuda", 0)
DECODED = 64  # queries of a call; flex_decoding is taken below 128: kernel/flex/flex_decoding.py, line 50
MOST_SHAPES = 10_000  # that a process compiles for: Dynamo gives up after 8
ON_CPU = {  # what the code that Inductor wrote asks of torch's CUDA build
    "from torch._C import _cuda_getCurrentRawStream as get_raw_stream": "get_raw_stream = lambda device: 0",
    "torch._C._dynamo.guards._empty_strided_cuda": "torch._C._dynamo.guards._empty_strided_cpu",
    "torch._C._distributed_c10d._SymmetricMemory.empty_strided_p2p": "None",
    "async_compile = AsyncCompile()": "",
}
accepted = partial(accepts, "flex_attention's forward kernel", (*HALF, torch.float32), gradients=False, tall=False)


@accepted()
def flex_prefill(q, k, v, causal=False, scale=None, gpu="A100"):
    """Call torch.compile(flex_attention) with kernel_options BACKEND="TRITON": the kernel of flex_attention.py.jinja,
    which BACKEND="AUTO" takes from 128 queries on.

    A causal mask is a BlockMask of blocks of 128 queries and 128 keys, the default, aligned bottom-right.
    """
    return _flex(q, k, v, causal, scale, GPU.of(gpu), "TRITON")


@accepted(queries=DECODED)
def flex_decode(q, k, v, causal=False, scale=None, gpu="A100"):
    """Call torch.compile(flex_attention) with kernel_options BACKEND="TRITON_DECODE": the kernel of
    flex_decode.py.jinja, which BACKEND="AUTO" takes below 128 queries, and the kernels that combine its parts. More
    than 64 queries are several calls.

    The kernels that combine take the first of the configurations that Inductor would time.
    """
    return _flex(q, k, v, causal, scale, GPU.of(gpu), "TRITON_DECODE")


def _flex(q, k, v, causal, scale, gpu, backend):
    limits = dict(recompile_limit=MOST_SHAPES, accumulated_recompile_limit=MOST_SHAPES)
    with (
        torch.no_grad(),
        triton(gpu),
        torch._dynamo.config.patch(**limits),  # pyright: ignore
        torch._inductor.config.patch(fx_graph_cache=False),  # pyright: ignore  # else one compiled for this CPU
        torch._functorch.config.patch(enable_autograd_cache=False),  # pyright: ignore
    ):
        return flex(_compiled(gpu), q, k, v, causal, scale, kernel_options={"BACKEND": backend})


@cache
def _compiled(gpu: GPU) -> Callable:
    """Compile flex_attention for a GPU, anew for each shape, as the first call of a process with that shape is."""
    return torch.compile(flex_attention, backend=partial(_backend, gpu=gpu), fullgraph=True, dynamic=False)


def _backend(graph: torch.fx.GraphModule, inputs: list, gpu: GPU) -> Callable:
    """Compile a graph of Dynamo's with Inductor."""
    from torch._inductor import compile_fx
    from torch._inductor.graph import GraphLowering

    def inner(graph, inputs, **options):
        lower = GraphLowering.run

        def run(self, *inputs):
            _to_cuda(self.module, inputs)
            return lower(self, *inputs)

        with (
            _described(gpu),
            mock.patch.multiple(GraphLowering, run=run, compile_to_module=_module),
            mock.patch("torch._inductor.scheduler.has_triton", lambda: True),
        ):
            return compile_fx.compile_fx_inner(graph, inputs, **options)  # pyright: ignore

    return compile_fx.compile_fx(graph, inputs, inner_compile=inner)  # pyright: ignore


def _to_cuda(graph: torch.fx.GraphModule, inputs: tuple) -> None:
    """Say of all fake tensors of a graph that they are on CUDA."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils import _pytree as pytree

    modules = [module for module in graph.modules() if isinstance(module, torch.fx.GraphModule)]
    nodes = [node for module in modules for node in module.graph.nodes]
    for x in pytree.tree_leaves([*inputs, *(node.meta.get("val") for node in nodes)]):
        if isinstance(x, FakeTensor):
            x.fake_device = CUDA
    for node in nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": CUDA}


@contextmanager
def _described(gpu: GPU) -> Iterator[None]:
    """Make torch.cuda, and what Inductor keeps of it, describe a GPU."""
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor.runtime.hints import DeviceProperties

    major, minor = divmod(gpu.capability, 10)
    properties = SimpleNamespace(
        name=gpu.name, major=major, minor=minor, multi_processor_count=gpu.processors, warp_size=32,
        shared_memory_per_block_optin=gpu.shared_bytes, max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536, max_threads_per_block=1024, gcnArchName="",
    )  # fmt: skip
    answers: dict[str, Any] = dict(
        get_device_properties=lambda device=None: properties, device_count=lambda: 1, current_device=lambda: 0,
        synchronize=lambda device=None: None,
    )  # fmt: skip
    static: dict[str, Any] = {name: staticmethod(answer) for name, answer in answers.items()}
    answers |= dict(
        is_available=lambda: True, is_initialized=lambda: True, _lazy_init=lambda: None,
        get_device_capability=lambda device=None: (major, minor), get_device_name=lambda device=None: gpu.name,
        get_rng_state=lambda device=None: torch.zeros(16, dtype=torch.uint8), set_rng_state=lambda *state: None,
        _exchange_device=lambda device: 0, _maybe_exchange_device=lambda device: 0,
    )  # fmt: skip
    DeviceProperties.create.cache_clear()
    with mock.patch.multiple(torch.cuda, **answers), mock.patch.multiple(CudaInterface, **static):
        yield


def _module(lowering: Any) -> ModuleType:
    """Make a module of the code that Inductor writes for a lowered graph; its function `call` takes CPU tensors."""
    code = lowering.codegen()[0].value
    for there, here in ON_CPU.items():
        code = code.replace(there, here)
    module = ModuleType("written_by_inductor")
    module.__file__ = "written_by_inductor"
    module.__dict__["async_compile"] = SimpleNamespace(triton=_Launched, wait=lambda names: None)
    exec(compile(code, module.__file__, "exec"), module.__dict__)
    cuda: dict[str, Any] = dict(_DeviceGuard=lambda device: nullcontext(), set_device=lambda device: None)
    module.__dict__["call"] = mock.patch.multiple(torch.cuda, **cuda)(module.call)
    return module


class _Launched:
    """A Triton kernel that Inductor wrote, as the code around it calls it."""

    def __init__(self, name: str, text: str, device_str: str):
        from torch._inductor.codecache import PyCodeCache
        from torch._inductor.runtime import triton_helpers

        with mock.patch.object(triton_helpers, "set_driver_to_gpu", lambda: None):
            self.tuner = getattr(PyCodeCache.load(text), name)

    def run(self, *arguments: Any, stream: int) -> None:
        """Launch the kernel with its first configuration."""
        from torch._inductor.runtime.triton_heuristics import GridExpr

        tuner, config = self.tuner, self.tuner.configs[0]
        names = [name for name in tuner.fn.arg_names if name not in config.kwargs]
        values = dict(zip([*names, "_grid_0", "_grid_1", "_grid_2"], arguments))
        grid = GridExpr.from_meta(tuner.inductor_meta, config).eval_slow(values)
        options = dict(num_warps=config.num_warps, num_stages=config.num_stages, sanitize_overflow=False)
        tuner.fn[grid](*arguments[: len(names)], **config.kwargs, **options)
