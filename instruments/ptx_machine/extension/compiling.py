"""Extensions of C++ and CUDA C++ into libraries, by g++ and by nvcc from its package. What is compiled is kept."""

import hashlib
import json
import logging
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from filelock import FileLock
from torch.utils import cpp_extension
from tqdm import tqdm

from ptx_machine.folders import build, digest, stored, written
from ptx_machine.nvcc import toolkit, version

LOG = logging.getLogger(__name__)
HERE = Path(__file__).resolve().parent
HOST = ("-fPIC", "-w", "-O0", "-g0", "-DTORCH_API_INCLUDE_EXTENSION_H")  # the host's code launches, and computes little
STANDARD = "-std=c++20"  # torch's headers need it
WITH_VALUE = """-gencode --generate-code -arch --gpu-architecture -code --gpu-code -t --threads -keep-dir --keep-dir
                -rdc --relocatable-device-code""".split()  # flags of nvcc that are not the user's
WITHOUT = "-G --device-debug -dc --device-c -dlto --dlink-time-opt -keep --keep -save-temps --save-temps".split()
NOT_MODELLED = re.compile(r"(__)?cu(da|blas|rand|dnn|solver|sparse|fft|Launch|Mem|Module|Ctx|Device|Func|Init|Get)\w*")
ERROR = re.compile("error|cannot find|undefined reference")
DELAY_S, MOST_LINES = 2, 20  # before progress is shown; of a compiler's words in an error


@dataclass(frozen=True)
class Sources:
    """An extension as its build says it.

    Attributes:
        name: of the module that Python imports; of a setup.py with its packages.
        files: paths of .cpp and .cu files.
        cxx, nvcc: flags of g++ and of nvcc. link: of the linker. include: folders.
    """

    name: str
    files: Sequence[Path]
    cxx: Sequence[str] = ()
    nvcc: Sequence[str] = ()
    link: Sequence[str] = ()
    include: Sequence[Path] = ()


def compiled(sources: Sources, capability: int) -> Path:
    """Compile an extension, or find it compiled: files that it does not include may change.

    Args:
        sources: the extension. capability: of the GPU that kernels are compiled for; 80 is sm_80.

    Returns:
        The library.

    Raises:
        FileNotFoundError: nvcc or g++ is not installed.
        RuntimeError: it does not compile; it calls what is not modelled.
    """
    if shutil.which("g++") is None:
        raise FileNotFoundError("g++: not installed; it compiles the C++ of an extension")
    words = [*map(str, (sources, capability, torch.__version__, version())), _own()]
    folder = build() / "extensions" / f"{_short(sources.name)}-{digest(*words)}"
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"{_short(sources.name)}.so"
    with FileLock(folder / "lock"):  # another process may be at it
        objects = [folder / f"{index}.o" for index, _ in enumerate(sources.files)]
        stale = [at for at, path in enumerate(objects) if not _current(path)]
        if not stale and library.exists():
            return library
        LOG.info("compiling the extension %s: half a minute or more, once", _short(sources.name))
        commands = [(_commands(sources, sources.files[at], objects[at], capability), objects[at]) for at in stale]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            done = pool.map(lambda each: _compile(sources.name, *each), commands)
            title = f"compiling {sources.name}"
            for _ in tqdm(done, title, len(commands), unit="file", delay=DELAY_S, leave=False, disable=None):
                pass
        _link(sources, [*objects, _runtime()], library)
    return library


def guard() -> Path:
    """Compile the library that is CUDA's device guard in a build of torch without CUDA."""
    torch_folder = Path(torch.__file__).parent
    command = ["g++", "-shared", "-fPIC", STANDARD, "-w", HERE / "guard.cpp", f"-I{torch_folder / 'include'}",
               f"-L{torch_folder / 'lib'}", "-lc10"]  # fmt: skip
    library = build() / "extensions" / f"guard-{digest(torch.__version__, _own())}.so"
    return stored(library, partial(_run, command))


def _commands(sources: Sources, file: Path, target: Path, capability: int) -> list[list]:
    """Return the commands that compile a file, the quickest first, and write the files that it includes beside the
    object: a .cu file has torch's headers without what few use, or whole where that does not do."""
    home = toolkit()
    system = [*cpp_extension.include_paths(), sysconfig.get_paths()["include"], home / "include", home / "include/cccl"]
    folders = [f"-I{HERE / 'include'}", *(f"-I{path}" for path in sources.include)]
    folders += [word for path in system for word in ("-isystem", str(path))]
    common = [f"-DTORCH_EXTENSION_NAME={_short(sources.name)}", *folders, "-MMD", "-MF", f"{target}.d", "-c", file]
    if file.suffix != ".cu":
        return [["g++", *_raised(sources.cxx), *HOST, "-I", _precompiled(), *common]]
    gpu = f"-gencode=arch=compute_{capability},code=compute_{capability}"
    whole = [
        home / "bin" / "nvcc", *cpp_extension.COMMON_NVCC_FLAGS, *_raised(_portable(sources.nvcc)), gpu, "-lineinfo",
        "--compress-mode=none", "-cudart=none", "-w", "-Xcompiler", ",".join(HOST),
        "-DCCCL_DISABLE_CTK_COMPATIBILITY_CHECK", *common,
    ]  # fmt: skip
    return [[whole[0], f"-I{HERE / 'include_cu'}", *whole[1:]], whole]


