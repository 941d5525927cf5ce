"""A process beside this one, for what a judgement needs and no kernel has a part in: golden values, Baseline's errors,
bounds, emulated kernels.

This process works from the front of a list and that one from its end, until they meet. Its results come over a socket
that has no name, and a thread takes them in: no other program has a way to it. If it ends, this process computes the
rest itself.
"""

import json
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import torch

from fa_lib.execution import process_settings
from fa_lib.execution.exit_with_parent import NAME, end_with_parent
from fa_lib.execution.pools import share

INSIDE = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from fa_lib.check.measure import examine, second_process  # examine: imported while there is no task yet
second_process.serve(int(sys.argv[2]))
"""


class _SecondProcess:
    """It begins to import when it is made."""

    def __init__(self):
        self.numbers: dict[tuple, int] = {}  # of tasks
        self.pickled: dict[int, bytes] = {}  # results
        self.socket, theirs = socket.socketpair()
        settings = {NAME: f"{os.getpid()}", "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", INSIDE, json.dumps(sys.path), f"{theirs.fileno()}"],
            pass_fds=[theirs.fileno()], env=process_settings.environment() | settings, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        theirs.close()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        with suppress(EOFError, OSError, pickle.UnpicklingError), self.socket.makefile("rb") as channel:
            while True:  # until it ends
                number, pickled = pickle.load(channel)
                self.pickled[number] = pickled

    def give(self, tasks: Sequence[tuple]) -> None:
        """All that there is to do, once."""
        self.numbers = {task: i for i, task in enumerate(tasks)}
        with suppress(OSError):
            self.socket.sendall(pickle.dumps(tasks))

    def result(self, fn: Callable, *given: Any) -> Any:
        """fn(*given), computed here if it is not there. The first that is there says that all behind it are, and so
        ends the process."""
        pickled = self.pickled.get(self.numbers.get((fn, *given), -1))
        if pickled is None:
            return fn(*given)
        self.process.kill()
        return pickle.loads(pickled)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.reader.join()
        self.socket.close()


_SECOND: ContextVar[_SecondProcess | None] = ContextVar("_SECOND", default=None)


@contextmanager
def second_process() -> Iterator[None]:
    """Inside, `compute_ahead` has a process to give tasks to; without a second core it has none."""
    if share() < 2 or os.name != "posix":
        yield
        return
    second = _SecondProcess()
    token = _SECOND.set(second)
    try:
        yield
    finally:
        _SECOND.reset(token)
        second.close()


def compute_ahead(tasks: Sequence[tuple]) -> None:
    """Give the second process, if there is one, its tasks.

    Args:
        tasks: (fn, *given), in the order in which `result` will be asked for them; all of them values that pickle can
            send and a dict can have as keys.
    """
    if second := _SECOND.get():
        second.give(tasks)


def result(fn: Callable, *given: Any) -> Any:
    """fn(*given), which the second process may have computed."""
    second = _SECOND.get()
    return second.result(fn, *given) if second else fn(*given)


def serve(descriptor: int) -> None:
    """In the second process: compute the tasks that come over a socket, the last first, and send each result."""
    end_with_parent()
    process_settings.keep_memory()
    torch.set_num_threads(1)
    with socket.socket(fileno=descriptor) as channel:
        with channel.makefile("rb") as tasks_from:
            tasks = pickle.load(tasks_from)
        for number in reversed(range(len(tasks))):
            fn, *given = tasks[number]
            channel.sendall(pickle.dumps((number, pickle.dumps(fn(*given)))))
