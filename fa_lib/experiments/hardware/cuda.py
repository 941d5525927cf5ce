"""Where CUDA's compiler is: for what is built on the machine with the GPU."""

import os
import shutil
from pathlib import Path

DEFAULT = "/usr/local/cuda"


def cuda_home() -> Path:
    """The folder of CUDA. torch takes the one above nvcc, which is wrong where nvcc is a script that calls another.

    Raises:
        RuntimeError: none has nvcc and its headers.
    """
    nvcc = shutil.which("nvcc")
    named = [os.environ.get("CUDA_HOME"), nvcc and Path(nvcc).resolve().parents[1], DEFAULT]
    for home in (Path(folder) for folder in named if folder):
        if (home / "bin/nvcc").exists() and (home / "include/cuda_runtime.h").exists():
            return home
    raise RuntimeError("nvcc: CUDA's compiler and headers are not found; set CUDA_HOME to a folder that has both")