def _portable(flags: Sequence[str]) -> list[str]:
    """Leave out the flags that say for which GPU is compiled, that link device code, and that keep nvcc's files."""
    kept, words = [], map(str, flags)
    for word in words:
        head, equals, _ = word.partition("=")
        if head in WITH_VALUE and not equals:
            next(words, "")
        elif head not in (*WITH_VALUE, *WITHOUT):
            kept.append(word)
    return kept


def _raised(flags: Sequence[str]) -> list[str]:
    return [*(str(flag) for flag in flags if "std=" not in str(flag)), STANDARD]


def _precompiled() -> Path:
    """Return a folder with torch/extension.h, precompiled: most of what compiling a C++ file takes."""
    folder = build() / "extensions" / f"header-{digest(torch.__version__)}"
    plain = folder / "torch" / "extension.h"  # for files that include it twice
    stored(plain, lambda part: part.write_text("#pragma once\n#include_next <torch/extension.h>\n"))
    system = [*cpp_extension.include_paths(), sysconfig.get_paths()["include"]]
    folders = [word for path in system for word in ("-isystem", str(path))]
    stored(plain.with_suffix(".h.gch"), partial(_run, ["g++", STANDARD, *HOST, *folders, "-x", "c++-header", plain]))
    return folder


def _runtime() -> Path:
    command = ["gcc", "-O2", "-fPIC", "-fvisibility=hidden", "-w", "-c", HERE / "runtime.c"]
    target = build() / "extensions" / f"runtime-{digest(version(), _own())}.o"
    return stored(target, partial(_run, [*command, f"-I{toolkit() / 'include'}"]))


def _link(sources: Sources, objects: Sequence[Path], library: Path) -> None:
    folder = Path(torch.__file__).parent / "lib"
    flags = [flag for flag in sources.link if not re.match(r"-l(cu|nv|torch_cuda|c10_cuda)|-L.*cuda", str(flag))]
    libraries = [f"-L{folder}", "-ltorch_python", "-ltorch", "-ltorch_cpu", "-lc10"]
    written(library, partial(_run, ["g++", "-shared", *objects, *flags, *libraries]))
    wanted = subprocess.run(["nm", "-D", "-u", library], capture_output=True, text=True, check=True).stdout.split()
    absent = [name for name in wanted if NOT_MODELLED.fullmatch(name)]
    if absent:
        library.unlink()
        raise RuntimeError(f"{sources.name}: calls {', '.join(absent)}, which are not modelled without a GPU")


def _compile(name: str, commands: list[list], target: Path) -> None:
    """Compile one file by the first of some commands that does, and note what it was made of."""
    for at, command in enumerate(commands):
        try:
            written(target, partial(_run, command))
            break
        except RuntimeError as error:
            if at == len(commands) - 1:
                raise RuntimeError(f"Error building extension {name!r}: {error}") from None
    words = Path(f"{target}.d").read_text().replace("\\\n", " ").partition(":")[2].split()
    made_of = {path: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in words}
    target.with_suffix(".json").write_text(json.dumps(made_of))


def _current(target: Path) -> bool:
    """Whether an object is there, and all files that it was made of are as they were."""
    note = target.with_suffix(".json")
    if not target.exists() or not note.exists():
        return False
    made_of = json.loads(note.read_text()).items()
    return all(Path(path).exists() and hashlib.sha256(Path(path).read_bytes()).hexdigest() == known
               for path, known in made_of)  # fmt: skip


def _run(command: list, target: Path) -> None:
    """Run a compiler that writes target.

    Raises:
        RuntimeError: it fails; with its first errors.
    """
    process = subprocess.run([*map(str, command), "-o", str(target)], capture_output=True, text=True)
    if process.returncode:
        words = process.stderr.splitlines()
        lines = [*dict.fromkeys(line for line in words if ERROR.search(line))] or words
        raise RuntimeError("\n".join([f"{Path(command[0]).name} fails:", *lines[:MOST_LINES]]))


def _own() -> str:
    """Hash what this folder adds to an extension."""
    files = sorted(path for path in HERE.rglob("*") if path.suffix in (".c", ".cpp", ".h"))
    return digest(*(path.read_text() for path in files))


def _short(name: str) -> str:
    return name.rpartition(".")[2]
