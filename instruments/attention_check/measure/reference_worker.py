"""Reference values that a second process computes while the kernel is called here.

It begins with the last task and this process with the first, so that each is computed once; the bits are the same. If
it ends, this process computes the rest itself.
"""

import importlib
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch

from fa_lib.execution import process_settings

NICE = 10  # the kernel that is judged goes first
EXAMINE = "attention_check.measure.examine"


class ReferenceWorker:
    """A process that computes tasks ahead; it begins to import when it is made.

    Args:
        forked: it has what this process has imported. That needs a process in which torch has computed nothing yet:
            torch's threads do not survive a fork, nor does its backward pass.
    """

    def __init__(self, forked: bool = False):
        before = {*multiprocessing.active_children()}
        self.futures: dict[tuple, Future | None] = {}
        self.pool = ProcessPoolExecutor(1, multiprocessing.get_context("fork" if forked else "spawn"), _begin)
        self.ready = self.submit(os.getpid)
        self.processes = {*multiprocessing.active_children()} - before

    def submit(self, fn: Callable, *given: Any) -> Future | None:
        """Compute fn(*given) after all that was asked for before; None: the process has ended."""
        with suppress(BrokenExecutor):
            return self.pool.submit(_pickled, fn, *given)

    def prefetch(self, tasks: Sequence[tuple]) -> None:
        """As `prefetch`. Earlier tasks that are not among them are dropped."""
        wanted = {*tasks}
        kept = {task: each for task, each in self.futures.items() if task in wanted or not (each and each.cancel())}
        self.futures = kept | {task: self.submit(*task) for task in reversed(tasks) if task not in kept}

    def close(self) -> None:
        """End the process."""
        for process in self.processes:
            process.kill()
        self.pool.shutdown(cancel_futures=True)


_WORKER: ContextVar[ReferenceWorker | None] = ContextVar("reference worker", default=None)


def compute(fn: Callable, *given: Any) -> Any:
    """Return fn(*given), computed here where no worker has begun with it."""
    worker = _WORKER.get()
    return _result(worker.futures.get((fn, *given)) if worker else None, fn, *given)


def begin(fn: Callable, *given: Any) -> Callable[[], Any]:
    """Have the worker, if there is one, compute fn(*given). Return a function that gives the result, as `compute`."""
    worker = _WORKER.get()
    return partial(_result, worker.submit(fn, *given) if worker else None, fn, *given)


def prefetch(tasks: Sequence[tuple]) -> None:
    """Have tasks computed by the worker, if there is one.

    Args:
        tasks: (fn, *given), each once, in the order in which `compute` will be asked for them; all of them values that
            pickle can send and a dict can have as keys.
    """
    if worker := _WORKER.get():
        worker.prefetch(tasks)


@contextmanager
def reference_worker(forked: bool = False) -> Iterator[ReferenceWorker | None]:
    """Inside there is a worker; where there is no second core there is none.

    It is for a command, whose process has torch's own settings: the worker does not know of others. Both compute on one
    thread (`calls.judged_by_one_thread`), so that their bits are the same.

    Args:
        forked: as of ReferenceWorker.
    """
    if os.name != "posix" or _cores() < 2:
        yield None
        return
    if forked:
        importlib.import_module(EXAMINE)
    worker = ReferenceWorker(forked)
    token = _WORKER.set(worker)
    try:
        yield worker
    finally:
        _WORKER.reset(token)
        worker.close()


def _begin():
    """Set the worker up: it ends with its parent, leaves Ctrl-C to it, has one thread, and imports what tasks need."""
    process_settings.end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICE)
    process_settings.keep_memory()
    torch.set_num_threads(1)
    importlib.import_module(EXAMINE)


def _result(future, fn, *given):
    try:
        return fn(*given) if future is None or future.cancel() else pickle.loads(future.result())
    except BrokenExecutor:
        return fn(*given)


def _pickled(fn, *given):
    """Pickle a result as bytes: torch would send its tensors as shared memory, which ends with the worker."""
    return pickle.dumps(fn(*given))


def _cores():
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
