"""Where CUDA's compiler is, for the parts that are built on the machine with the GPU."""

import os
import shutil
from pathlib import Path

DEFAULT = "/usr/local/cuda"


def cuda_home() -> Path:
    """Find CUDA's folder. torch takes the folder above nvcc, which is wrong where nvcc is a script that calls another.

    Raises:
        RuntimeError: no folder has nvcc and its headers.
    """
    nvcc = shutil.which("nvcc")
    candidates = [os.environ.get("CUDA_HOME"), nvcc and Path(nvcc).resolve().parents[1], DEFAULT]
    for home in (Path(folder) for folder in candidates if folder):
        if (home / "bin/nvcc").exists() and (home / "include/cuda_runtime.h").exists():
            return home
    raise RuntimeError("nvcc: CUDA's compiler and headers are not found; set CUDA_HOME to a folder that has both")
