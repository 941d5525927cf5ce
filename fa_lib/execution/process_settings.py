"""Settings of the processes that commands run in, and start: threads, memory, and Python's search for garbage.

Threads of OpenMP, torch's among them, sleep while they wait. By default they spin on a core: half of a report's CPU
seconds, and two processes on the same cores run up to 20 times slower than one after the other.

oneDNN leaves AMX alone where ATEN_CPU_CAPABILITY asks torch for code below AVX512. Otherwise torch's flash kernel
refuses BF16 there: it packs K and V for AMX wherever oneDNN finds it, and its packing exists in AVX512 code alone.

Memory that is freed stays with the process. By default glibc gives every large block back to the system, which has to
fill each new one with zeros: a sixth of the time in which a kernel is judged. Between blocks that stay in use it lies
in pieces, which `give_back` returns to the system: to explain a wrong kernel's answers took 5 GB without it.

Python's search for garbage begins less often. While torch and diffusers are imported it would look through all that
they hold, again and again, and find none: a fifth of the seconds in which a command starts.
"""

import ctypes
import gc
import os
from contextlib import suppress

PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}
WITHOUT_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}  # the last instruction set before AMX
OLDER_CODE = ("avx2", "default")  # of ATEN_CPU_CAPABILITY
TRIM_THRESHOLD, MMAP_MAX = -1, -4  # of malloc.h
NEVER = 2**31 - 1  # bytes: of so many free ones some would be given back
KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": f"{NEVER}"}  # `keep_memory` of a process to be started
NO_GLIBC = AttributeError, OSError, TypeError
BETWEEN_SEARCHES = 50_000  # objects that were made and are still there; Python's own number is 700


def environment() -> dict[str, str]:
    """Return the variables for a process to be started: this one's, and where the reader has set nothing else PASSIVE,
    and WITHOUT_AMX where torch is asked for OLDER_CODE."""
    older = os.environ.get("ATEN_CPU_CAPABILITY", "").lower() in OLDER_CODE
    return PASSIVE | (WITHOUT_AMX if older else {}) | os.environ


def prepare() -> None:
    """Set up a command's process. It comes before torch is imported, because OpenMP reads its environment only then. A
    program that imports fa_lib keeps its own settings."""
    os.environ.update(environment())
    keep_memory()
    gc.set_threshold(BETWEEN_SEARCHES, *gc.get_threshold()[1:])


def keep_memory() -> None:
    """Let this process keep the memory that it frees; nothing happens where the C library is not glibc."""
    with suppress(*NO_GLIBC):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(MMAP_MAX, 0)
        mallopt(TRIM_THRESHOLD, NEVER)


def give_back() -> None:
    """Return the memory that this process keeps and does not use; nothing happens where the C library is not glibc."""
    with suppress(*NO_GLIBC):
        ctypes.CDLL(None).malloc_trim(0)
