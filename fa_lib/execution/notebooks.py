"""Run the notebooks of a scale, some of them side by side."""

import itertools
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import nbformat
import papermill
from tqdm import tqdm

from fa_lib.execution.notebook import check_executor, failed_path, is_fresh, run
from fa_lib.execution.notebook_kernel import NotebookKernel, notebook_kernel
from fa_lib.execution.pools import share


def run_all(
    notebooks: Iterable[str | Path], scale: str, build: Path, *, into: Path | None = None,
    executor: str | int | None = None, jobs: int = 1, say: Callable[[str], object] | None = None,
) -> None:  # fmt: skip
    """Run the notebooks of a scale that are stale; one that fails stops no other. Say what is done, in a line each.

    Args:
        notebooks, scale, build, into, executor: as `run` has them.
        jobs: notebooks at a time, each with its share of the cores. Those that share cells or training runs, which
            their metadata say ("fa_lib": {"shares": a word}), follow one another.

    Raises:
        RuntimeError: of those that failed, each in words, with the path of the notebook as far as it came.
        Refused: as `run`; before anything runs.
    """
    say = say or _flushed
    check_executor(executor)
    paths = [*map(Path, notebooks)]
    stale = [path for path in paths if not is_fresh(path, scale, Path(build), Path(into or build))]
    for path in paths:
        if path not in stale:
            say(f"{path.name} is up to date")
    failures, count = [], itertools.count(1)
    bar = tqdm(total=len(stale), desc="notebooks", unit="notebook", disable=len(stale) < 2 or None)

    def run_one(path, kernel, stopped=None):
        say(f"{path.name} at scale {scale}")
        outcome, started = "done in", time.monotonic()
        try:
            run(path, scale, build, into=into, executor=executor, kernel=kernel, stopped=stopped)
        except Exception as error:
            kernel.end()  # it may be at work still, or dead
            outcome = "failed after"
            failures.append(_in_words(error, path, Path(build)))
        bar.update()
        if stopped is None or not stopped.is_set():
            say(f"{path.name} {outcome} {time.monotonic() - started:.0f} s ({next(count)} of {len(stale)})")

    with bar:
        if jobs == 1 or executor == "slurm":
            with notebook_kernel(share()) as kernel:
                for path in (path for chain in _chains(stale) for path in chain):
                    run_one(path, kernel)
        else:
            _side_by_side(_chains(stale), jobs, run_one)
    if failures:
        raise RuntimeError("\n".join(failures))


def _side_by_side(chains, jobs, run_one):
    """Run chains of notebooks, so many at a time, each in a thread with a kernel of its own."""
    kernels, stopped = [NotebookKernel(share(jobs)) for _ in range(jobs)], threading.Event()
    idle: SimpleQueue[NotebookKernel] = SimpleQueue()
    for kernel in kernels:
        idle.put(kernel)

    def run_chain(chain):
        kernel = idle.get()
        try:
            for path in chain:
                if not stopped.is_set():
                    run_one(path, kernel, stopped)
        finally:
            idle.put(kernel)

    with ThreadPoolExecutor(jobs) as threads:
        futures = [threads.submit(run_chain, chain) for chain in chains]
        try:
            for future in as_completed(futures):
                future.result()
        finally:  # after Ctrl-C as well; a second one must not leave a kernel behind
            stopped.set()
            threads.shutdown(wait=False, cancel_futures=True)
            with _uninterrupted():
                while not all(future.done() for future in futures):  # one may just be starting its kernel
                    for kernel in kernels:
                        kernel.end()
                    time.sleep(0.1)
                for kernel in kernels:
                    kernel.end()


@contextmanager
def _uninterrupted():
    """With Ctrl-C and `kill` ignored, in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before):
            signal.signal(number, handler)


def _flushed(line):
    tqdm.write(line)
    sys.stdout.flush()  # it may be a file, or a pipe


def _chains(paths):
    """The notebooks as lists, each of those that follow one another."""
    chains: dict[str, list[Path]] = {}
    for path in paths:
        word = nbformat.read(path, as_version=4).metadata.get("fa_lib", {}).get("shares", path.stem)
        chains.setdefault(word, []).append(path)
    return chains.values()


def _in_words(error, path, build):
    if isinstance(error, papermill.PapermillExecutionError):
        words = f"{path.name}: cell {error.cell_index} failed: {error.ename}: {error.evalue}"
    else:
        words = "; ".join((f"{path.name}: {type(error).__name__}: {error}", *getattr(error, "__notes__", ())))
    kept = failed_path(path, build)
    return f"{words}\nThe notebook as far as it came: {kept}" if kept.exists() else words
