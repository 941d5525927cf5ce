"""A process beside this one, for what a judgement needs and no kernel has a part in: golden values, Baseline's errors,
bounds, emulated kernels.

This process works from the front of a list and that one from its end, until they meet. Its results come over a pair of
sockets, which no other program can open, and a thread takes them in. If it ends, this process computes the rest itself.
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

INSIDE = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from attention_check.measure import examine, second_process  # examine: imported while there is no task yet
second_process.serve()
"""
NICE = 10  # the kernel that is judged goes first


class _SecondProcess:
    """It begins to import when it is made."""

    def __init__(self):
        self.numbers: dict[tuple, int] = {}  # of the tasks
        self.results: list[bytes] = []  # of the tasks, the last first; pickled
        self.socket, theirs = socket.socketpair()
        settings = {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", INSIDE, json.dumps(sys.path)], stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=process_settings.environment() | settings,
        )  # fmt: skip
        theirs.close()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        with suppress(EOFError, OSError, pickle.UnpicklingError), self.socket.makefile("rb") as channel:
            while True:  # until it ends
                self.results.append(pickle.load(channel))

    def give(self, tasks: Sequence[tuple]) -> None:
        """Send all tasks, each once; there is no second list."""
        assert not self.numbers
        self.numbers = {task: i for i, task in enumerate(tasks)}
        with suppress(OSError):
            self.socket.sendall(pickle.dumps(tasks))

    def result(self, fn: Callable, *given: Any) -> Any:
        """fn(*given), computed here if it is not there. Results come from the end of the list on: where one is there,
        those of all later tasks are, and the process has done its part."""
        number = self.numbers.get((fn, *given))
        if number is None or number < len(self.numbers) - len(self.results):
            return fn(*given)
        self.process.kill()
        return pickle.loads(self.results[len(self.numbers) - 1 - number])

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.reader.join()
        self.socket.close()


_SECOND: ContextVar[_SecondProcess | None] = ContextVar("_SECOND", default=None)


@contextmanager
def second_process() -> Iterator[None]:
    """Inside, `compute_ahead` has a process to give tasks to; where there is no second core it has none.

    It is for a command, whose process has torch's own settings: the second process does not know of others. Both
    compute on one thread (`calls.judged_by_one_thread`), so that their bits are the same.
    """
    if _cores() < 2 or os.name != "posix":
        yield
        return
    second = _SecondProcess()
    token = _SECOND.set(second)
    try:
        yield
    finally:
        _SECOND.reset(token)
        second.close()


def _cores():
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compute_ahead(tasks: Sequence[tuple]) -> None:
    """Give the second process, if there is one, its tasks.

    Args:
        tasks: (fn, *given), each once, in the order in which `result` will be asked for them; all of them values that
            pickle can send and a dict can have as keys.
    """
    if second := _SECOND.get():
        second.give(tasks)


def result(fn: Callable, *given: Any) -> Any:
    """fn(*given), which the second process may have computed."""
    second = _SECOND.get()
    return second.result(fn, *given) if second else fn(*given)


def serve() -> None:
    """In the second process, whose standard input is its socket: compute the tasks that come, the last first."""
    os.nice(NICE)
    process_settings.keep_memory()
    torch.set_num_threads(1)
    with socket.socket(fileno=0) as channel:
        with channel.makefile("rb") as orders:
            tasks = pickle.load(orders)
        for fn, *given in reversed(tasks):
            channel.sendall(pickle.dumps(pickle.dumps(fn(*given))))
