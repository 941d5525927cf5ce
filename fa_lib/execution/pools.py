"""Executors for `sweep`: processes of this machine, or the jobs of a cluster."""

import atexit
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import forkserver

import torch

from fa_lib import allocation


@contextmanager
def workers(count: int | str) -> Iterator[Executor | None]:
    """An executor for `sweep`: that many processes, each with torch on one thread; None, which works here, for 0; or
    for "slurm" the jobs of a cluster (docs/cluster.md).

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
    context, others = multiprocessing.get_context("forkserver"), multiprocessing.active_children()
    context.set_forkserver_preload(_imported())
    atexit.register(forkserver._forkserver._stop)  # waited for, the seconds of the processes that it forked are counted
    with ProcessPoolExecutor(count, mp_context=context, initializer=_settle) as pool:
        try:
            yield pool
        except BrokenExecutor:  # of a worker killed while another began, Python 3.11 waits for the other
            for child in multiprocessing.active_children():
                if child not in others:
                    child.kill()
            raise


def _imported():
    """What workers may need of what is imported here: one process imports it, and they are forked from that."""
    return sorted(name for name in sys.modules if name.startswith("fa_lib.") and not name.startswith("fa_lib.plots"))


def _settle():
    """One thread, memory that is kept; and a worker whose parent is killed ends too, instead of working on beside what
    takes over."""
    torch.set_num_threads(1)
    allocation.keep()

    def follow():
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
