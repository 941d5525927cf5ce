"""Where reference values come from: a file that an earlier check left, a worker process, or this process.

The worker computes them while the kernel is called here. It begins with the last task and this process with the first,
so that each is computed once; the bits are the same. If the worker ends, this process computes the rest itself.
"""

import hashlib
import importlib
import io
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fa_lib.execution import process_settings
from fa_lib.execution.files import replacing
from fa_lib.execution.fingerprint import code_version, digest
from fa_lib.execution.pools import end_with_parent

NICE = 10  # the kernel that is judged goes first


class ReferenceWorker:
    """A process that computes tasks ahead; it begins to import when it is made.

    Args:
        forked: it has what this process has imported. That needs a process in which torch has computed nothing yet:
            torch's threads do not survive a fork, nor does its backward pass.
    """

    def __init__(self, forked: bool = False):
        before = {*multiprocessing.active_children()}
        self.futures: dict = {}
        context = multiprocessing.get_context("fork" if forked else "spawn")
        self.pool = ProcessPoolExecutor(1, context, _begin)
        self.ready = self.pool.submit(os.getpid)
        self.processes = {*multiprocessing.active_children()} - before

    def prefetch(self, tasks: Sequence[tuple]) -> None:
        """Compute tasks ahead.

        Args:
            tasks: (fn, *given), each once, in the order in which `get` will ask for them; all of them values that
                pickle can send and a dict can have as keys. Earlier ones that are not among them are dropped.
        """
        wanted = {*tasks}
        kept = {task: future for task, future in self.futures.items() if task in wanted or not future.cancel()}
        with suppress(BrokenExecutor):  # then all is computed here
            self.futures = kept | {
                task: self.pool.submit(_pickled, *task) for task in reversed(tasks) if task not in kept
            }

    def get(self, fn: Callable, *given: Any) -> Any:
        """Return fn(*given), computed here where the worker has not begun with it."""
        return _result(self.futures.get((fn, *given)), fn, *given)

    def begin(self, fn: Callable, *given: Any) -> Callable[[], Any]:
        """Compute fn(*given) after all that was asked for before. Return a function that gives the result, as `get`."""
        future = None
        with suppress(BrokenExecutor):
            future = self.pool.submit(_pickled, fn, *given)
        return partial(_result, future, fn, *given)

    def close(self) -> None:
        """End the process."""
        for process in self.processes:
            process.kill()
        self.pool.shutdown(cancel_futures=True)


def _begin():
    """Set the worker up: it ends with its parent, leaves Ctrl-C to it, has one thread, and imports what tasks need."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICE)
    process_settings.keep_memory()
    torch.set_num_threads(1)
    importlib.import_module("attention_check.measure.examine")


def _result(future, fn, *given):
    try:
        return fn(*given) if future is None or future.cancel() else pickle.loads(future.result())
    except BrokenExecutor:
        return fn(*given)


def _pickled(fn, *given):
    """Pickle a result as bytes: torch would send its tensors as shared memory, which ends with the worker."""
    return pickle.dumps(fn(*given))


@dataclass(frozen=True)
class ReferenceStore:
    """Attributes:
    folder: of the files; None keeps none. worker: computes ahead; None: there is none.
    """

    folder: Path | None = None
    worker: ReferenceWorker | None = None

    def compute(self, fn: Callable, *given: Any) -> Any:
        """Return fn(*given), which the worker may have computed; no file is read or written."""
        return self.worker.get(fn, *given) if self.worker else fn(*given)

    def begin(self, fn: Callable, *given: Any) -> Callable[[], Any]:
        """As `ReferenceWorker.begin`; where there is no worker, fn(*given) is computed when the result is asked for."""
        return self.worker.begin(fn, *given) if self.worker else partial(fn, *given)

    def tensors(self, fn: Callable[[Any], dict[str, Tensor]], about: Any) -> dict[str, Tensor]:
        """Return fn(about): of its file, which has the same bits; else as `compute`, and the file is written.

        Args:
            fn: gives tensors by name. about: a dataclass of numbers and texts. (Neither names a stranger's kernel: a
                file serves all of them, by the same code, versions and arguments.)
        """
        if self.folder is None:
            return self.compute(fn, about)
        path = self.folder / fn.__name__ / f"{digest([_code(fn, about.device), asdict(about)])[:24]}.npz"
        values = _read(path)
        if values is None:
            values = self.compute(fn, about)
            archive = io.BytesIO()
            arrays: dict[str, Any] = {name: x.cpu().numpy() for name, x in values.items()}
            np.savez(archive, **arrays)
            with replacing(path) as new:
                new.write_bytes(hashlib.sha256(archive.getvalue()).digest() + archive.getvalue())
        return values

    def prefetch(self, tasks: Sequence[tuple]) -> None:
        """As `ReferenceWorker.prefetch`, where there is a worker."""
        if self.worker:
            self.worker.prefetch(tasks)


_STORE: ContextVar[ReferenceStore | None] = ContextVar("reference store", default=None)


def references() -> ReferenceStore:
    """Return the store that is in use here: by default it computes all it is asked for, and keeps nothing."""
    return _STORE.get() or ReferenceStore()


@contextmanager
def _using(store):
    token = _STORE.set(store)
    try:
        yield
    finally:
        _STORE.reset(token)


def files_in(folder: str | Path):
    """Make a context inside which `references` has files in a folder; an empty folder keeps nothing."""
    return _using(replace(references(), folder=Path(folder) if folder else None))


@contextmanager
def reference_worker(forked: bool = False) -> Iterator[None]:
    """Inside, `references` has a worker; where there is no second core it has none.

    It is for a command, whose process has torch's own settings: the worker does not know of others. Both compute on one
    thread (`calls.judged_by_one_thread`), so that their bits are the same.

    Args:
        forked: as of ReferenceWorker.
    """
    if forked:
        importlib.import_module("attention_check.measure.examine")
    worker = ReferenceWorker(forked) if _cores() > 1 and os.name == "posix" else None
    try:
        with _using(replace(references(), worker=worker)) if worker else nullcontext():
            yield
    finally:
        if worker:
            worker.close()


def _cores():
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _read(path):
    """The tensors of a file; None where it is absent, cut short or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    if hashlib.sha256(content[32:]).digest() != content[:32]:
        return None
    with np.load(io.BytesIO(content[32:]), allow_pickle=False) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


@lru_cache
def _code(fn, device):
    return code_version(fn, [dict(device=device)])
