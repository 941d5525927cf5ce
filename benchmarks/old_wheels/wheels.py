"""Old releases of libraries, for reports that they still show on a CPU. Each is installed into a folder of its own,
under build/old_wheels.

`of_NAME.hashes` pins a library and what it needs beside fa_lib, with the SHA-256 of every archive on PyPI; to renew,
change a version there and have uv write the file anew:
    uv pip compile --universal --generate-hashes --no-annotate --no-header --no-deps --python-version 3.11.7 \
        IN --output-file of_NAME.hashes
IN has the lines with == alone.
"""

import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch

from attention_check.conventions.reading import CapturedCall
from fa_lib.execution.paths import build

FOLDER = Path(__file__).parent
LIBRARIES = {  # thread -> the library of then; the other reports' need a GPU, a phone or a build of gigabytes
    "ml-explore/mlx#2835": "mlx", "jax-ml/jax#35916": "jax", "microsoft/onnxruntime#29020": "onnxruntime",
    "openvinotoolkit/openvino#35796": "openvino", "triton-lang/triton#11584": "triton",
}  # fmt: skip


class CannotRun(Exception):
    """The old library cannot be installed here, or its script fails."""


def name(thread: str) -> str:
    """The library of a report, and its version: "mlx 0.29.3"."""
    library = LIBRARIES[thread]
    pins = (FOLDER / f"of_{library}.hashes").read_text().splitlines()
    return next(pin.split()[0] for pin in pins if pin.startswith(f"{library}==")).replace("==", " ")


def output(thread: str, call: CapturedCall) -> torch.Tensor:
    """What the library of then gives for a report's q, k and v, in q's dtype.

    Raises:
        CannotRun: it cannot be installed, or it fails.
    """
    library = LIBRARIES[thread]
    folder = _installed(library)
    with tempfile.TemporaryDirectory() as here:
        given, out = f"{here}/in.npz", f"{here}/out.npz"
        np.savez(given, q=_numpy(call.q), k=_numpy(call.k), v=_numpy(call.v))
        _run([sys.executable, FOLDER / f"of_{library}.py", given, out], PYTHONPATH=f"{folder}")
        return torch.from_numpy(np.load(out)["o"]).to(call.q.dtype)


@cache
def _installed(library: str) -> Path:
    """The folder of a library, installed if it is not there; a file beside it says that it is complete."""
    folder = build() / "old_wheels" / library
    complete = folder.with_suffix(".complete")
    if not complete.exists():
        words = ["--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:", "--upgrade"]
        pins = FOLDER / f"of_{library}.hashes"
        command = [sys.executable, "-m", "pip", "install", *words, "--target", folder, "--requirement", pins]
        _run(command)
        complete.touch()
    return folder


def _run(command: list, **environment: str) -> None:
    ran = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    if ran.returncode:
        raise CannotRun((ran.stderr.strip().splitlines() or [f"it ends with {ran.returncode}"])[-1])


def _numpy(x):
    """As numpy has it, which has no BF16: in FP32."""
    return (x.float() if x.dtype == torch.bfloat16 else x).numpy()
