"""How the threads of OpenMP wait, torch's among them: asleep. By default they spin on a core while they wait: half of a
report's CPU seconds, and two processes on the same cores run up to 20 times slower than one after the other."""

import os
import sys
from pathlib import Path

PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}


def environment() -> dict[str, str]:
    """Of a process to be started: this one's, with threads that sleep unless the reader has set it otherwise."""
    return PASSIVE | os.environ


def is_command() -> bool:
    """Whether this process is the command `fa-lib` or `python -m fa_lib`, and not a program that imports fa_lib."""
    name = sys.argv[0] if sys.argv else ""  # "-m" while the package of python -m is imported
    return Path(name).stem == "fa-lib" or (name == "-m" and "fa_lib" in sys.orig_argv)


def in_commands() -> None:
    """Set it for this process and those that it starts, if it is a command; a program that imports fa_lib keeps its
    own. OpenMP reads it when torch is imported: later it has no effect."""
    if is_command():
        os.environ.update(environment())
