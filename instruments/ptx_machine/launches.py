"""What the kernels of this process launched, and what a GPU would refuse or a tool for GPUs would report: `taken`."""

import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ptx_machine.device import GPU
from ptx_machine.memory import Trouble
from ptx_machine.occupancy import occupancy, resources

if TYPE_CHECKING:
    from ptx_machine.launch import Kernel

MOST = 20_000  # instructions of a kernel for which ptxas takes seconds
LONGEST = 120  # characters of a name


@dataclass
class Launches:
    """The launches of a kernel since `taken` was called.

    Attributes:
        count: of those that a GPU does not refuse. grid: the one with the most blocks.
        block, dynamic: threads, and bytes of dynamic shared memory, of the one that needs the most shared memory.
        found: Trouble -> where, or why; "": it was looked for, and not found.
    """

    kernel: "Kernel"
    gpu: GPU
    count: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic: int
    found: dict[Trouble, str]

    def has(self, trouble: Trouble, where: str) -> None:
        """Note the first place of a trouble."""
        self.found[trouble] = self.found.get(trouble) or where or "yes"

    def record(self) -> dict[str, Any]:
        """All of it as JSON can hold it, with what ptxas says: registers of a thread, blocks of a multiprocessor."""
        kernel, gpu, registers, resident = self.kernel, self.gpu, None, None
        if len(kernel.entry.instructions) <= MOST and self.count:
            try:
                of, threads = (kernel.text, kernel.entry.name), self.block[0] * self.block[1] * self.block[2]
                registers = resources(*of, gpu.capability)[0]
                resident = occupancy(*of, threads, self.dynamic, gpu)
            except (FileNotFoundError, RuntimeError):  # there is no ptxas, or none for this text
                pass
        found = {trouble.value: self.found.get(trouble) for trouble in Trouble}
        return dict(
            kernel=readable(kernel.entry.name), launches=self.count, grid=self.grid, block=self.block,
            static=kernel.static, dynamic=self.dynamic, limit=gpu.shared_bytes, registers=registers, resident=resident,
        ) | found  # fmt: skip


_SEEN: dict[tuple[str, str], Launches] = {}  # of a kernel's name and a GPU's


def of(kernel: "Kernel", gpu: GPU) -> Launches:
    """Return the launches of a kernel, to be added to."""
    new = Launches(kernel, gpu, 0, (0, 0, 0), (0, 0, 0), 0, dict.fromkeys((Trouble.LAUNCH, Trouble.ACCESS), ""))
    return _SEEN.setdefault((kernel.entry.name, gpu.name), new)


def launched(kernel: "Kernel", gpu: GPU, grid, block, dynamic: int, watched: Iterable[Trouble]) -> Launches:
    """Note a launch, and what is looked for in it."""
    seen = of(kernel, gpu)
    seen.found = dict.fromkeys(watched, "") | seen.found
    seen.count += 1
    seen.grid = max(seen.grid, grid, key=_size)
    if (dynamic, _size(block)) >= (seen.dynamic, _size(seen.block)):
        seen.kernel, seen.block, seen.dynamic = kernel, block, dynamic
    return seen


def taken() -> list[dict[str, Any]]:
    """Return a record of each kernel that was launched since the last call."""
    records = [each.record() for each in _SEEN.values()]
    _SEEN.clear()
    return records


def _size(sizes):
    return sizes[0] * sizes[1] * sizes[2]


@cache
def readable(name: str) -> str:
    """Return the name that a kernel has in its source, with its templates' arguments, but not with theirs."""
    if name.startswith("_Z") and shutil.which("c++filt"):  # of binutils, which comes with g++
        name = subprocess.run(["c++filt", "-p", name], capture_output=True, text=True, check=True).stdout.strip()
        while (shorter := re.sub(r"(<[^<>]*)<[^<>]*>", r"\1", name)) != name:
            name = shorter
    return re.sub(r"_GLOBAL__N__\w+::", "", name.removeprefix("void "))[:LONGEST]  # of no namespace with a name
