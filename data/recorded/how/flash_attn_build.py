"""flash-attn from its source package, for Hopper and a few head dims only: minutes on 16 cores instead of hours.

The source package compiles 72 kernel files, each with every option, for four generations of GPUs. Here it is two head
dims, one generation, and the options that fa_lib calls. A head dim that was left out gets a stub that says so when it
is called; an option that was left out is refused by flash-attn itself.

FlashAttention-3 cannot be built from this package: of hopper/ it holds the Python files, and none of its kernels.
"""

import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from torch.utils import cpp_extension

from fa_lib.execution.files import locked_folder, replacing
from fa_lib.experiments.hardware.cuda import cuda_home

EXTENSION = "flash_attn_2_cuda"
DISABLED = ("ALIBI", "DROPOUT", "SOFTCAP", "UNEVEN_K")  # not LOCAL: it is the window
FLAGS = [f"-DFLASHATTENTION_DISABLE_{name}" for name in DISABLED]
NVCC_FLAGS = [  # as in flash-attn's setup.py; torch adds -std and the include folders
    "-gencode=arch=compute_90,code=sm_90",
    *"-O3 --expt-relaxed-constexpr --expt-extended-lambda --use_fast_math".split(),
    *(f"-U__CUDA_NO_{name}__" for name in "HALF_OPERATORS HALF_CONVERSIONS HALF2_OPERATORS".split()),
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
]
INCLUDE = ("csrc/flash_attn", "csrc/flash_attn/src", "csrc/cutlass/include")
KERNEL = re.compile(r"flash_(fwd|fwd_split|bwd)_hdim(\d+)_(bf16|fp16)(_causal)?_sm80\.cu")
FUNCTIONS = {  # of a kernel file, as declared in flash.h
    "fwd": "run_mha_fwd_{of}(Flash_fwd_params &, cudaStream_t)",
    "fwd_split": "run_mha_fwd_splitkv_dispatch{of}(Flash_fwd_params &, cudaStream_t)",
    "bwd": "run_mha_bwd_{of}(Flash_bwd_params &, cudaStream_t)",
}
STUBS = """// Made by fa_lib: the head dims that were not compiled, so that the library links.
#include <stdexcept>
#include <string>
#include <cutlass/numeric_types.h>
#include "namespace_config.h"
#include "flash.h"

namespace FLASH_NAMESPACE {{

[[noreturn]] static void left_out(int head_dim) {{
    throw std::runtime_error("head_dim: got one that needs the kernel of " + std::to_string(head_dim)
                             + "; this build of flash-attn has {kept}");
}}

{functions}
}}  // namespace FLASH_NAMESPACE
"""


