"""Kernels in a GPU's arithmetic, by name: `kernels.get("package.module:function", gpu="H100")` is a function that
launches Triton kernels, `kernels.get("fa2", gpu="A100")` FlashAttention-2's own CUDA kernel.

As one text, for workers and the command line: "fa_lib.gpu.on:H100:package.module:function", "fa_lib.gpu.on:A100:fa2".
"""

import inspect
from collections.abc import Callable
from functools import partial, wraps
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor

from fa_lib import kernels
from fa_lib.gpu.device import GPU
from fa_lib.gpu.flash_attn import Options, backward, forward
from fa_lib.gpu.pretended import pretended
from fa_lib.gpu.triton_driver import triton

FA2 = "fa2"
LAUNCHES_ITSELF = "gpu"  # the parameter of a function that does not need Triton's driver


def kernel(name: str | Callable, gpu: str | GPU) -> Callable:
    """Return a kernel that runs on CPU tensors in a GPU's arithmetic.

    Args:
        name: "fa2", for FlashAttention-2's; or a function that launches Triton kernels, or its name for `kernels.get`;
            or one with a parameter `gpu`, which launches CUDA kernels in that GPU's arithmetic.
        gpu: a GPU, or its name.

    Returns:
        A function f(q, k, v, ...) of tensors (batch, heads, n, head_dim).

    Raises:
        ValueError: there is no such kernel, or no such GPU.
        ImportError: Triton is not installed.
    """
    gpu = GPU.of(gpu)
    if name == FA2:
        return flash_attention_2(gpu)
    absent = ImportError("Triton is not installed: pip install 'fa_lib[gpu]', on Linux")
    try:
        fn = kernels.get(name)
    except ValueError as error:
        if find_spec("triton") is None:  # a module of Triton kernels imports it
            raise absent from error
        raise
    if LAUNCHES_ITSELF in inspect.signature(fn).parameters:
        return wraps(fn)(partial(fn, gpu=gpu))
    if find_spec("triton") is None:
        raise absent

    @wraps(fn)
    def in_its_arithmetic(q, k, v, **options):
        if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
            return _InItsArithmetic.apply(fn, gpu, options, q, k, v)
        with pretended(gpu), triton(gpu):
            return fn(q, k, v, **options)

    return in_its_arithmetic


def __getattr__(name):
    """Return the kernel of a name GPU:KERNEL.

    Raises:
        AttributeError: the name has no colon.
        ImportError, ValueError: as `kernel`.
    """
    gpu, colon, of = name.partition(":")
    if not colon:
        raise AttributeError(f"fa_lib.gpu.on has no {name!r}")
    return kernel(of, gpu)


class _InItsArithmetic(torch.autograd.Function):
    """A function of Triton kernels whose backward pass, which comes later, launches kernels on the same GPU."""

    @staticmethod
    def forward(ctx, fn, gpu, options, *inputs):
        ctx.gpu = gpu
        ctx.inputs = [x.detach().requires_grad_(needed) for x, needed in zip(inputs, ctx.needs_input_grad[3:])]
        with torch.enable_grad(), pretended(gpu), triton(gpu):
            o = fn(*ctx.inputs, **options)
        ctx.o = o if isinstance(o, Tensor) else o[0]
        result = ctx.o.detach()
        if not ctx.o.requires_grad:
            ctx.mark_non_differentiable(result)
        return result

    @staticmethod
    def backward(ctx, *gradients):
        inputs = [x for x in ctx.inputs if x.requires_grad]
        with pretended(ctx.gpu), triton(ctx.gpu):
            results = iter(torch.autograd.grad(ctx.o, inputs, gradients, allow_unused=True))
        return None, None, None, *(next(results) if x.requires_grad else None for x in ctx.inputs)


def flash_attention_2(gpu: GPU) -> Callable:
    """Return FlashAttention-2's kernels as flash_attn_func calls them, with gradients. A head_dim that is no multiple
    of 8 is padded with zeros, as there.

    Returns:
        A function of q (batch, heads, n_q, head_dim), k and v (batch, heads_kv, n_kv, head_dim), and options.
    """

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
