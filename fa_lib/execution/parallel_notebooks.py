"""Notebooks side by side, each in a process of its own. On Linux these are forks of one process that has imported and
compiled what the notebooks use: that takes ten seconds, which each notebook would take again."""

import multiprocessing
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import connection, forkserver
from pathlib import Path

import nbformat
from jupyter_client import AsyncKernelManager

from fa_lib.execution.exit_with_parent import end_as_interrupted, end_with_parent
from fa_lib.execution.paths import PACKAGE
from fa_lib.execution.pools import imported, share
from fa_lib.execution.progress import Progress

SHARED = (r"fa_lib\.training", r"sweep\(\s*compare\b")  # in the code of notebooks that share runs, or cells
IMPORT = r"^(?:from|import) ([\w.]+)"
INLINE = "module://matplotlib_inline.backend_inline"  # where a kernel draws; matplotlib asks once, when it is imported
LINUX = sys.platform == "linux"


def run_beside(
    notebooks: list[Path],
    progress: Progress,
    work: Callable[[Path, type[AsyncKernelManager] | None], None],
    say: Callable = print,
) -> bool:
    """Do the work for each notebook, for as many at a time as the Progress says, each with its share of the cores;
    those that share runs or cells (SHARED) one after the other. After each, say how far it is.

    Args:
        work: done in a process of its own, which ends with this one. It is given the path and, on Linux, the manager
            of a kernel that needs to import nothing.

    Returns:
        whether all ended well.

    Raises:
        KeyboardInterrupt: after the processes were interrupted too.
    """
    codes = {path: code_of(path) for path in notebooks}
    waiting: dict[str, list[Path]] = {}
    for path, code in codes.items():
        waiting.setdefault(next((words for words in SHARED if re.search(words, code)), path.stem), []).append(path)
    chains, running, well = [*waiting.values()], {}, True
    with _processes("\n".join(codes.values()), progress.jobs) as context:

        def begin(chain):
            process = context.Process(target=_alone, args=(work, chain[0], PACKAGE))
            process.start()
            running[process.sentinel] = process, chain, time.monotonic()

        try:
            while chains or running:
                while chains and len(running) < progress.jobs:
                    begin(chains.pop(0))
                for ended in connection.wait([*running]):
                    process, chain, started = running.pop(ended)
                    process.join()
                    well &= process.exitcode == 0
                    progress.done(chain[0].stem, time.monotonic() - started)
                    say(progress.ended())
                    if chain[1:]:
                        begin(chain[1:])
        finally:
            for process, _, _ in running.values():
                process.terminate()
            for process, _, _ in running.values():
                process.join()
    return well


def code_of(path: Path) -> str:
    """The code of a notebook, its cells one after the other."""
    return "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code")


@contextmanager
def _processes(code, jobs) -> Iterator[multiprocessing.context.BaseContext]:
    """How the processes of notebooks with this code begin."""
    own = dict(OMP_NUM_THREADS=f"{share(jobs)}", MPLBACKEND=INLINE)  # threads that wait cost time
    if not LINUX:
        with _environment(own):
            yield multiprocessing.get_context("spawn")
        return
    server = forkserver._forkserver
    context = multiprocessing.get_context("forkserver")
    server._stop()  # another one of this process would have another environment
    used = sorted({*imported(), *re.findall(IMPORT, code, re.MULTILINE)})
    context.set_forkserver_preload(["fa_lib.execution.warm", *used])
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for this process, which interrupts the others
    try:
        with _environment(own):
            forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        yield context
    finally:
        os.kill(server._forkserver_pid, signal.SIGTERM)  # it may still import
        server._stop()


@contextmanager
def _environment(names: Mapping[str, str]) -> Iterator[None]:
    """With variables where they are not set."""
    added = names.keys() - os.environ.keys()
    os.environ.update({name: names[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _alone(work, path, package):
    """In a notebook's process."""
    if package != PACKAGE:
        sys.exit(f"fa-lib: notebooks would run the fa_lib in {PACKAGE}, not {package}; start from another folder")
    if not LINUX:
        end_as_interrupted()
        end_with_parent()
        return work(path, None)
    from fa_lib.execution.forked_kernel import forked_kernel

    with forked_kernel() as manager:
        end_as_interrupted()
        end_with_parent()
        work(path, manager)