def build(sdist: str | Path, target: str | Path, jobs: int | None = None, head_dims: Iterable[int] = (64, 128)) -> Path:
    """Compile flash-attn into a folder, from which `import flash_attn` works when it is on PYTHONPATH.

    Interrupted and started again, it compiles the files that are missing.

    Args:
        sdist: flash_attn-2.8.*.tar.gz.
        jobs: compilers at a time, of 100 s and up to 6 GB each; all cores where None.
        head_dims: of 32, 64, 96, 128, 192 and 256.

    Returns:
        target, an absolute path: the package flash_attn, flash_attn_2_cuda.so, and the sources in .source.

    Raises:
        ValueError: an argument does not fit, or another process builds there.
        RuntimeError: CUDA's headers are not found, or a file does not compile; ninja prints why.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs: got {jobs}; accepted is a positive number, or None for all cores")
    target = Path(target).resolve()
    with locked_folder(target):
        source = unpack(sdist, target / ".source")
        kernels, text = kernel_files(source, head_dims), stubs(source, head_dims)
        objects = source / "build"
        objects.mkdir(exist_ok=True)
        (objects / "lock").unlink(missing_ok=True)  # torch's, of a build that was killed: it would wait forever
        stub_file = objects / "left_out.cpp"
        if not stub_file.exists() or stub_file.read_text() != text:
            stub_file.write_text(text)
        os.environ["MAX_JOBS"] = f"{jobs or len(os.sched_getaffinity(0))}"  # ninja's, by way of torch
        cpp_extension.CUDA_HOME = f"{cuda_home()}"
        module = cpp_extension.load(
            EXTENSION,
            [str(path) for path in (source / "csrc/flash_attn/flash_api.cpp", stub_file, *kernels)],
            extra_cflags=["-O3", *FLAGS],
            extra_cuda_cflags=[*NVCC_FLAGS, *FLAGS],
            extra_include_paths=[f"{source / folder}" for folder in INCLUDE],
            build_directory=str(objects),
            with_cuda=True,
            verbose=True,
        )
        shutil.copytree(source / "flash_attn", target / "flash_attn", dirs_exist_ok=True)
        name_package(target, source.name)
        assert isinstance(module, ModuleType) and module.__file__
        shutil.copy(module.__file__, target / f"{EXTENSION}.so")  # last: with it all is there
    return target


def name_package(target: Path, name: str) -> None:
    """Make a folder's package known to importlib.metadata, as pip does.

    Args:
        name: name and version of the source package, "flash_attn-2.8.3".
    """
    lines = ("Metadata-Version: 2.1", "Name: flash-attn", f"Version: {name.partition('-')[2]}", "")
    with replacing(target / f"{name}.dist-info" / "METADATA") as path:
        path.write_text("\n".join(lines))


def unpack(sdist: str | Path, folder: str | Path) -> Path:
    """Unpack the files of a source package that the build reads, into folder/<its name>, unless that is there already.

    Returns:
        folder/<its name>.

    Raises:
        ValueError: the file is no source package of flash-attn.
    """
    sdist, folder = Path(sdist), Path(folder)
    words = f"sdist: got {str(sdist)!r}; accepted is flash-attn's source package, flash_attn-2.8.*.tar.gz"
    if not re.fullmatch(r"flash_attn-2\.8\..+\.tar\.gz", sdist.name) or not sdist.is_file():
        raise ValueError(words)
    name = sdist.name.removesuffix(".tar.gz")
    if (folder / name).is_dir():
        return folder / name
    folder.mkdir(parents=True, exist_ok=True)
    rooms = tuple(f"{name}/{room}/" for room in ("flash_attn", "csrc/flash_attn", "csrc/cutlass/include"))
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        try:
            with tarfile.open(sdist) as archive:
                members = [member for member in archive if member.name.startswith(rooms)]
                archive.extractall(temporary, members, filter="data")
        except tarfile.TarError as error:
            raise ValueError(f"{words}; it cannot be read: {error}") from error
        if not (Path(temporary) / name / "csrc/flash_attn/flash_api.cpp").exists():
            raise ValueError(f"{words}; it holds no csrc/flash_attn/flash_api.cpp")
        os.rename(Path(temporary) / name, folder / name)  # whole, or not there
    return folder / name


def kernel_files(source: Path, head_dims: Iterable[int]) -> list[Path]:
    """List the kernel files to compile. Split kernels are among them: a forward pass with few heads splits the keys.

    Args:
        source: the unpacked package. head_dims: for which kernels are compiled.

    Raises:
        ValueError: there is no kernel for a head dim.
    """
    head_dims, files = set(head_dims), _kernels(source)
    available = sorted({int(match[2]) for match in files.values()})
    if not head_dims or not head_dims <= set(available):
        raise ValueError(f"head_dims: got {sorted(head_dims)}; accepted are {', '.join(map(str, available))}")
    return [path for path, match in files.items() if int(match[2]) in head_dims]


def stubs(source: Path, head_dims: Iterable[int]) -> str:
    """Write C++ that defines the functions of all other kernels: each throws std::runtime_error, a RuntimeError in
    Python.

    Args:
        source, head_dims: as of `kernel_files`.
    """
    compiled, functions = set(kernel_files(source, head_dims)), ""
    for path, match in _kernels(source).items():
        if path not in compiled:
            kind, head_dim, dtype, causal = match.groups()
            element = {"bf16": "cutlass::bfloat16_t", "fp16": "cutlass::half_t"}[dtype]
            arguments = f"<{element}, {head_dim}, {'true' if causal else 'false'}>"
            functions += f"template<> void {FUNCTIONS[kind].format(of=arguments)} {{ left_out({head_dim}); }}\n"
    return STUBS.format(kept=" and ".join(map(str, sorted(set(head_dims)))), functions=functions)


def _kernels(source: Path) -> dict[Path, re.Match]:
    files = sorted((source / "csrc/flash_attn/src").glob("*.cu"))
    return {path: match for path in files if (match := KERNEL.fullmatch(path.name))}
