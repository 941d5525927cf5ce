"""Executors for `sweep`: processes of this machine, or the jobs of a cluster."""

import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache

import torch

from fa_lib.execution import process_settings
from fa_lib.execution.paths import PACKAGE


@contextmanager
def workers(count: int | str) -> Iterator[Executor | None]:
    """Yield an executor for `sweep`.

    On Linux the processes are forked from a server that has imported what this process had imported when it began its
    first pool; they have the environment of that moment, and of torch one thread, since others do not survive a fork.
    Elsewhere they are spawned, and each imports anew.

    When it is left, the calls that still run are ended.

    Args:
        count: a number of processes, each with torch on one thread; 0: no executor, None, and `sweep` works in this
            process; "slurm": the jobs of a cluster (docs/operate/cluster.md).

    Raises:
        ValueError: count is something else, or the extra `cluster` is not installed.
    """
    if not count:
        yield None
        return
    if count == "slurm":
        try:
            from fa_lib.execution.slurm import Slurm
        except ModuleNotFoundError as error:
            raise ValueError(f"executor: 'slurm' needs {error.name}; pip install 'fa_lib[cluster]'") from error
        with Slurm() as jobs:
            yield jobs
        return
    if type(count) is not int or count < 0:
        raise ValueError(f"executor: got {count!r}; accepted is 'slurm' or a number of processes")
    context, others = _context(), multiprocessing.active_children()
    with ProcessPoolExecutor(count, mp_context=context, initializer=_settle, initargs=(PACKAGE,)) as pool:
        try:
            yield pool
        finally:  # nobody waits for a worker: one that was killed may hold the lock that the others need to end, and
            for child in multiprocessing.active_children():  # Python 3.11 waits for one that began meanwhile
                if child not in others:
                    child.kill()


def share(jobs: int = 1) -> int:
    """Return how many cores each of `jobs` programs that run side by side has; at least one."""
    return max(1, (os.cpu_count() or 1) // jobs)


@cache
def _context():
    """Return multiprocessing's context, which says how processes begin."""
    if sys.platform != "linux":  # macOS' libraries have threads that a fork breaks; Windows cannot fork
        return multiprocessing.get_context("spawn")

    context = multiprocessing.get_context("forkserver")
    imported = sorted(name for name in sys.modules if name.startswith("fa_lib."))
    imported = [name for name in imported if not name.startswith("fa_lib.plots")]
    context.set_forkserver_preload([*imported, "fa_lib.numerics.rounding_loops"])  # numba is imported once for all
    return context


def _settle(expected):
    """Set a worker up: one thread, memory that is kept, and its end when its parent is killed, so that it does not work
    on beside the worker that takes over.

    Raises:
        RuntimeError: it has imported another fa_lib than that of the folder `expected`: the server looks in the current
            folder first, and in Python 3.11 ignores changes of `sys.path`.
    """
    if expected != PACKAGE:
        raise RuntimeError(f"worker: it imports {PACKAGE} and not {expected}; start it from another folder")
    torch.set_num_threads(1)
    process_settings.keep_memory()
    end_with_parent()


def end_with_parent() -> None:
    """End this process, a worker, when the process that started it has ended, even by SIGKILL."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is a worker

    def follow():
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
