"""FP16 on a CPU: products summed in FP32 and rounded once, as tensor cores do, and as fast as FP32.

Most CPUs have no FP16 arithmetic, and torch's own code for it takes ten times as long.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_PRODUCTS = {
    getattr(torch.ops.aten, name).default
    for name in ("mm", "bmm", "addmm", "baddbmm", "convolution", "convolution_backward")
}


class HalfProducts(TorchDispatchMode):
    """While it is entered, matrix products and convolutions of FP16 tensors, in forward and backward passes."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func not in _PRODUCTS or args[0].dtype != torch.float16:
            return func(*args, **kwargs)
        out = func(*(x.float() if isinstance(x, torch.Tensor) else x for x in args), **kwargs)
        return out.half() if isinstance(out, torch.Tensor) else tuple(x if x is None else x.half() for x in out)
