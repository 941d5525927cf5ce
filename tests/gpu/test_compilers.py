"""Two compilers, one source: operations.cu for a GPU by nvcc, run by the machine, and for this processor by gcc."""

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from ptx_machine import Kernel, compile_cuda

SOURCE = Path(__file__).with_name("operations.cu")
COUNT = 1 << 15
SPECIAL = np.array([0, 0x80000000, 0x3F800000, 0x7F800000, 0xFF800000, 0x7FC00000, 1, 0x80000001, 0x007FFFFF,
                    0x00800000, 0x7F7FFFFF, 0x4B000001, 0x3F000000, 0xBF000000, 0x40200000], np.uint64)  # fmt: skip
MOVED = ("signed_as",)  # bits alone, which -ftz leaves
NAN = {4: np.uint64(0x7FFFFFFF), 8: np.uint64(0x7FF8000000000000)}


def on_host(folder, *more):
    """operations.cu for this processor."""
    library = folder / "operations.so"
    flags = ["-x", "c++", "-std=c++17", "-O1", "-frounding-math", "-ffp-contract=off", "-shared", "-fPIC"]
    subprocess.run(["g++", *flags, *more, SOURCE, "-o", library], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.names.restype = ctypes.c_char_p
    return loaded


def operands(seed):
    """Bits of every kind: of any number, of numbers near 1, and special ones."""
    chance = np.random.default_rng(seed)
    x = chance.integers(0, 2**64, COUNT, np.uint64)
    near = chance.normal(size=COUNT // 4).astype(np.float32).view(np.uint32).astype(np.uint64)
    x[: COUNT // 4] = near | x[: COUNT // 4] & ~np.uint64(0xFFFFFFFF)
    x[COUNT // 4 : COUNT // 2] = chance.choice(SPECIAL, COUNT // 4)
    double = chance.normal(size=COUNT // 4) * 2.0 ** chance.integers(-160, 130, COUNT // 4)
    x[COUNT // 2 : 3 * COUNT // 4] = double.view(np.uint64)
    return x


def same_nan(found, width):
    kind = {4: np.float32, 8: np.float64}[width]
    numbers = found.astype(np.uint32 if width == 4 else np.uint64).view(kind)
    return np.where(np.isnan(numbers), NAN[width], found)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("flushing", [False, True])
def test_the_machine_and_this_processor_agree(compiled, flushing, tmp_path):
    host = on_host(tmp_path, *(["-DFLUSHED"] if flushing else []))
    count = COUNT if compiled else COUNT // 16  # numpy takes its time
    a, b, c = (np.ascontiguousarray(operands(seed)[:: COUNT // count]) for seed in range(3))
    floats, doubles, whole = (part.split() for part in host.names().decode().split("|"))
    names = [*floats, *doubles, *whole]
    here = np.zeros((len(names), count), np.uint64)
    host.operations(*(x.ctypes.data_as(ctypes.c_void_p) for x in (a, b, c, here)), count)
    there = torch.zeros(len(names), count, dtype=torch.int64)
    ptx = compile_cuda(SOURCE.read_text(), flags=["-ftz=true"] if flushing else [])
    assert (".ftz.f32" in ptx) == flushing
    kernel = Kernel(ptx, "operations", compiled=compiled)
    tensors = [torch.from_numpy(x.view(np.int64)) for x in (a, b, c)]
    kernel((count // 128,), (128,), 0, *tensors, there, count)
    there = there.numpy().view(np.uint64)
    for i, name in enumerate(names):
        if flushing and name in MOVED:
            continue
        width = 4 if name in floats else 8 if name in doubles else 0
        due, found = (same_nan(x[i], width) if width else x[i] for x in (here, there))
        wrong = np.flatnonzero(due != found)
        first = [f"{x[wrong[0]]:#x}" for x in (a, b, c, due, found)] if len(wrong) else []
        assert not len(wrong), f"{name}: {len(wrong)} of {count} differ; a, b, c, gcc's, the machine's: {first}"
