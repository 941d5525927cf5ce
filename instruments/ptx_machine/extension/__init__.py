"""Torch's CUDA extensions without a GPU: inside `torch_extensions("A100")`, `torch.utils.cpp_extension.load` and
`load_inline` compile for the machine, and the modules that they return take CPU tensors."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils import cpp_extension

from ptx_machine.device import GPU
from ptx_machine.extension.compiling import Sources, compiled, guard
from ptx_machine.extension.on_gpu import given_tensors
from ptx_machine.extension.runtime import Runtime, Unlaunched
from ptx_machine.nvcc import toolkit

__all__ = ["Unlaunched", "torch_extensions"]
_RUNTIMES: list[Runtime] = []  # libraries that are loaded stay so, and ask these


@contextmanager
def torch_extensions(gpu: str | GPU) -> Iterator[None]:
    """Make torch's extensions that are loaded inside the context run on this machine, also after it.

    Their kernels run in the arithmetic of the GPU that is faked when they are launched, else in an A100's.

    Args:
        gpu: whose PTX is compiled, and what the extension is told of its device. A name, or a GPU.

    Raises:
        ValueError: there is no such GPU.
    """
    gpu = GPU.of(gpu)

    def load(
        name, sources, extra_cflags, extra_cuda_cflags, extra_sycl_cflags, extra_ldflags, extra_include_paths,
        build_directory, verbose, with_cuda, with_sycl, is_python_module, *more, **options,
    ):  # fmt: skip
        files = [Path(source).resolve() for source in ([sources] if isinstance(sources, str) else sources)]
        include = [Path(path).resolve() for path in extra_include_paths or ()]
        extension = Sources(name, files, extra_cflags or (), extra_cuda_cflags or (), extra_ldflags or (), include)
        return loaded(extension, gpu, is_python_module)

    with mock.patch.multiple(cpp_extension, _jit_compile=load, CUDA_HOME=_home()):
        yield


def loaded(extension: Sources, gpu: GPU, is_python_module: bool = True) -> Any:
    """Compile and import an extension. Return its module; its functions take CPU tensors."""
    _guard_devices()
    library = compiled(extension, gpu.capability)
    runtime = Runtime(library, gpu)
    _RUNTIMES.append(runtime)
    module = cpp_extension._import_module_from_library(library.stem, str(library.parent), is_python_module)
    if is_python_module:
        for name, fn in [*vars(module).items()]:
            if callable(fn) and not name.startswith("__") and not isinstance(fn, type):
                setattr(module, name, runtime.checked(given_tensors(fn)))
    return module


@cache
def _guard_devices() -> None:
    """Give torch a device guard for CUDA, where it has none."""
    if torch.version.cuda is None:
        ctypes.CDLL(str(guard()))


def _home() -> str | None:
    try:
        return str(toolkit())
    except FileNotFoundError:  # an extension without CUDA needs none
        return None
