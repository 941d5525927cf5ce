"""CUDA's runtime as one extension sees it: runtime.c, which is linked into it, asks here for launches and memory."""

import ctypes
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from ptx_machine.block import readable
from ptx_machine.device import GPU
from ptx_machine.extension.on_gpu import spans
from ptx_machine.fake_cuda import FAKED_GPU, UNWRITTEN
from ptx_machine.launch import STATIC, Kernel, Refused
from ptx_machine.memory import Fault, Span
from ptx_machine.occupancy import occupancy, resources
from ptx_machine.ptx import parse

SUCCESS, INVALID_VALUE, INVALID_CONFIGURATION, LAUNCH_FAILURE = 0, 1, 9, 719  # cudaError_t
PTX = 1  # the kind of a fat binary's entries that are PTX
ALIGNMENT = 256  # of addresses of cudaMalloc
LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint), ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_size_t, ctypes.c_size_t,
)  # fmt: skip
ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)
RELEASE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
VARIABLE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
OCCUPANCY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t,
                             ctypes.POINTER(ctypes.c_int))  # fmt: skip


class Unlaunched(Fault):
    """A launch failed, and the extension did not ask: its output is what memory held."""


class _Answers(ctypes.Structure):
    """runtime.c's structure of the same name."""

    _fields_ = [
        ("launch", LAUNCH), ("allocate", ALLOCATE), ("release", RELEASE), ("variable", VARIABLE),
        ("occupancy", OCCUPANCY), ("most_shared", ctypes.c_int), ("processors", ctypes.c_int),
        ("capability", ctypes.c_int), ("name", ctypes.c_char_p), ("memory", ctypes.c_size_t), ("cache", ctypes.c_int),
    ]  # fmt: skip


_BLOCKS: dict[int, np.ndarray] = {}  # address -> bytes, of cudaMalloc in all extensions


class Image:
    """The kernels and variables of one compiled file.

    Attributes:
        ptx: its text.
        variables: name -> bytes, uint8, of variables in global and constant memory: one for all of its kernels.
    """

    def __init__(self, ptx: str):
        self.ptx, self.variables = ptx, {}
        self._kernels: dict[str, Kernel] = {}

    def kernel(self, name: str) -> Kernel:
        """Return the kernel of a mangled name, in the arithmetic of the GPU that is faked."""
        if name not in self._kernels:
            self._kernels[name] = Kernel(self.ptx, name, variables=self.variables)
        return self._kernels[name]

    def variable(self, name: str) -> np.ndarray | None:
        """Return the bytes of a variable; None: there is none."""
        if name not in self.variables:
            users = (e.name for e in parse(self.ptx).values() if any(v.name == name for v in e.variables))
            if (user := next(users, None)) is not None:
                self.kernel(user)
        return self.variables.get(name)


class Runtime:
    """The runtime of one extension.

    Attributes:
        images: of its compiled files.
    """

    def __init__(self, path: Path, gpu: GPU):
        self._library = ctypes.CDLL(str(path))
        self._library.ptx_machine_image.restype = ctypes.c_void_p
        self._failed: BaseException | None = None
        self._refused = ""
        self._answers = _Answers(
            LAUNCH(self._launch), ALLOCATE(_allocate), RELEASE(_release), VARIABLE(self._variable),
            OCCUPANCY(self._occupancy), gpu.shared_bytes, gpu.processors, gpu.capability, gpu.name.encode(),
            gpu.memory_bytes, gpu.cache_bytes,
        )  # fmt: skip
        count = self._library.ptx_machine_connect(ctypes.byref(self._answers))
        self.images = [Image(ptx_of(self._library.ptx_machine_image(i))) for i in range(count)]

    def checked(self, fn: Callable) -> Callable:
        """Return a function of the extension that raises what its launches did.

        Raises:
            Fault: a kernel did what it may not; or a launch failed, and the extension did not ask (Unlaunched).
        """
        return partial(self._call, fn)

    def _call(self, fn, /, *args, **kwargs):
        self._failed = None
        try:
            result = fn(*args, **kwargs)
        except Exception as error:
            if self._failed is not None:
                raise self._failed from error
            raise
        finally:
            unseen = self._library.ptx_machine_unseen()
        if self._failed is not None:
            raise self._failed
        if unseen:
            raise Unlaunched(
                f"a launch failed, and the extension did not look (cudaGetLastError): its output is what memory held. "
                f"{self._refused}"
            )
        return result

    def _launch(self, image, name, sizes, arguments, shared, limit):
        """Launch a kernel. Return a cudaError_t: no exception passes through C."""
        try:
            kernel = self.images[image].kernel(name.decode())
            grid, block = (*sizes[:3],), (*sizes[3:6],)
            if kernel.static + shared > limit:
                more = " without cudaFuncSetAttribute" if limit == STATIC else ""
                reason = f"asks for {kernel.static + shared:,} bytes of shared memory; it may have {limit:,}{more}"
                self._refused = f"{readable(kernel.entry.name)} {reason}"
                return INVALID_VALUE
            parameters, data = kernel.entry.parameters, np.zeros(kernel.entry.parameter_bytes, np.uint8)
            for parameter, address in zip(parameters, arguments[: len(parameters)]):
                value = ctypes.string_at(address, parameter.size)
                data[parameter.offset : parameter.offset + parameter.size] = np.frombuffer(value, np.uint8)
            allocated = [Span(at, block, f"cudaMalloc({block.size})", True) for at, block in _BLOCKS.items()]
            kernel.launch(grid, block, shared, data, [*spans(), *allocated], unwritten=UNWRITTEN.get())
            return SUCCESS
        except Refused as error:
            self._refused = f"{readable(name.decode())}: {error}"
            return INVALID_CONFIGURATION
        except BaseException as error:
            if self._failed is None:  # the extension may end the process before `_call` raises it
                self._library.ptx_machine_failed(f"{type(error).__name__}: {error}".encode())
            self._failed = self._failed or error
            return LAUNCH_FAILURE

    def _variable(self, image, name):
        data = self.images[image].variable(name.decode())
        return None if data is None else data.ctypes.data

    def _occupancy(self, image, name, threads, shared, used):
        try:
            kernel = self.images[image].kernel(name.decode())
            gpu, of_entry = FAKED_GPU.get() or kernel.gpu, (kernel.text, kernel.entry.name)
            used[0], used[1] = resources(*of_entry, gpu.capability)
            return occupancy(*of_entry, threads, shared, gpu)
        except BaseException as error:
            self._failed = self._failed or error
            return -1


def _allocate(size: int) -> int:
    data = np.full(size + ALIGNMENT, UNWRITTEN.get(), np.uint8)
    data = data[-data.ctypes.data % ALIGNMENT :][:size]
    _BLOCKS[data.ctypes.data] = data
    return data.ctypes.data


def _release(address: int) -> int:
    return int(_BLOCKS.pop(address, None) is not None)


def ptx_of(address: int) -> str:
    """Read the PTX out of a fat binary in memory: a header of 16 bytes, then entries with headers of their own."""
    head = ctypes.string_at(address, 16)  # magic (4 bytes), version (2), size of the header (2), of the rest (8)
    header, size = int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:16], "little")
    data = ctypes.string_at(address + header, size)
    while data:
        kind, start, length = (int.from_bytes(data[at:end], "little") for at, end in ((0, 2), (4, 8), (8, 16)))
        if kind == PTX:
            return data[start : start + length].rstrip(b"\0").decode()
        data = data[start + length :]
    raise ValueError("the extension holds no PTX")
