"""How many blocks of a kernel a multiprocessor holds at once, by the registers and shared memory that it needs."""

import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from ptx_machine.device import GPU
from ptx_machine.folders import build, digest, stored
from ptx_machine.lanes import WARP
from ptx_machine.nvcc import toolkit

REGISTERS, PARTS = 65536, 4  # of a multiprocessor; each of its parts has a quarter of them
GRAIN, SHARED_GRAIN = 256, 128  # registers that a warp, and bytes of shared memory that a block gets at a time
RESERVED = 1024  # bytes of shared memory that CUDA takes for each block
MOST = {80: (64, 32), 89: (48, 24), 90: (64, 32), 100: (64, 32)}  # warps and blocks, by compute capability


def occupancy(ptx: str, entry: str, threads: int, dynamic: int, gpu: GPU, assembled_for: int | None = None) -> int:
    """Compute what cudaOccupancyMaxActiveBlocksPerMultiprocessor returns.

    Args:
        ptx: the text. entry: the full name of a kernel in it.
        threads: of a block. dynamic: bytes of dynamic shared memory of a block. gpu: whose multiprocessor.
        assembled_for: compute capability that ptxas assembles for; None is the GPU's.

    Raises:
        RuntimeError: ptxas does not assemble the text.
    """
    registers, static = resources(ptx, entry, assembled_for or gpu.capability)
    (warps, blocks), of_block = MOST[gpu.capability], -(-threads // WARP)
    of_warp = -(-registers * WARP // GRAIN) * GRAIN
    by_registers = PARTS * (REGISTERS // PARTS // of_warp) // of_block
    of_shared = -(-(static + dynamic + RESERVED) // SHARED_GRAIN) * SHARED_GRAIN
    by_shared = (gpu.shared_bytes + RESERVED) // of_shared
    return min(blocks, warps // of_block, by_registers, by_shared)


@cache
def resources(ptx: str, entry: str, capability: int) -> tuple[int, int]:
    """Ask ptxas, or the file of its earlier answer: registers of a thread, bytes of static shared memory of a block.

    Raises:
        RuntimeError: ptxas does not assemble the text, or names no number of registers.
    """

    def asked(answer: Path) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            (Path(temporary) / "kernel.ptx").write_text(ptx)
            program = toolkit() / "bin" / "ptxas"
            arch = f"sm_{capability}a" if f".target sm_{capability}a" in ptx else f"sm_{capability}"
            command = [f"{program}", f"-arch={arch}", "-v", f"--entry={entry}", "kernel.ptx", "-o", "cubin"]
            process = subprocess.run(command, cwd=temporary, capture_output=True, text=True)
        if process.returncode:
            raise RuntimeError(f"ptxas: {process.stderr.strip()}")
        answer.write_text(process.stderr + process.stdout)

    words = stored(build() / "ptx" / f"{digest(ptx, entry, f'{capability}')}.ptxas", asked).read_text()
    registers, shared = re.search(r"Used (\d+) registers", words), re.search(r"(\d+) bytes smem", words)
    if registers is None:
        raise RuntimeError(f"ptxas tells no number of registers: {words.strip()}")
    return int(registers[1]), int(shared[1]) if shared else 0
