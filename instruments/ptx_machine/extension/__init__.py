"""Torch's CUDA extensions without a GPU: inside `torch_extensions("A100")`, `torch.utils.cpp_extension.load` and
`load_inline` compile for the machine, and the modules that they return take CPU tensors."""

import ctypes
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils import cpp_extension

from ptx_machine.device import GPU
from ptx_machine.extension.compiling import Sources, compiled, guard
from ptx_machine.extension.on_gpu import given_tensors
from ptx_machine.extension.runtime import Runtime, Unlaunched
from ptx_machine.extension.setup_py import Finder
from ptx_machine.nvcc import toolkit

__all__ = ["Unlaunched", "torch_extensions"]
KEYS = "CUDA", "CompositeExplicitAutograd", "CompositeImplicitAutograd"  # the last two are of all devices
_RUNTIMES: list[Runtime] = []  # libraries that are loaded stay so, and ask these
_LIBRARIES: list[torch.library.Library] = []  # and operators last as long as these


@contextmanager
def torch_extensions(gpu: str | GPU) -> Iterator[None]:
    """Make torch's extensions that are loaded inside the context run on this machine, also after it: by `load` or
    `load_inline`, or by importing a module that a setup.py beside or above the code that imports it builds.

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
        flags = extra_cflags, extra_cuda_cflags, extra_ldflags  # torch hands them to a shell
        cxx, nvcc, link = (shlex.split(" ".join(each or ())) for each in flags)
        return loaded(Sources(name, files, cxx, nvcc, link, include), gpu, is_python_module)

    finder = Finder(gpu, lambda sources: loaded(sources, gpu))
    sys.meta_path.append(finder)
    try:
        with mock.patch.multiple(cpp_extension, _jit_compile=load, CUDA_HOME=_home()):
            yield
    finally:
        sys.meta_path.remove(finder)


def loaded(extension: Sources, gpu: GPU, is_python_module: bool = True) -> Any:
    """Compile and import an extension. Return its module; its functions take CPU tensors."""
    _guard_devices()
    library, before = compiled(extension, gpu.capability), _operators()
    runtime = Runtime(library, gpu)
    _RUNTIMES.append(runtime)
    module = cpp_extension._import_module_from_library(library.stem, str(library.parent), is_python_module)
    if is_python_module:
        for name, fn in [*vars(module).items()]:
            if callable(fn) and not name.startswith("__") and not isinstance(fn, type):
                setattr(module, name, runtime.checked(given_tensors(fn)))
    for operator in _operators() - before:
        _put_on_cpu(operator, runtime)
    return module


def _operators() -> set[str]:
    """Return the names of the operators of torch that CUDA tensors can be given to."""
    names, has_kernel = torch._C._dispatch_get_all_op_names(), torch._C._dispatch_has_computed_kernel_for_dispatch_key
    return {name for name in names if has_kernel(name, "CUDA")}


def _put_on_cpu(name: str, runtime: Runtime) -> None:
    """Let CPU tensors come to CUDA's implementation of an operator of TORCH_LIBRARY."""
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    operator = getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    key = next((key for key in KEYS if has_kernel(name, key)), KEYS[0])
    library = torch.library.Library(namespace, "IMPL", "CPU")
    function = partial(operator._op_dk, getattr(torch._C.DispatchKey, key))
    library.impl(rest, runtime.checked(given_tensors(function)))
    _LIBRARIES.append(library)


@cache
def _guard_devices() -> None:
    """Give torch a device guard for CUDA, where it has none."""
    if not torch.backends.cuda.is_built():
        ctypes.CDLL(str(guard()))


def _home() -> str | None:
    try:
        return str(toolkit())
    except FileNotFoundError:  # an extension without CUDA needs none
        return None
