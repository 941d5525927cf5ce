"""FP16 and BF16 on a CPU without instructions for them: products summed in FP32 and rounded once, as tensor cores do,
and as fast as FP32.

Torch's own code takes ten times as long for FP16 there, and three times for BF16.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch

_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "convolution", "convolution_backward")


def slow(dtype: torch.dtype) -> bool:
    """Return whether this CPU has no instructions for products of a dtype, FP16 or BF16."""
    if dtype == torch.bfloat16:
        return not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return dtype == torch.float16


@contextmanager
def half_products(dtype: torch.dtype, device: str) -> Iterator[None]:
    """A context inside which this process sums matrix products and convolutions of a dtype's tensors in FP32 and rounds
    them once, in forward and backward passes; it changes nothing on a GPU, or where torch's own code is fast."""
    if device != "cpu" or not slow(dtype):
        yield
        return
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that torch's own code is replaced
            for name in _PRODUCTS:
                own = torch.library.get_kernel(f"aten::{name}", "CPU")
                library.impl(name, partial(_rounded_once, own, dtype), "CPU", with_keyset=True, allow_override=True)
        yield
    finally:
        library._destroy()


def _rounded_once(own, dtype, keys, *args, **numbers):
    if args[0].dtype != dtype:
        return own.call_boxed(keys, *args, **numbers)
    out = own.call_boxed(keys, *(x.float() if isinstance(x, torch.Tensor) else x for x in args), **numbers)
    if isinstance(out, torch.Tensor):
        return out.to(dtype)
    return tuple(x if x is None else x.to(dtype) for x in out)
