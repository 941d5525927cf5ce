"""The environment of commands and of the processes that they start.

Threads of OpenMP, torch's among them, sleep while they wait. By default they spin on a core: half of a report's CPU
seconds, and two processes on the same cores run up to 20 times slower than one after the other.

oneDNN leaves AMX alone where ATEN_CPU_CAPABILITY asks torch for code below AVX512. Otherwise torch's flash kernel
refuses BF16 there: it packs K and V for AMX wherever oneDNN finds it, and its packing exists in AVX512 code alone.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}
WITHOUT_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}  # the last instruction set before AMX
OLDER_CODE = ("avx2", "default")  # of ATEN_CPU_CAPABILITY


def environment() -> dict[str, str]:
    """The variables of a process to be started: this one's, and PASSIVE and `without_amx` unless the reader has set
    them otherwise."""
    return PASSIVE | without_amx() | os.environ


def without_amx(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """WITHOUT_AMX where an environment, None is this process's, asks torch for OLDER_CODE; else nothing."""
    environ = os.environ if environ is None else environ
    return WITHOUT_AMX if environ.get("ATEN_CPU_CAPABILITY", "").lower() in OLDER_CODE else {}


def is_command() -> bool:
    """Whether this process is the command `fa-lib` or `python -m fa_lib`, and not a program that imports fa_lib."""
    name = sys.argv[0] if sys.argv else ""  # "-m" while the package of python -m is imported
    return Path(name).stem == "fa-lib" or (name == "-m" and "fa_lib" in sys.orig_argv)


def in_commands() -> None:
    """Set `environment` for this process and those that it starts, if it is a command; a program that imports fa_lib
    keeps its own. OpenMP reads it when torch is imported: later it has no effect."""
    if is_command():
        os.environ.update(environment())
