"""Python's search for garbage, put off while modules are imported: it would look through all that torch and diffusers
hold, again and again, and find none. That is a fifth of the seconds in which a command starts."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from fa_lib.waiting import is_command


@contextmanager
def put_off() -> Iterator[None]:
    """Nothing is searched inside. In a command, what is there at the end is left out of every later search; not in a
    program that imports fa_lib, where it may become garbage of that program's."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
        if is_command():
            gc.freeze()
