"""Kernels of PTX on torch's CPU tensors: `Kernel`, `Structure`."""

import gc
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import product
from numbers import Integral
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from ptx_machine.arguments import Structure, as_bytes, fill
from ptx_machine.block import Block
from ptx_machine.device import GPU
from ptx_machine.fake_cuda import FAKED_GPU, UNWRITTEN_READS, WATCHED
from ptx_machine.lanes import WARP
from ptx_machine.memory import Global, Shared, Span, View
from ptx_machine.native.compiled import Native, Warps
from ptx_machine.operands import Addresses
from ptx_machine.program import ready
from ptx_machine.ptx import parse
from ptx_machine.races import Races
from ptx_machine.special_registers import Size
from ptx_machine.syntax import Entry, Instruction
from ptx_machine.warp import Code

DELAY_S = 5  # after which a launch shows its progress, on a terminal
GRID, BLOCK, THREADS = (2**31 - 1, 65535, 65535), (1024, 1024, 64), 1024  # the most of a launch, on every GPU
STATIC = 48 * 1024  # bytes of shared memory that a kernel's own variables may have: ptxas refuses more
LONGEST = 40  # characters of a name in the progress bar
OBSERVER: ContextVar[Callable[[Code, Addresses, GPU], Code] | None] = ContextVar("observer", default=None)
# of every launch: it gives the code that runs instead, in numpy, block after block


class Refused(ValueError):
    """No GPU launches a kernel with such sizes."""


