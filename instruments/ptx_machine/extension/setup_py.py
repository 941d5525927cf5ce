"""Extensions of a setup.py: a module that only its build would make is compiled when it is imported."""

import os
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from unittest import mock

import setuptools
from torch.utils import cpp_extension

from ptx_machine.device import GPU
from ptx_machine.extension.compiling import Sources
from ptx_machine.fake_cuda import fake_cuda
from ptx_machine.nvcc import toolkit

FUNCTIONS = "CUDAExtension", "CppExtension"
ABOVE = 2  # folders above one of sys.path, or a package's, that may hold its setup.py


class Finder(MetaPathFinder, Loader):
    """Finds modules that no other finder does in the setup.py beside or above the code that imports them, and loads
    them. Where that fails, so does the import: ModuleNotFoundError, with the reason.

    Args:
        gpu: what a setup.py is told of the device. load: compiles and imports an extension.
    """

    def __init__(self, gpu: GPU, load: Callable[[Sources], ModuleType]):
        self.gpu, self.load = gpu, load
        self._built: dict[Path, dict[str, Sources] | str] = {}  # setup.py -> extensions, or why there are none

    def find_spec(self, fullname, path=None, target=None):
        for folder in dict.fromkeys(Path(each).resolve() for each in path or sys.path):
            for at in (folder, *folder.parents[:ABOVE]):
                found = self._of(at / "setup.py")
                if isinstance(found, str):
                    raise ModuleNotFoundError(f"No module named {fullname!r}; {found}", name=fullname)
                if fullname in found:
                    return ModuleSpec(fullname, self, loader_state=found[fullname])
        return None

    def create_module(self, spec):
        return self.load(spec.loader_state)

    def exec_module(self, module):
        pass

    def _of(self, setup):
        if setup not in self._built:
            self._built[setup] = {}  # of what it imports itself, it builds none
            if setup.is_file() and any(word in setup.read_text(errors="replace") for word in FUNCTIONS):
                try:
                    self._built[setup] = {each.name: each for each in extensions(setup, self.gpu)}
                except (Exception, SystemExit) as error:  # it is a stranger's
                    self._built[setup] = f"{setup}, which may build it, fails: {error!r}"
        return self._built[setup]


def extensions(setup: Path, gpu: GPU) -> Iterator[Sources]:
    """Run a setup.py, which builds nothing then, and yield the extensions that it would build."""
    found, folder = [], setup.parent
    with (
        fake_cuda(gpu), chdir(folder), mock.patch.object(sys, "argv", [str(setup), "build_ext"]),
        mock.patch.object(setuptools, "setup", lambda **options: found.extend(options.get("ext_modules") or ())),
        mock.patch.dict(os.environ, PATH=f"{toolkit() / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"),
    ):  # fmt: skip
        runpy.run_path(str(setup), run_name="__main__")
    known = cpp_extension.include_paths("cuda")  # CUDAExtension adds them
    for each in found:
        flags = each.extra_compile_args
        by_compiler = flags if isinstance(flags, dict) else {"cxx": flags, "nvcc": flags}
        defined = [f"-D{name}" if value is None else f"-D{name}={value}" for name, value in each.define_macros]
        cxx, nvcc = ([*by_compiler.get(compiler, ()), *defined] for compiler in ("cxx", "nvcc"))
        include = [folder / path for path in each.include_dirs if path not in known]
        yield Sources(each.name, [folder / path for path in each.sources], cxx, nvcc, each.extra_link_args, include)
