"""Kernels of PTX on torch's CPU tensors: `Kernel`, `Structure`."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from fa_lib.gpu.arguments import Structure, as_bytes, fill
from fa_lib.gpu.block import Block
from fa_lib.gpu.device import GPU
from fa_lib.gpu.lanes import WARP
from fa_lib.gpu.memory import Global, Shared, Span, View
from fa_lib.gpu.native.compiled import Native, Warps
from fa_lib.gpu.operands import Addresses
from fa_lib.gpu.program import ready
from fa_lib.gpu.ptx import parse
from fa_lib.gpu.races import Races
from fa_lib.gpu.specials import Size
from fa_lib.gpu.syntax import Entry, Instruction
from fa_lib.gpu.warp import Code

DELAY_S = 5  # after which a launch shows its progress, on a terminal
LONGEST = 40  # characters of a name in the progress bar
OBSERVER: ContextVar[Callable[[Code, Addresses, GPU], Code] | None] = ContextVar("observer", default=None)
# of every launch: it gives the code that runs instead, in numpy, block after block


@dataclass
class Done:
    """Counts of a launch: the instructions that its warps executed, and the blocks that ran."""

    instructions: int = 0
    blocks: int = 0


class Kernel:
    """A kernel of a PTX text, in the arithmetic of a GPU.

    Attributes:
        text: the PTX.
        entry: name, parameters and instructions of the kernel, as they are in the text.
        ordered: whether the order of its blocks matters, because it has atomic operations on memory that they share.
    """

    def __init__(
        self, ptx: str, entry: str | None = None, *, gpu: str | GPU = "A100", compiled: bool = True, races: bool = False
    ):
        """
        Args:
            ptx: text, as nvcc -ptx and Triton write it.
            entry: the kernel's name, or a part of it that no other kernel's name has; None: the only kernel.
            gpu: a GPU, or its name.
            compiled: whether compiled code runs the kernel; else numpy does everything, as the specification says.
            races: whether a race is a Fault: two accesses of shared memory by different warps that no barrier puts in
                order, one of them a write. numpy does everything then.

        Raises:
            ValueError: the text is no PTX, it has no such kernel, or the kernel has instructions that are not modelled.
        """
        self.text, module = ptx, parse(ptx)
        self.entry = _one(module.entries, entry)
        self.gpu = GPU.of(gpu)
        if races and any(_beside(each) for each in self.entry.instructions):
            got = "a kernel whose copies or products run beside its threads (TMA, wgmma, tcgen05)"
            raise ValueError(f"races: got {got}; accepted are others")
        self._variables = [each for each in self.entry.variables if each.space in ("global", "const")]
        self._data = {each.name: np.zeros(max(each.size or 0, 1), np.uint8) for each in self._variables}
        for variable in self._variables:
            if variable.data:
                self._data[variable.name][: len(variable.data)] = np.frombuffer(variable.data, np.uint8)
        self._spans = [Span(data.ctypes.data, data, name) for name, data in self._data.items()]
        self.code, self._names = ready(self.entry, self.gpu, {span.name: span.base for span in self._spans})
        self.races, self.native = races, Native(self.code, self._names, self.gpu) if compiled and not races else None
        self.ordered = any(
            each.name in ("atom", "red") and "shared" not in each.words for each in self.code.instructions
        )

    def variable(self, name: str) -> np.ndarray:
        """Return the bytes of a variable of the module, in global or constant memory, uint8 (size,). They keep what
        kernels write.

        Raises:
            ValueError: there is no such variable.
        """
        if name not in self._data:
            raise ValueError(
                f"name: got {name!r}; accepted are {', '.join(self._data) or 'none: there is no variable'}"
            )
        return self._data[name]

    def __call__(
        self,
        grid: Iterable[int],
        block: Iterable[int],
        shared: int,
        *arguments: Any,
        blocks: Iterable[Size] | None = None,
        unwritten: int | None = None,
        threads: int | None = None,
    ) -> Done:
        """Run the kernel. Tensors are read and written in place.

        Args:
            grid, block: numbers of blocks, and of threads of a block, in x, y, z; missing ones are 1.
            shared: bytes of dynamic shared memory of a block.
            arguments: one for each parameter: tensors of any shape on the CPU, None (no pointer), numbers, Structures.
            blocks: the blocks of the grid to run, in this order; None: all, x fastest.
            unwritten: the value of bytes of shared memory before they are written; None: reading them is a Fault.
            threads: number of threads of this process, each of which runs a block; None: as many as torch has. A
                kernel that is `ordered` runs in one thread.

        Raises:
            ValueError: an argument does not fit.
            Fault: the kernel does what it may not.
        """
        grid, size = three(grid, "grid"), three(block, "block")
        parameters, spans = self._parameters(arguments)
        outer, constants = Global([*spans, *self._spans]), Global(self._spans)

        observer = OBSERVER.get()
        code = self.code if observer is None else observer(self.code, self._names, self.gpu)

        def run(number: Size) -> int:
            watch = Races(self.code.dynamic + shared, -(-int(np.prod(size)) // WARP)) if self.races else None
            memory = View(outer, Shared(self.code.dynamic + shared, unwritten, watch), parameters, constants)
            begin = None
            if self.native is not None and observer is None:
                begin = partial(Warps, self.native, memory)
            block_run = Block(code, memory, number, grid, size, begin)
            with np.errstate(all="ignore"):
                block_run.run()
            return block_run.steps

        if blocks is None:
            blocks = [(x, y, z) for z, y, x in product(*(range(n) for n in reversed(grid)))]
        numbers = [*blocks]
        count = 1 if self.ordered or observer is not None else min(threads or torch.get_num_threads(), len(numbers))
        steps = tqdm(
            _each(run, numbers, count),
            self.entry.name[:LONGEST],
            len(numbers),
            unit="block",
            delay=DELAY_S,
            leave=False,
            disable=None,
        )
        return Done(sum(steps), len(numbers))

    def _parameters(self, arguments: tuple) -> tuple[np.ndarray, list[Span]]:
        """Return the bytes of all parameters, uint8, and the memory that they point to."""
        parameters = self.entry.parameters
        if len(arguments) != len(parameters):
            accepted = f"the {len(parameters)} that {self.entry.name} takes"
            raise ValueError(f"arguments: got {len(arguments)}; accepted are {accepted}")
        data = np.zeros(max((p.offset + p.size for p in parameters), default=0), np.uint8)
        storages: dict[int, Span] = {}
        for index, (parameter, value) in enumerate(zip(parameters, arguments)):
            place = data[parameter.offset : parameter.offset + parameter.size]
            if isinstance(value, Structure):
                fill(place, value, index, storages)
            else:
                place[:] = np.frombuffer(as_bytes(value, parameter, f"argument {index}", storages), np.uint8)
        return data, [*storages.values()]


def _beside(instruction: Instruction) -> bool:
    """Whether an instruction begins what runs beside the threads."""
    return instruction.name in ("wgmma", "tcgen05") or instruction.words[:3] == ("cp", "async", "bulk")


def _each(run: Callable[[Size], int], numbers: list[Size], threads: int) -> Iterator[int]:
    """Yield run(number) for each number, in their order."""
    if threads <= 1:
        yield from map(run, numbers)
        return
    with ThreadPoolExecutor(threads) as pool:
        try:
            yield from pool.map(run, numbers)
        finally:  # of a Fault or Ctrl-C: those that have not begun do not
            pool.shutdown(wait=False, cancel_futures=True)


def _one(entries: dict[str, Entry], name: str | None) -> Entry:
    matches = [entry for entry in entries.values() if name is None or name in entry.name]
    exact = [entry for entry in matches if entry.name == name]
    if len(exact or matches) != 1:
        names = ", ".join(entries) or "none: the text has no kernel"
        raise ValueError(f"entry: got {name!r}; accepted is one of {names}")
    return (exact or matches)[0]


def three(sizes: Iterable[int], name: str) -> Size:
    """Return sizes in x, y, z; missing ones are 1.

    Raises:
        ValueError: they are no one to three whole numbers from 1.
    """
    x, y, z, *more = (*sizes, 1, 1, 1)
    if len(more) > 3 or min(x, y, z) < 1:
        raise ValueError(f"{name}: got {(*sizes,)}; accepted are one to three whole numbers from 1")
    return x, y, z
