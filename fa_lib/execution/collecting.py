"""Python's search for garbage, put off while modules are imported and code is compiled: it would look through all that
torch and diffusers hold, again and again, and find none. That is a fifth of the seconds in which a command starts."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from fa_lib.execution.environment import is_command


@contextmanager
def put_off() -> Iterator[None]:
    """Nothing is searched inside."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def in_commands() -> None:
    """In a command, leave what is there now out of every later search; not in a program that imports fa_lib, where it
    may become garbage of that program's."""
    if is_command():
        gc.freeze()
