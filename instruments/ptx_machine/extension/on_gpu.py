"""Tensors that C++ takes for tensors on a GPU: a CPU tensor's storage behind a device that says CUDA.

What C++ does with such a tensor, and each tensor that it makes on CUDA, comes to `_dispatch`, which does it on the CPU.
"""

import ctypes
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from ptx_machine.fake_cuda import DEVICE, EMPTY_OPERATORS, UNWRITTEN, is_fresh, leave_unwritten
from ptx_machine.memory import Span

CPU = torch.device("cpu")
_STORAGES: dict[int, tuple[StorageWeakRef, int]] = {}  # address -> storage, bytes: of all tensors that C++ was given


class OnGPU(torch.Tensor):
    """A tensor that says that it is on the GPU."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _dispatch(func, args, kwargs or {})


class _Factories(TorchDispatchMode):
    """Makes new tensors for CUDA on the CPU."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _dispatch(func, args, kwargs or {})


def put(x: torch.Tensor, requires_grad: bool = False) -> OnGPU:
    """Return a tensor of any shape that has x's memory and is on the GPU. requires_grad: what it says of itself."""
    storage = x.untyped_storage()
    _STORAGES[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()
    return torch.Tensor._make_subclass(OnGPU, x, requires_grad, dispatch_device=True, device_for_backend_keys=DEVICE)


def take(x: torch.Tensor) -> torch.Tensor:
    """Return the CPU tensor that has x's memory."""
    return torch.empty(0, dtype=x.dtype).set_(x.untyped_storage(), x.storage_offset(), x.shape, x.stride())


def spans() -> Iterator[Span]:
    """Yield the memory of all tensors on the GPU that are still alive."""
    for base, (storage, size) in [*_STORAGES.items()]:
        if storage.expired():
            del _STORAGES[base]
        elif size:
            data = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(base))
            yield Span(base, data, f"a tensor of {size:,} bytes", is_fresh(base))


def given_tensors(fn: Callable) -> Callable:
    """Return a function of C++ as one of CPU tensors: they are on the GPU while it runs."""

    @wraps(fn)
    def call(*args, **kwargs):
        with torch._C.DisableTorchFunction(), torch.no_grad(), _Factories():
            args, kwargs = tree_map(_given, (args, kwargs))
            result = fn(*args, **kwargs)
            return tree_map(lambda x: take(x) if isinstance(x, OnGPU) else x, result)

    return call


def _given(x: Any) -> Any:
    return put(x.detach(), x.requires_grad) if isinstance(x, torch.Tensor) else x


def _dispatch(func: Any, args: tuple, kwargs: dict) -> Any:
    """Do an operation of C++ on the CPU. Its result is on the GPU if an operand is, or the device asked for."""
    if func is torch.ops.prim.device.default:
        return DEVICE
    on_gpu = False

    def plain(value):
        nonlocal on_gpu
        if isinstance(value, OnGPU):
            on_gpu = True
            return take(value)
        if isinstance(value, torch.device):
            on_gpu = value.type == "cuda"
            return CPU
        return value

    args, kwargs = tree_map(plain, args), tree_map(plain, kwargs)
    kwargs.pop("pin_memory", None)
    result = func(*args, **kwargs)
    if on_gpu and func.overloadpacket in EMPTY_OPERATORS:
        leave_unwritten(result, UNWRITTEN.get())
    return tree_map(lambda x: put(x) if on_gpu and isinstance(x, torch.Tensor) else x, result)
