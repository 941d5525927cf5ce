"""Kernels in a GPU's arithmetic, by name: `kernels.get("package.module:function", gpu="H100")` is a function that
launches Triton or CUDA kernels, `kernels.get("fa2", gpu="A100")` FlashAttention-2's own CUDA kernel.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial, wraps
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import _engine_run_backward

from attention_check.gpu.flash_attn import Options, backward, forward
from attention_check.measure.capability import RACES
from fa_lib import kernels
from fa_lib.kernels.kernel_ref import KernelRef
from ptx_machine.device import GPU
from ptx_machine.extension import torch_extensions
from ptx_machine.fake_cuda import UNWRITTEN_READS, WATCHED, fake_cuda
from ptx_machine.memory import NANS, Unwritten
from ptx_machine.sources import FLASH_ATTN
from ptx_machine.triton_driver import triton

MOST_READS = 2  # lines that read unwritten memory, in a message
FA2 = KernelRef("", "fa2")
LAUNCHES_ITSELF = "gpu"  # the parameter of a function that does not need Triton's driver


def project_of(kernel: KernelRef) -> str:
    """Return the name and version of the project that wrote FA2; "" for another kernel."""
    return f"{FLASH_ATTN.name} {FLASH_ATTN.version}" if kernel == replace(FA2, gpu=kernel.gpu) else ""


def kernel(kernel: KernelRef | str | Callable, gpu: str | GPU) -> Callable:
    """Return a kernel that runs on CPU tensors in a GPU's arithmetic.

    Args:
        kernel: FA2, for FlashAttention-2's; or a function that launches Triton kernels, or CUDA kernels of
            `ptx_machine.Kernel` or of torch's extensions, or its KernelRef or the text of that; or one with a parameter
            `gpu`, which gives it to its `Kernel`s.
        gpu: a GPU, or its name.

    Returns:
        A function f(q, k, v, ...) of tensors (batch, heads, n, head_dim). It raises Unwritten, a Fault, where its
        output, or a gradient, depends on memory of torch.empty that nobody wrote. With the option RACES, a
        race in shared memory is a Fault, too.

    Raises:
        ValueError: there is no such kernel, or no such GPU.
        ImportError: the kernel cannot be imported, and Triton is not installed.
    """
    gpu = GPU.of(gpu)
    kernel = KernelRef.of(kernel) if isinstance(kernel, str) else kernel
    if kernel == FA2:
        return flash_attention_2(gpu)
    try:
        with torch_extensions(gpu):
            fn = kernels.get(kernel)
    except ValueError as error:
        if find_spec("triton") is None:  # a module of Triton kernels imports it
            raise ImportError("Triton is not installed: pip install 'fa_lib[gpu]', on Linux") from error
        raise
    if LAUNCHES_ITSELF in inspect.signature(fn).parameters:
        return _watchable(wraps(fn)(partial(fn, gpu=gpu)))

    @wraps(fn)
    def in_its_arithmetic(q, k, v, **options):
        if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
            return _InItsArithmetic.apply(fn, gpu, options, q, k, v)

        def run(unwritten):
            with _believing(gpu, unwritten):
                return fn(q, k, v, **options)

        return _of_written_memory(run, lambda o: o if isinstance(o, (tuple, list)) else [o])

    return _watchable(in_its_arithmetic)


def _watchable(fn: Callable) -> Callable:
    """Give a kernel the option RACES: it then refuses a call without launches, or with one that cannot be watched."""

    @wraps(fn)
    def kernel(q, k, v, **options):
        if not options.pop(RACES, False):
            return fn(q, k, v, **options)
        token = WATCHED.set(watched := [])
        try:
            o = fn(q, k, v, **options)
        finally:
            WATCHED.reset(token)
        if not watched or not all(watched):
            raise NotImplementedError("what it launches cannot be watched for races")
        return o

    return kernel


@contextmanager
def _believing(gpu: GPU, unwritten: int) -> Iterator[None]:
    """Run what is inside as on a GPU. unwritten: the value of the bytes of torch.empty."""
    launches = triton(gpu) if find_spec("triton") is not None else nullcontext()
    with fake_cuda(gpu, unwritten), torch_extensions(gpu), launches:
        yield


def _of_written_memory(run: Callable, tensors: Callable[[Any], Sequence]) -> Any:
    """Return run(NANS): what a kernel computes where memory that nobody has written is NaN.

    Args:
        run: of the value of its bytes. tensors: of a result, those that it has.

    Raises:
        Unwritten: it has other values with zeros in that memory. Reading it is no fault where nothing depends on it.
    """
    random, reads = torch.get_rng_state(), {}
    token = UNWRITTEN_READS.set(reads)
    try:
        result = run(NANS)
    finally:
        UNWRITTEN_READS.reset(token)
    results = [x for x in tensors(result) if isinstance(x, Tensor)]
    if not reads and not any(x.isnan().any() for x in results):
        return result
    with torch.random.fork_rng([]):
        torch.set_rng_state(random)
        others = [x for x in tensors(run(0)) if isinstance(x, Tensor)]
    for x, other in zip(results, others):
        changed = (x != other) & ~(x.isnan() & other.isnan())
        if changed.any():
            count, first = int(changed.sum()), (*changed.nonzero()[0].tolist(),)
            where = "".join(f"; {read}" for read in [*reads.values()][:MOST_READS])
            where = where or f", {first} is the first, depend on whether torch.empty or shared memory has NaN"
            wrong = f"{count:,} of {x.numel():,} elements{where}"
            raise Unwritten(f"its output is what memory holds that nobody wrote: {wrong}")
    return result


class _InItsArithmetic(torch.autograd.Function):
    """A function of GPU kernels whose backward pass, which comes later, launches kernels on the same GPU."""

    @staticmethod
    def forward(ctx, fn, gpu, options, *inputs):
        ctx.gpu = gpu
        ctx.inputs = [x.detach().requires_grad_(needed) for x, needed in zip(inputs, ctx.needs_input_grad[3:])]

        def run(unwritten):
            with torch.enable_grad(), _believing(gpu, unwritten):
                o = fn(*ctx.inputs, **options)
            return o if isinstance(o, Tensor) else o[0]

        ctx.run, ctx.o = run, _of_written_memory(run, lambda o: [o])
        result = ctx.o.detach()
        if not ctx.o.requires_grad:
            ctx.mark_non_differentiable(result)
        return result

    @staticmethod
    def backward(ctx, *gradients):
        inputs = tuple(x for x in ctx.inputs if x.requires_grad)

        def run(unwritten):
            o = ctx.o if unwritten == NANS else ctx.run(unwritten)
            with _believing(ctx.gpu, unwritten):  # torch.autograd.grad would end the pretence for what it calls
                return _engine_run_backward((o,), gradients, False, False, inputs, True, accumulate_grad=False)

        results = iter(_of_written_memory(run, lambda results: results))
        return None, None, None, *(next(results) if x.requires_grad else None for x in ctx.inputs)


def flash_attention_2(gpu: GPU) -> Callable:
    """Return FlashAttention-2's kernels as flash_attn_func calls them, with gradients: a function of q (batch, heads,
    n_q, head_dim), k and v (batch, heads_kv, n_kv, head_dim), and options. A head_dim that is no multiple of 8 is
    padded with zeros, as there."""

    def fa2(
        q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None,
        window: tuple[int | None, int | None] | None = None, softcap: float | None = None,
    ) -> Tensor:  # fmt: skip
        """FlashAttention-2, from flash-attn's source."""
        left, right = (-1 if side is None else side for side in window or (None, None))
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        options = Options(causal, (left, right), softcap or 0.0, scale)
        more = -q.shape[-1] % 8
        q, k, v = (F.pad(x, (0, more)) if more else x for x in (q, k, v))
        o = _FlashAttention2.apply(q, k, v, options, gpu)
        return o[..., : o.shape[-1] - more] if more else o

    return fa2


class _FlashAttention2(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, options, gpu):
        o, lse = forward(q, k, v, options, gpu=gpu)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.options, ctx.gpu = options, gpu
        return o

    @staticmethod
    def backward(ctx, *gradients):
        q, k, v, o, lse = ctx.saved_tensors
        return *backward(gradients[0], (q, k, v), (o, lse), ctx.options, gpu=ctx.gpu), None, None
