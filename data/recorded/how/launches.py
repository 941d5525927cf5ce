"""Launches of kernels, kept in files: what a kernel was given. A GPU can then be given the same, and so can the machine
again: `Launch.on_machine`, and `on_cuda` of cuda_driver.py."""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fa_lib.execution.files import replacing
from ptx_machine.launch import Kernel, Structure, three

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Launch:
    """A launch, without the addresses of this process.

    Attributes:
        ptx, entry: the text, and the kernel's name in it.
        grid, block: numbers of blocks, and of threads of a block. shared: bytes of dynamic shared memory.
        unwritten: as `Kernel.__call__` takes it.
        parameters: bytes of all parameters, uint8; pointers in them are 0.
        pointers: (where in parameters, which of memory, byte in it) for each pointer.
        memory: the bytes of each tensor that it was given, uint8, as they were before.
        dtypes: of each tensor, as torch writes it.
    """

    ptx: str
    entry: str
    grid: Triple
    block: Triple
    shared: int
    unwritten: int | None
    parameters: np.ndarray
    pointers: tuple[tuple[int, int, int], ...]
    memory: tuple[np.ndarray, ...]
    dtypes: tuple[str, ...]

    @property
    def digest(self) -> str:
        """A name: equal launches have equal ones."""
        total = hashlib.sha256(self._words().encode())
        for data in (self.parameters, *self.memory):
            total.update(len(data).to_bytes(8, "little") + data.tobytes())
        return total.hexdigest()[:16]

    def _words(self) -> str:
        kept = {key: value for key, value in asdict(self).items() if key not in ("ptx", "parameters", "memory")}
        return json.dumps(kept | dict(text=text_digest(self.ptx)), sort_keys=True)

    def save(self, folder: Path) -> Path:
        """Write <folder>/<digest>.npz, and the text beside it as <digest of the text>.ptx. Return the first."""
        text = folder / f"{text_digest(self.ptx)}.ptx"
        if not text.exists():
            with replacing(text) as path:
                path.write_text(self.ptx)
        arrays: dict[str, Any] = {f"memory{i}": data for i, data in enumerate(self.memory)}
        with replacing(folder / f"{self.digest}.npz") as path, open(path, "wb") as file:
            np.savez_compressed(file, words=np.array(self._words()), parameters=self.parameters, **arrays)
        return folder / f"{self.digest}.npz"

    @classmethod
    def load(cls, path: Path) -> "Launch":
        """Read a file of `save`."""
        with np.load(path) as file:
            words = json.loads(str(file["words"]))
            ptx = (path.parent / f"{words.pop('text')}.ptx").read_text()
            memory = tuple(file[f"memory{i}"] for i in range(len(words["dtypes"])))
            triples = {name: tuple(words.pop(name)) for name in ("grid", "block", "dtypes")}
            pointers = tuple(tuple(pointer) for pointer in words.pop("pointers"))
            return cls(ptx=ptx, parameters=file["parameters"], pointers=pointers, memory=memory, **triples, **words)

    def on_machine(self, gpu: str) -> list[np.ndarray]:
        """Run it on the machine in a GPU's arithmetic; return the bytes of memory afterwards."""
        tensors = [torch.from_numpy(data.copy()) for data in self.memory]
        kernel = _kernel(self.ptx, self.entry, gpu)
        arguments = []
        for each in kernel.entry.parameters:
            place = self.parameters[each.offset : each.offset + each.size]
            layout = {f"byte {i}": (i, 1) for i in np.flatnonzero(place).tolist()}
            values: dict[str, Any] = {name: int(place[i]) for name, (i, _) in layout.items()}
            for at, which, byte in self.pointers:
                if 0 <= at - each.offset < each.size:
                    layout[f"pointer {at}"], values[f"pointer {at}"] = (at - each.offset, 8), tensors[which][byte:]
            arguments.append(Structure(layout, each.size, values))
        kernel(self.grid, self.block, self.shared, *arguments, unwritten=self.unwritten)
        return [tensor.numpy() for tensor in tensors]


@contextmanager
def recording(folder: Path, wanted: Callable[[Launch], bool] = lambda launch: True) -> Iterator[list[str]]:
    """Write each launch inside the context that ends well into a folder; those of a machine that looks for races or
    whose instructions are off are left out, and those of a part of the grid.

    Args:
        folder: for `Launch.save`. wanted: which launches are written.

    Yields:
        list of digests, in order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    digests: list[str] = []
    run = Kernel.__call__

    def recorded(kernel, grid, block, shared, *arguments, blocks=None, unwritten=None, threads=None):
        plain = blocks is None and not kernel.races and kernel.gpu.wobble is None
        launch = _launch(kernel, grid, block, shared, arguments, unwritten) if plain else None
        done = run(kernel, grid, block, shared, *arguments, blocks=blocks, unwritten=unwritten, threads=threads)
        if launch is not None and wanted(launch):
            launch.save(folder)
            digests.append(launch.digest)
        return done

    Kernel.__call__ = recorded  # type: ignore[method-assign]
    try:
        yield digests
    finally:
        Kernel.__call__ = run


def text_digest(text: str) -> str:
    """A name of a PTX text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def _kernel(ptx: str, entry: str, gpu: str) -> Kernel:
    return Kernel(ptx, entry, gpu=gpu)


def _launch(kernel: Kernel, grid, block, shared: int, arguments, unwritten: int | None) -> Launch:
    data, spans = kernel._parameters(arguments)
    dtypes = {}
    for value in _values(arguments):
        if isinstance(value, Tensor):
            dtypes.setdefault(value.untyped_storage().data_ptr(), str(value.dtype).removeprefix("torch."))
    pointers, data = [], data.copy()
    for at in range(0, len(data) - 7, 8):
        address = int(data[at : at + 8].view(np.uint64)[0])
        for index, span in enumerate(spans):
            if span.base <= address <= span.end and address:
                pointers.append((at, index, address - span.base))
                data[at : at + 8] = 0
                break
    sizes = three(grid, "grid"), three(block, "block")
    memory = tuple(span.data.copy() for span in spans)
    kinds = tuple(dtypes.get(span.base, "uint8") for span in spans)
    name = kernel.entry.name
    return Launch(kernel.text, name, *sizes, shared, unwritten, data, tuple(pointers), memory, kinds)


def _values(arguments) -> Iterator[Any]:
    for value in arguments:
        yield from value.values.values() if isinstance(value, Structure) else (value,)
