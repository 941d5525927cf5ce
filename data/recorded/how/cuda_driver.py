"""Launches on a real GPU, by CUDA's driver alone: it compiles a kernel's PTX for the GPU that it finds.

`on_cuda` runs one launch in this process; `replay` runs many in some processes, and begins a new one after a fault,
which spoils CUDA for its process.
"""

import ctypes
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from fa_lib.execution.files import replacing
from ptx_machine.launches import Launch

LIMIT_S = 20  # of a launch, compiling included
MOST_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
FREE_SHARED = 48 * 1024  # bytes that a block may have without asking
BEHIND = 4096  # bytes of the driver's memory behind each tensor, which a kernel may write as on torch's allocator


def on_cuda(launch: Launch) -> list[np.ndarray]:
    """Run a launch on the first GPU; return the bytes of memory afterwards.

    Raises:
        RuntimeError: an error of CUDA's driver, with its name.
    """
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name, *arguments):
        error = getattr(cuda, name)(*arguments)
        if error:
            text = ctypes.c_char_p()
            cuda.cuGetErrorName(error, ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'?').decode()}")

    device, context, module, function = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuModuleLoadData", ctypes.byref(module), launch.ptx.encode() + b"\0")
    call("cuModuleGetFunction", ctypes.byref(function), module, launch.entry.encode())
    if launch.shared > FREE_SHARED:
        call("cuFuncSetAttribute", function, MOST_SHARED, launch.shared)
    places = []
    for data in launch.memory:
        place = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(len(data) + BEHIND))
        call("cuMemcpyHtoD_v2", place, data.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(len(data)))
        places.append(place)
    parameters = launch.parameters.copy()
    for at, which, byte in launch.pointers:
        parameters[at : at + 8] = np.frombuffer((places[which].value + byte).to_bytes(8, "little"), np.uint8)
    size = ctypes.c_size_t(len(parameters))
    buffer = parameters.ctypes.data_as(ctypes.c_void_p)
    extra = (ctypes.c_void_p * 5)(1, buffer, 2, ctypes.addressof(size), 0)  # the parameters as one buffer
    call("cuLaunchKernel", function, *launch.grid, *launch.block, launch.shared, None, None, extra)
    call("cuCtxSynchronize")
    after = []
    for place, data in zip(places, launch.memory):
        result = np.empty_like(data)
        call("cuMemcpyDtoH_v2", result.ctypes.data_as(ctypes.c_void_p), place, ctypes.c_size_t(len(data)))
        after.append(result)
        call("cuMemFree_v2", place)
    call("cuModuleUnload", module)
    return after


def replay(files: Sequence[Path], into: Path, jobs: int) -> dict[str, str]:
    """Run the launches of files on the GPU, in some processes, and write <into>/<digest>.npz: after<i>, for each tensor
    whose bytes changed.

    Args:
        files: of `Launch.save`. into: the folder. jobs: processes at a time.

    Returns:
        digest -> "done", or the error.
    """
    into.mkdir(parents=True, exist_ok=True)
    for path in files:
        (into / path.name).unlink(missing_ok=True)  # of another GPU, or of a run before

    def each(paths: list[Path]) -> dict[str, str]:
        outcomes: dict[str, str] = {}
        while paths:  # a process ends with its first error: the next one goes on behind it
            command = [sys.executable, "-m", "ptx_machine.cuda_driver", f"{into}", *map(str, paths)]
            try:
                words = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S * len(paths)).stderr
            except subprocess.TimeoutExpired:
                words = f"not done after {LIMIT_S * len(paths)} s"
            done = [path for path in paths if (into / path.name).exists()]
            outcomes |= {path.stem: "done" for path in done}
            paths = [path for path in paths if path not in done]
            if paths:
                outcomes[paths.pop(0).stem] = (words.strip().splitlines() or ["?"])[-1]
        return outcomes

    with ThreadPoolExecutor(jobs) as pool:
        return {
            key: words
            for part in pool.map(each, [[*files[i::jobs]] for i in range(jobs)])
            for key, words in part.items()
        }


def _main(into: str, *paths: str) -> None:
    for path in paths:
        launch = Launch.load(Path(path))
        after = enumerate(on_cuda(launch))
        changed: dict[str, Any] = {f"after{i}": x for i, x in after if not np.array_equal(x, launch.memory[i])}
        with replacing(Path(into) / Path(path).name) as temporary, open(temporary, "wb") as file:
            np.savez_compressed(file, **changed)


if __name__ == "__main__":
    _main(*sys.argv[1:])
