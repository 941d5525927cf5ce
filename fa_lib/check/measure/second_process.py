"""A process beside this one, for what a judgement needs and no kernel has a part in: golden values, Baseline's errors,
bounds, emulated kernels.

This process works from the front of a list and that one from its end, until they meet. What that one has computed lies
in a file without a name, which no other program finds; if it ends, this process computes the rest itself.
"""

import json
import os
import pickle
import struct
import subprocess
import sys
import tempfile
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
second_process.serve(*map(int, sys.argv[2:]))
"""
DONE = struct.Struct("<3q")  # a task's number, where its result begins in the file, and its bytes


class _SecondProcess:
    """It begins to import when it is made."""

    def __init__(self):
        self.numbers: dict[tuple, int] = {}
        self.done: dict[int, tuple[int, int]] = {}
        self.results = tempfile.TemporaryFile()  # noqa: SIM115 it is closed with the process
        self.told, telling = os.pipe()
        os.set_blocking(self.told, False)
        descriptors = (self.results.fileno(), telling)
        settings = {NAME: f"{os.getpid()}", "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", INSIDE, json.dumps(sys.path), *map(str, descriptors)], pass_fds=descriptors,
            env=process_settings.environment() | settings, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(telling)

    def give(self, tasks: Sequence[tuple]) -> None:
        """All that there is to do, once."""
        assert self.process.stdin is not None
        self.numbers = {task: i for i, task in enumerate(tasks)}
        with suppress(BrokenPipeError), self.process.stdin as channel:
            pickle.dump(tasks, channel)

    def result(self, fn: Callable, *given: Any) -> Any:
        """fn(*given), computed here if it is not there. The first that is there says that all behind it are, and so
        ends the process."""
        number = self.numbers.get((fn, *given))
        with suppress(BlockingIOError):
            while told := os.read(self.told, DONE.size):
                i, *where = DONE.unpack(told)
                self.done[i] = (where[0], where[1])
        if number not in self.done:
            return fn(*given)
        self.process.kill()
        start, size = self.done[number]
        return pickle.loads(os.pread(self.results.fileno(), size, start))

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self.told)
        self.results.close()


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


def serve(results: int, telling: int) -> None:
    """In the second process: compute the tasks that come, the last first. results: descriptor of the file; telling: of
    the pipe that says what it holds."""
    end_with_parent()
    process_settings.keep_memory()
    torch.set_num_threads(1)
    tasks = pickle.load(sys.stdin.buffer)
    with open(results, "wb", closefd=False) as file:
        for number in reversed(range(len(tasks))):
            fn, *given = tasks[number]
            start = file.tell()
            pickle.dump(fn(*given), file)
            file.flush()
            os.write(telling, DONE.pack(number, start, file.tell() - start))
