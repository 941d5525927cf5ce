"""A GPU that is not there, for functions that launch GPU kernels and ask on which GPU their tensors are.

Inside `fake_cuda`, CPU tensors report that they are on CUDA, new tensors for a CUDA device are made on the CPU, and
torch.cuda describes the GPU that is modelled. Memory of torch.empty is NaN until somebody writes it.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from time import perf_counter
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from ptx_machine.device import GPU
from ptx_machine.memory import NANS
from ptx_machine.occupancy import MOST

FAKED_GPU: ContextVar[GPU | None] = ContextVar("fake_cuda", default=None)  # the GPU inside `fake_cuda`
UNWRITTEN: ContextVar[int] = ContextVar("unwritten", default=NANS)  # of the bytes that nobody has written
UNWRITTEN_READS: ContextVar[dict[tuple, str] | None] = ContextVar("unwritten_reads", default=None)  # by kernel, line
WATCHED: ContextVar[list[bool] | None] = ContextVar("watched", default=None)  # of each launch, if races are looked for
DEVICE, CUDA = torch.device("cuda", 0), "13.0"  # torch.version.cuda: what the compiler's package is of
ANSWERS = {  # of tensors; their getters are no functions that torch lists
    Tensor.is_cuda.__get__: lambda x: True,  # pyright: ignore[reportAttributeAccessIssue]
    Tensor.device.__get__: lambda x: DEVICE,  # pyright: ignore[reportAttributeAccessIssue]
    Tensor.get_device: lambda x: 0,
    Tensor.cuda: lambda x, *more, **options: x,
    Tensor.pin_memory: lambda x, *more, **options: x,
}
EMPTY = {  # functions whose result is memory that nobody has written
    torch.empty, torch.empty_like, torch.empty_strided, torch.empty_permuted, Tensor.new_empty,
    Tensor.new_empty_strided,
}  # fmt: skip
EMPTY_OPERATORS = {getattr(torch.ops.aten, fn.__name__) for fn in EMPTY}  # the same, as C++ asks for them


class FakeCudaMode(TorchFunctionMode):
    """Answers torch's functions as if tensors were on a GPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in ANSWERS:
            return ANSWERS[func](*args, **kwargs or {})
        if func is Tensor.to and len(args) > 1 and type(args[1]) is int:  # the number of a device
            args = (args[0], DEVICE, *args[2:])
        kwargs = {name: DEVICE if name == "device" and type(x) is int else x for name, x in (kwargs or {}).items()}
        result = func(*map(_on_cpu, args), **{name: _on_cpu(value) for name, value in kwargs.items()})
        if func in EMPTY and result.device.type == "cpu":
            leave_unwritten(result, UNWRITTEN.get())
        return result


_FRESH: dict[int, StorageWeakRef] = {}  # address -> storage that was left unwritten


def leave_unwritten(x: Tensor, value: int) -> None:
    """Fill the bytes of a new tensor with the value that stands for unwritten memory."""
    if x.dtype != torch.bool:  # True has one pattern of bits
        storage = x.untyped_storage()
        torch.empty(0, dtype=torch.uint8).set_(storage).fill_(value)
        _FRESH[storage.data_ptr()] = StorageWeakRef(storage)


def is_fresh(base: int) -> bool:
    """Whether the storage at an address was left unwritten when it was made."""
    if base in _FRESH and _FRESH[base].expired():
        del _FRESH[base]
    return base in _FRESH


def _on_cpu(value: Any) -> Any:
    """Replace a CUDA device by the CPU."""
    cuda = isinstance(value, torch.device) and value.type == "cuda" or isinstance(value, str) and value[:4] == "cuda"
    return torch.device("cpu") if cuda else value


class _Stream:
    """The only stream, and events: what is launched has ended when the launch returns."""

    cuda_stream = _as_parameter_ = 0

    def __init__(self, *more, **options):
        self.at = perf_counter()

    def elapsed_time(self, end):
        """Return the milliseconds that the machine took."""
        return 1000 * (end.at - self.at)

    def record_event(self, event=None):
        return event or _Stream()

    def synchronize(self, *more):
        return True

    record, query = __init__, synchronize
    wait = wait_stream = wait_event = synchronize


class _Generator(torch.Generator):
    def __new__(cls, device="cpu"):
        return super().__new__(cls, "cpu")  # pyright: ignore[reportCallIssue]


def _no_graph(*more, **options):
    raise NotImplementedError("CUDA graphs are not modelled: launch the kernels without one")


@contextmanager
def fake_cuda(gpu: GPU, unwritten: int = NANS) -> Iterator[None]:
    """Make code inside the context take CPU tensors for tensors on this GPU.

    Args:
        gpu: the GPU, of `Kernel`s without one, too. unwritten: the value of the bytes of torch.empty.
    """
    capability = divmod(gpu.capability, 10)
    properties = SimpleNamespace(
        name=gpu.name, major=capability[0], minor=capability[1], multi_processor_count=gpu.processors,
        shared_memory_per_block_optin=gpu.shared_bytes, warp_size=32, shared_memory_per_block=48 << 10,
        shared_memory_per_multiprocessor=gpu.shared_bytes + 1024, regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=32 * MOST[gpu.capability][0], total_memory=gpu.memory_bytes,
        L2_cache_size=gpu.cache_bytes,
    )  # fmt: skip
    substitutes: dict[str, Any] = dict(
        is_available=lambda: True, device_count=lambda: 1, current_device=lambda: 0, set_device=lambda device: None,
        get_device_capability=lambda device=None: capability, get_device_name=lambda device=None: gpu.name,
        get_device_properties=lambda device=None: properties, synchronize=lambda device=None: None,
        device=lambda device: nullcontext(), device_of=lambda tensor: nullcontext(),
        current_stream=_Stream, default_stream=_Stream, Stream=_Stream, Event=_Stream, init=lambda: None,
        stream=lambda stream: nullcontext(), reset_peak_memory_stats=lambda device=None: None,
        mem_get_info=lambda device=None: (gpu.memory_bytes,) * 2,
        CUDAGraph=_no_graph, graph=_no_graph,
    )  # fmt: skip
    token, bytes_token = FAKED_GPU.set(gpu), UNWRITTEN.set(unwritten)
    try:
        with (
            mock.patch.multiple(torch.cuda, **substitutes), mock.patch.object(torch, "Generator", _Generator),
            mock.patch.object(torch.cuda.nvtx, "_nvtx", mock.MagicMock()),
            mock.patch.object(torch.version, "cuda", CUDA), FakeCudaMode(),
        ):  # fmt: skip
            yield
    finally:
        FAKED_GPU.reset(token)
        UNWRITTEN.reset(bytes_token)