@contextmanager
def _uncollected() -> Iterator[None]:
    """Leave garbage for later: of the objects that a kernel is read into, millions, none is."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


class Kernel:
    """A kernel of a PTX text, in the arithmetic of a GPU.

    Attributes:
        text: the PTX. entry: name, parameters and instructions of the kernel, as they are in the text.
        static: bytes of shared memory that its own variables have.
        variables: name -> bytes, uint8, of variables in global or constant memory. They keep what kernels write.
        ordered: whether the order of its blocks matters, because it has atomic operations on memory that they share.
    """

    @_uncollected()
    def __init__(
        self, ptx: str, entry: str | None = None, *, gpu: str | GPU | None = None, compiled: bool = True,
        races: bool = False, variables: dict[str, np.ndarray] | None = None,
    ):  # fmt: skip
        """
        Args:
            ptx: text, as nvcc -ptx and Triton write it.
            entry: the kernel's name, or a part of it that no other kernel's name has; None: the only kernel.
            gpu: a GPU, or its name; None: the GPU that the kernel is judged on, as by `check kernel --gpu`, else A100.
            compiled: whether compiled code runs the kernel; else numpy does everything, as the specification says.
            races: whether a race is a Fault: two accesses of shared memory by different warps that no barrier puts in
                order, one of them a write. numpy does everything then.
            variables: name -> bytes, uint8, of variables in global or constant memory that this kernel shares with
                others of its text; those that are not there are added. None: they are this kernel's own.

        Raises:
            ValueError: the text is no PTX, it has no such kernel, or the kernel has instructions that are not modelled.
        """
        self.entry, self.text = _one(parse(ptx), entry), ptx
        self.gpu, self._of_any = GPU.of(gpu or FAKED_GPU.get() or "A100"), gpu is None
        self._runs_beside = any(_beside(each) for each in self.entry.instructions)
        if races and self._runs_beside:
            got = "a kernel whose copies or products run beside its threads (TMA, wgmma, tcgen05)"
            raise ValueError(f"races: got {got}; accepted are others")
        self.variables, self._spans = variables if variables is not None else {}, []
        for each in self.entry.variables:
            if each.space in ("global", "const"):
                if each.name not in self.variables:
                    self.variables[each.name] = np.zeros(max(each.size or 0, 1), np.uint8)
                    if each.data:
                        self.variables[each.name][: len(each.data)] = np.frombuffer(each.data, np.uint8)
                data = self.variables[each.name]
                self._spans.append(Span(data.ctypes.data, data, each.name))
        self.races, self._compiled, self._machines = races, compiled and not races, {}
        self.code, _, self.native = self._machine(self.gpu)
        self.static = sum(each.size or 0 for each in self.entry.variables if each.space == "shared")
        if self.static > STATIC:
            got = f"got {self.static:,} bytes of static shared memory"
            raise ValueError(f"{self.entry.name}: {got}; accepted are {STATIC:,}")
        atomics = (each.words for each in self.code.instructions if each.name in ("atom", "red"))
        self.ordered = any("shared" not in words for words in atomics)

    @_uncollected()
    def _machine(self, gpu: GPU) -> tuple[Code, Addresses, Native | None]:
        """Make the kernel's code for a GPU, once."""
        if gpu not in self._machines:
            code, names = ready(self.entry, gpu, {span.name: span.base for span in self._spans})
            self._machines[gpu] = code, names, Native(code, names, gpu) if self._compiled else None
        return self._machines[gpu]

    def __call__(self, grid: Iterable[int], block: Iterable[int], shared: int, *arguments: Any, **options: Any) -> int:
        """Run the kernel. Tensors are read and written in place. Return how many instructions its warps executed.

        Args:
            grid, block: numbers of blocks, and of threads of a block, in x, y, z; missing ones are 1.
            shared: bytes of dynamic shared memory of a block.
            arguments: one for each parameter: tensors of any shape on the CPU, also where they pretend to be on a GPU,
                None (no pointer), numbers, Structures.
            options: of `launch`.

        Raises:
            ValueError: an argument does not fit, or no GPU of this kind launches it.
            Fault: the kernel does what it may not.
        """
        return self.launch(grid, block, shared, *self._parameters(arguments), **options)

    def launch(
        self, grid: Iterable[int], block: Iterable[int], shared: int, parameters: np.ndarray, spans: Iterable[Span], *,
        blocks: Iterable[Size] | None = None, unwritten: int | None = None, threads: int | None = None,
    ) -> int:  # fmt: skip
        """Run the kernel with the bytes of its parameters. Return how many instructions its warps executed.

        Args:
            grid, block, shared: as of a call. parameters: uint8 (size,), the bytes of all parameters.
            spans: the memory that the kernel may access.
            blocks: the blocks of the grid to run, in this order; None: all, x fastest.
            unwritten: the value of bytes of shared memory before they are written; None: reading them is a Fault.
            threads: number of threads of this process, each of which runs a block; None: as many as torch has. A
                kernel that is `ordered` runs in one thread.

        Raises:
            ValueError: no GPU of this kind launches it.
            Fault: the kernel does what it may not.
        """
        gpu = FAKED_GPU.get() or self.gpu
        if gpu != self.gpu and not self._of_any:
            raise ValueError(f"gpu: got a kernel for {self.gpu.name} on {gpu.name}; accepted is Kernel without a gpu")
        code, names, native = self._machine(gpu)
        grid, size, room = self._sizes(grid, block, shared, code.dynamic, gpu)
        unwritten_reads = UNWRITTEN_READS.get()
        outer, constants = Global([*spans, *self._spans], unwritten_reads is not None), Global(self._spans)

        observer, watched = OBSERVER.get(), WATCHED.get()  # of a launch: whether its races are looked for
        races = self.races or watched is not None and not self._runs_beside
        if watched is not None:
            watched.append(races)
        code = code if observer is None else observer(code, names, gpu)

        ended: list[Block] = []  # their memory and warps serve the next ones

        def run(number: Size) -> int:
            try:
                memory, warps = (before := ended.pop()).memory, before.compiled
                memory.shared.begin()
            except IndexError:  # other threads have them
                watch = Races(room, -(-int(np.prod(size)) // WARP)) if races and room else None
                memory = View(outer, Shared(room, unwritten, watch), parameters, constants)
                watching = observer is not None or watch is not None  # which numpy does
                warps = None if native is None or watching else Warps(native, memory, size, grid)
            block_run = Block(code, memory, number, grid, size, warps)
            with np.errstate(all="ignore"):
                block_run.run()
            if warps is not None:
                ended.append(block_run)
            if unwritten_reads is not None:
                for line, read in block_run.unwritten.items():
                    unwritten_reads.setdefault((self.entry.name, line), str(read))
            return block_run.steps

        every = ((x, y, z) for z, y, x in product(*(range(n) for n in reversed(grid))))
        numbers = [*(every if blocks is None else blocks)]
        count = 1 if self.ordered or observer is not None else min(threads or torch.get_num_threads(), len(numbers))
        title, looks = self.entry.name[:LONGEST], dict[str, Any](unit="block", delay=DELAY_S, leave=False, disable=None)
        return sum(tqdm(_each(run, numbers, count), title, len(numbers), **looks))

    def _sizes(self, grid, block, dynamic, static: int, gpu: GPU) -> tuple[Size, Size, int]:
        """Return the sizes of a launch, and the bytes of a block's shared memory.

        Raises:
            Refused: a GPU does not take them.
        """
        grid, size = three(grid, "grid", GRID), three(block, "block", BLOCK)
        threads = min(int(np.prod(self.entry.most)), THREADS) if self.entry.most else THREADS
        if np.prod(size) > threads:
            raise Refused(f"block: got {size}, {np.prod(size):,} threads; accepted are up to {threads:,}")
        most = gpu.shared_bytes - static
        if not isinstance(dynamic, (int, np.integer)) or not 0 <= dynamic <= most:
            accepted = f"0 to {most:,} bytes on {gpu.name}, where a block has {gpu.shared_bytes:,}"
            raise Refused(f"shared: got {dynamic!r}; accepted are {accepted}")
        return grid, size, static + int(dynamic)

    def _parameters(self, arguments: tuple) -> tuple[np.ndarray, list[Span]]:
        """Return the bytes of all parameters, uint8, and the memory that they point to."""
        parameters = self.entry.parameters
        if len(arguments) != len(parameters):
            accepted = f"the {len(parameters)} that {self.entry.name} takes"
            raise ValueError(f"arguments: got {len(arguments)}; accepted are {accepted}")
        data = np.zeros(self.entry.parameter_bytes, np.uint8)
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


def three(sizes: Iterable[int], name: str, most: Size = GRID) -> Size:
    """Return sizes in x, y, z; missing ones are 1.

    Raises:
        Refused: they are no one to three whole numbers from 1 to those of `most`.
    """
    got = (*sizes,) if isinstance(sizes, Iterable) else (sizes,)
    fit = 0 < len(got) <= 3 and all(isinstance(n, Integral) and 1 <= n <= limit for n, limit in zip(got, most))
    if not fit or isinstance(sizes, str) or not isinstance(sizes, Iterable):
        limits = ", ".join(f"{limit:,}" for limit in most)
        raise Refused(f"{name}: got {sizes!r}; accepted are one to three whole numbers from 1, up to {limits}")
    x, y, z = (*map(int, got), 1, 1)[:3]
    return x, y, z
