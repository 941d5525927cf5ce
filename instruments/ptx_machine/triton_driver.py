"""Triton's kernels on CPU tensors, in a GPU's arithmetic: `with triton("H100"):`. Triton compiles them as for a GPU,
and this machine runs the result."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from ptx_machine.device import GPU
from ptx_machine.launch import Kernel
from ptx_machine.memory import NANS


@contextmanager
def triton(gpu: str | GPU) -> Iterator[None]:
    """Run every kernel of @triton.jit that is launched on CPU tensors inside the context in the arithmetic of a GPU.

    It is compiled for that GPU: for Hopper with wgmma, for Blackwell with tcgen05, where Triton takes them. Autotuning
    takes the first configuration.

    Args:
        gpu: a GPU, or its name.

    Raises:
        ValueError: there is no such GPU.
        ModuleNotFoundError: Triton is not installed.

    Warns:
        UserWarning: Triton's autotuning takes the first configuration.
    """
    from triton import knobs, runtime  # pyright: ignore[reportMissingImports]

    driver = _driver(GPU.of(gpu))
    before = runtime.driver._active
    runtime.driver.set_active(driver)
    knobs.runtime.kernel_load_start_hook.add(driver.loading)
    try:
        yield
    finally:
        knobs.runtime.kernel_load_start_hook.remove(driver.loading)
        runtime.driver._active = before


_NUMBERS = count(1000)  # of devices: Triton stores kernels by them


@cache
def _driver(gpu: GPU) -> Any:
    """Return the driver of a GPU."""
    from triton.backends.compiler import GPUTarget  # pyright: ignore[reportMissingImports]
    from triton.backends.driver import DriverBase  # pyright: ignore[reportMissingImports]

    number, order = next(_NUMBERS), count()

    def in_order(call, quantiles=None, **more):
        """Return the time of a configuration: the first is the fastest."""
        place = next(order)
        if place == 0:
            warnings.warn("Triton's autotuning takes the first configuration here: nothing is timed", stacklevel=2)
        return [float(place)] * (len(quantiles) if quantiles else 1)

    class Driver(DriverBase):
        """Triton's plug-in point for a device."""

        def __init__(self):
            properties = dict(max_shared_mem=gpu.shared_bytes, multiprocessor_count=gpu.processors, warpSize=32,
                              max_num_regs=65536, sm_clock_rate=1, mem_clock_rate=1, mem_bus_width=1)  # fmt: skip
            self.utils = SimpleNamespace(get_device_properties=lambda device: properties, load_binary=self.load)
            self.text = ""

        def loading(self, module, function, name, files, digest):
            """Read the PTX that Triton compiled; Triton calls this before `load`."""
            self.text = next(Path(path).read_text() for file, path in files.items() if file.endswith(".ptx"))

        def load(self, name, binary, shared, device):
            """Return module, function, registers, spills and the most threads of a block."""
            kernel = Kernel(self.text, name, gpu=gpu)
            return kernel, kernel, 0, 0, 1024  # Triton loads again, at every call, what has no module

        def launcher_cls(self, source, metadata):
            return Launcher(source, metadata)

        @classmethod
        def is_active(cls):
            return True

        def map_python_to_cpp_type(self, ty):
            return ty

        def get_current_target(self):
            return GPUTarget("cuda", gpu.capability, 32)

        def get_current_device(self):
            return number

        def set_current_device(self, device):
            pass

        def get_current_stream(self, device=None):
            return 0

        def get_active_torch_device(self):
            return torch.device("cpu")

        def get_benchmarker(self):
            return in_order

    return Driver()


class Launcher:
    """The object that Triton calls with a kernel's grid and arguments.

    Raises:
        NotImplementedError: an argument is a tensor descriptor.
    """

    def __init__(self, source: Any, metadata: Any):
        self.kinds, self.metadata = [*source.signature.values()], metadata
        for kind in self.kinds:
            if not isinstance(kind, str) or kind.startswith("tensordesc"):
                raise NotImplementedError(f"an argument of type {kind}: tensor descriptors are not modelled")

    def __call__(self, x, y, z, stream, kernel: Kernel, *packed):
        """Launch a kernel; packed: four arguments of Triton's own, then the kernel's arguments."""
        values = [value for value, kind in zip(packed[4:], self.kinds) if kind != "constexpr"]
        scratch = getattr(self.metadata, "global_scratch_size", 0) or 0
        more = len(kernel.entry.parameters) - len(values)  # behind the arguments: scratch memory
        room = torch.zeros(x * y * z * scratch, dtype=torch.uint8) if scratch else None
        with torch._C.DisableTorchFunction():  # inside, torch sees the real device
            kernel((x, y, z), (32 * self.metadata.num_warps,), self.metadata.shared, *values, *[room, None][:more],
                   unwritten=NANS)  # fmt: skip
