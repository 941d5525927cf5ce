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
from typing import Any

import torch

from fa_lib.execution import process_settings

NICE = 10  # the kernel that is judged goes first
TASKS_OF = "attention_check.measure.examine"  # imports what tasks need


class ReferenceWorker:
    """A process that computes tasks ahead. futures: task -> what it has computed, or will."""

    def __init__(self):
        before = {*multiprocessing.active_children()}
        self.futures: dict[tuple, Future] = {}
        self.pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin)
        self.pool.submit(os.getpid)  # it begins now
        self.processes = {*multiprocessing.active_children()} - before

    def close(self) -> None:
        """End the process."""
        for process in self.processes:
            process.kill()
        self.pool.shutdown(cancel_futures=True)


_WORKER: ContextVar[ReferenceWorker | None] = ContextVar("reference worker", default=None)


def compute(fn: Callable, *given: Any) -> Any:
    """Return fn(*given), computed here where no worker has begun with it."""
    worker = _WORKER.get()
    future = worker.futures.get((fn, *given)) if worker else None
    try:
        return fn(*given) if future is None or future.cancel() else pickle.loads(future.result())
    except BrokenExecutor:
        return fn(*given)


def prefetch(tasks: Sequence[tuple]) -> None:
    """Have tasks computed by the worker, if there is one.

    Args:
        tasks: (fn, *given), in the order in which `compute` will be asked for them; all of them values that pickle can
            send and a dict can have as keys.
    """
    if worker := _WORKER.get():
        with suppress(BrokenExecutor):
            for task in reversed([task for task in tasks if task not in worker.futures]):
                worker.futures[task] = worker.pool.submit(_pickled, *task)


@contextmanager
def reference_worker() -> Iterator[ReferenceWorker | None]:
    """Inside there is a worker; where there is no second core there is none.

    It is for a command, whose process has torch's own settings: the worker does not know of others. Both compute on one
    thread (`calls.judged_by_one_thread`), so that their bits are the same.
    """
    if os.name != "posix" or _cores() < 2:
        yield None
        return
    worker = ReferenceWorker()
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
    importlib.import_module(TASKS_OF)


def _pickled(fn, *given):
    """Pickle a result as bytes: torch would send its tensors as shared memory, which ends with the worker."""
    return pickle.dumps(fn(*given))


def _cores():
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
