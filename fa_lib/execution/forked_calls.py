"""Calls, each in its own process: one that crashes, hangs or changes its process leaves the others alone. On Linux all
are forked from one process that has imported the function's module, so the seconds of its imports are spent once."""

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any


@dataclass
class EndedCall:
    """How a call ended.

    Attributes:
        argument: the call's.
        code: the exit status of its process: 1 after an exception, -n after signal n; None: it ran out of time.
        printed: all that it printed, and its traceback.
    """

    argument: Any
    code: int | None
    printed: str


@dataclass
class _Running:
    argument: Any
    process: BaseProcess
    printed: Path
    deadline: float  # of time.monotonic


def call_each(
    fn: Callable[[Any], object], arguments: Iterable, jobs: int, timeout: float, environment: Mapping[str, str]
) -> Iterator[EndedCall]:  # fmt: skip
    """Call fn(argument) for each argument, several at a time. When the iterator ends, by an error or Ctrl-C too, the
    calls that still run are ended, with the processes that they started.

    Args:
        fn: a function that pickle can send; importing its module must leave no thread behind.
        arguments: values that pickle can send.
        jobs: calls at a time. timeout: seconds that a call may take.
        environment: variables of these processes, set before fn is called; before its module is imported only for the
            first forkserver of this process.

    Yields:
        each call once it has ended.
    """
    if sys.platform == "linux":
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([getattr(fn, "func", fn).__module__])  # of a partial, its function's
    else:
        context = multiprocessing.get_context("spawn")
    waiting, running = list(arguments), {}
    with tempfile.TemporaryDirectory(prefix="fa_lib-calls-") as folder:
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    argument, printed = waiting.pop(0), Path(folder) / f"{len(waiting)}.txt"
                    process = context.Process(target=_call, args=(fn, argument, printed, dict(environment)))
                    with _environment(environment):  # the forkserver begins here, if there is none
                        process.start()
                    running[process.sentinel] = _Running(argument, process, printed, time.monotonic() + timeout)
                first = min(each.deadline for each in running.values())
                for sentinel in connection.wait([*running], max(0, first - time.monotonic())):
                    yield _end(running.pop(sentinel))
                for sentinel, each in [*running.items()]:
                    if each.deadline <= time.monotonic():
                        yield _end(running.pop(sentinel), late=True)
        finally:
            for each in running.values():
                _end(each, late=True)


def _end(call, late=False):
    """Kill what the call has left running, and return how it ended."""
    with suppress(ProcessLookupError, PermissionError):  # it may not have a group of its own yet
        os.killpg(call.process.pid, signal.SIGKILL)
    call.process.kill()
    call.process.join()
    printed = call.printed.read_text(errors="backslashreplace") if call.printed.exists() else ""
    return EndedCall(call.argument, None if late else call.process.exitcode, printed)


def _call(fn, argument, printed, environment):
    """Run a call in its process."""
    os.setsid()  # a group of its own, with what it starts
    os.environ.update(environment)
    threading.Thread(target=_follow, daemon=True).start()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    out = os.open(printed, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for target in (1, 2):
        os.dup2(out, target)
    fn(argument)


def _follow():
    """End the group of this process with its parent."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.killpg(0, signal.SIGKILL)


@contextmanager
def _environment(variables):
    """Set variables of this process, which its processes inherit, until the block ends."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
