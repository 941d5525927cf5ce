"""FP16 and BF16 on a CPU without instructions for them: products summed in FP32 and rounded once, as tensor cores do,
and as fast as FP32.

Torch's own code takes ten times as long for FP16 there, and three times for BF16.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_PRODUCTS = {
    getattr(torch.ops.aten, name).default
    for name in ("mm", "bmm", "addmm", "baddbmm", "convolution", "convolution_backward")
}


def slow(dtype: torch.dtype) -> bool:
    """Return whether this CPU has no instructions for products of a dtype, FP16 or BF16."""
    if dtype == torch.bfloat16:
        return not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return dtype == torch.float16


def half_products(dtype: torch.dtype, device: str) -> AbstractContextManager:
    """Return HalfProducts of a dtype where it is faster than torch's own code on a device, else a context that changes
    nothing."""
    return HalfProducts(dtype) if device == "cpu" and slow(dtype) else nullcontext()


class HalfProducts(TorchDispatchMode):
    """A context manager: inside it, matrix products and convolutions of tensors of one dtype are summed in FP32 and
    rounded once, in forward and backward passes."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.dtype = dtype

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func not in _PRODUCTS or args[0].dtype != self.dtype:
            return func(*args, **kwargs)
        out = func(*(x.float() if isinstance(x, torch.Tensor) else x for x in args), **kwargs)
        if isinstance(out, torch.Tensor):
            return out.to(self.dtype)
        return tuple(x if x is None else x.to(self.dtype) for x in out)
