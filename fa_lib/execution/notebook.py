"""Run notebooks through papermill.

The executed copy goes to build/. What the notebook writes goes to a folder of its own first, and below build/ only when
the notebook has ended well: nothing is half-written. What came out is listed in an outcome (`execution.outcome`).

With the executor "slurm" a notebook that has the parameter `processes` runs here and sends its cells as Slurm jobs; any
other is one job itself.
"""

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import papermill
import yaml

from fa_lib.execution import outcome, parent
from fa_lib.execution.files import held, replacing
from fa_lib.execution.pools import share, workers
from fa_lib.execution.progress import Progress
from fa_lib.execution.same_code import refuse_another_fa_lib

CELL_TIMEOUT = 7200  # seconds; what was done before it is not lost
QUIET = ["--IPKernelApp.log_level=CRITICAL"]  # the kernel program's own lines are no business of a reader
SHARED = (r"fa_lib\.training", r"sweep\(\s*compare\b")  # in the code of notebooks that share runs, or cells
LEFT_OUT = "left_out"  # the key of a scale's file that lists the notebooks which the scale has not


class Refused(ValueError):
    """Asked for something no notebook has."""


def parameters(notebook: Path, scale: str) -> dict:
    """The parameters of a notebook at a scale.

    Raises:
        Refused: the scale, a notebook it names or one of its parameters does not exist; the scale leaves the notebook
            out, or does not say whether it does.
    """
    scales, left_out = _scale(notebook.parent, scale)
    if notebook.stem in left_out:
        raise Refused(f"{notebook.stem}: the scale {scale} leaves it out; accepted are {', '.join(scales)}")
    if notebook.stem not in scales:
        raise Refused(
            f"{notebook.stem}: {scale}.yaml does not name it; name it there with its parameters, or under {LEFT_OUT}"
        )
    given, accepted = scales[notebook.stem] or {}, papermill.inspect_notebook(str(notebook))
    for name in given.keys() - accepted.keys():
        raise Refused(f"{scale}.yaml: {notebook.stem} has no parameter {name!r}; accepted are {', '.join(accepted)}")
    return given


def of_scale(notebooks: Iterable[Path], scale: str) -> list[Path]:
    """The notebooks that a scale does not leave out.

    Raises:
        Refused: as `parameters`.
    """
    notebooks = [*map(Path, notebooks)]
    return [path for path in notebooks if path.stem not in _scale(path.parent, scale)[1]]


def _scale(folder, scale):
    """Parameters by notebook, and the notebooks that are left out."""
    path = folder / "scales" / f"{scale}.yaml"
    if not path.exists():
        raise Refused(
            f"scale: got {scale!r}; accepted are {', '.join(sorted(p.stem for p in path.parent.glob('*.yaml')))}"
        )
    scales = yaml.safe_load(path.read_text()) or {}
    left_out = scales.pop(LEFT_OUT, None) or []
    known = {p.stem for p in folder.glob("*.ipynb")}
    for name in sorted({*scales, *left_out} - known):
        raise Refused(f"{path.name}: names the notebook {name!r}; accepted are {', '.join(sorted(known))}")
    return scales, left_out


def run(
    notebook: str | Path, scale: str, build: str | Path, *, into: str | Path | None = None,
    executor: str | int | None = None, timeout: int = CELL_TIMEOUT,
) -> Path | None:  # fmt: skip
    """Execute a notebook at a scale, unless its outcome is there and fresh.

    Args:
        notebook: its path; the scales are beside it, in scales/.
        build: folder of the executed copy, the outcome and the cache of cells.
        into: folder of the results; None is `build`.
        executor: as for `workers`, instead of the notebook's `processes`.
        timeout: seconds that a cell may take.

    Returns:
        the executed copy's path; None where its outcome is fresh.

    Raises:
        Refused: as `parameters`, or an executor that there is not.
        papermill.PapermillExecutionError: a cell failed; nbclient's CellTimeoutError: it ran past `timeout` seconds.
            The executed copy is kept as <notebook>.failed.ipynb, and no result is touched.
    """
    notebook, build = Path(notebook).resolve(), Path(build)
    into = Path(into or build)
    if executor not in (None, "slurm") and type(executor) is not int:
        raise Refused(f"executor: got {executor!r}; accepted is slurm or a number of processes")
    given = parameters(notebook, scale)
    with held(build / notebook.stem, seconds=2 * CELL_TIMEOUT):  # another `make figures` may be at it
        _failed(notebook, build).unlink(missing_ok=True)  # of an earlier run
        if is_fresh(notebook, scale, build, into):
            return None
        accepted = papermill.inspect_notebook(str(notebook))
        if executor is not None and "processes" in accepted:
            given = given | dict(processes=executor)
        return _execute_on(executor, notebook, scale, given, build, into, timeout)


def is_fresh(notebook: Path, scale: str, build: Path, into: Path) -> bool:
    """Whether a notebook's outcome at a scale is there, and made from what is there now."""
    source = _made_from(notebook, scale, parameters(notebook, scale))
    return outcome.fresh(outcome_path(notebook, build), source, into)


def _made_from(notebook, scale, asked):
    """What the outcome of a notebook depends on, asked for with the parameters of a scale."""
    return outcome.made_from(notebook, dict(asked, scale=scale))


def outcome_path(notebook: Path, build: Path) -> Path:
    return build / f"{notebook.stem}.outcome.json"


def run_all(
    notebooks: Iterable[Path], scale: str, build: Path, *, into: Path | None = None,
    executor: str | int | None = None, say: Callable = print,
) -> None:  # fmt: skip
    """Run the notebooks of a scale that are stale, one after the other, and say what is done.

    Raises:
        RuntimeError: a notebook failed; in words, with the path of the notebook as far as it came.
        Refused: as `run`.
    """
    notebooks, build = [*map(Path, notebooks)], Path(build)
    progress = progress_of(notebooks, scale, build, into=into)
    for notebook in notebooks:
        name, started = notebook.name, time.monotonic()
        at = f"{progress.at(notebook.stem)}: " if len(notebooks) > 1 else ""
        if progress.expected[notebook.stem] == 0:
            say(f"{at}{name} is up to date")
        else:
            say(f"{at}{name} at scale {scale}")
            _told(notebook, build, lambda: run(notebook, scale, build, into=into, executor=executor))  # noqa: B023
            say(f"{name} done in {time.monotonic() - started:.0f} s")
        progress.done(notebook.stem, time.monotonic() - started)


def progress_of(
    notebooks: Iterable[Path], scale: str, build: Path, *, into: Path | None = None, jobs: int = 1
) -> Progress:  # fmt: skip
    """The Progress of a run of notebooks that has not begun: what is up to date takes no time.

    Raises:
        Refused: as `parameters`.
    """

    def seconds(path):
        return (
            0 if is_fresh(path, scale, Path(build), Path(into or build)) else outcome.seconds(outcome_path(path, build))
        )

    return Progress({path.stem: seconds(Path(path)) for path in map(Path, notebooks)}, jobs)


def run_beside(
    notebooks: list[Path], progress: Progress, command: Callable[[Path], list[str]], say: Callable = print
) -> bool:  # fmt: skip
    """Run a command for each notebook, as many at a time as the Progress says, each with its share of the cores; those
    that share runs or cells (SHARED) one after the other. After each, say how far it is.

    Args:
        command: of a notebook, the words of a process, which ends with this one.

    Returns:
        whether all ended well.
    """
    chains: dict[str, list[Path]] = {}
    for path in notebooks:
        code = "\n".join(c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code")
        chains.setdefault(next((words for words in SHARED if re.search(words, code)), path.stem), []).append(path)
    running, stopped = [], threading.Event()
    threads = {"OMP_NUM_THREADS": str(share(progress.jobs))}  # threads that wait cost time

    def follow(chain):
        well = True
        for path in chain:
            if stopped.is_set():
                return False
            started, own = time.monotonic(), threads | os.environ | {parent.NAME: str(os.getpid())}
            process = subprocess.Popen(command(path), env=own, process_group=0)  # Ctrl-C comes here alone
            running.append(process)
            well &= process.wait() == 0
            if not stopped.is_set():
                progress.done(path.stem, time.monotonic() - started)
                say(progress.ended())
        return well

    with ThreadPoolExecutor(progress.jobs) as pool:
        try:
            return all([future.result() for future in [pool.submit(follow, chain) for chain in chains.values()]])
        except BaseException:
            stopped.set()
            for process in running:
                process.terminate()
            raise


def end_as_interrupted() -> None:
    """Take a closed terminal and `kill` as Ctrl-C: what this process started then ends with it. What is ignored, as the
    closed terminal under `nohup`, stays so."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


def _told(notebook, build, work):
    """Do the work; an error is told in words."""
    try:
        work()
    except Refused:
        raise
    except papermill.PapermillExecutionError as error:
        words = f"{notebook.name}: cell {error.cell_index} failed: {error.ename}: {error.evalue}"
    except Exception as error:
        words = "; ".join((f"{notebook.name}: {type(error).__name__}: {error}", *getattr(error, "__notes__", ())))
    else:
        return
    kept = _failed(notebook, Path(build))
    raise RuntimeError(f"{words}\nThe notebook as far as it came: {kept}" if kept.exists() else words)


def _failed(notebook, build):
    return build / f"{notebook.stem}.failed.ipynb"


def _execute_on(executor, notebook, scale, given, build, into, timeout):
    if executor != "slurm":
        return _execute(notebook, scale, given, build, into, timeout)
    with workers("slurm") as jobs:  # left by an error, it ends the jobs of a kernel too
        work = (notebook, scale, given, build, into, None)  # jobs wait their turn, and have a time of their own
        return _execute(*work) if "processes" in given else jobs.submit(_execute, *work).result()


def _execute(notebook, scale, given, build, into, timeout):
    """Run the notebook, move what it wrote to its place, and write its outcome."""
    build.mkdir(parents=True, exist_ok=True)
    started, before = time.monotonic(), _cpu_seconds()
    for left in build.glob(f"{notebook.stem}.*/"):  # by a run that was killed: this one holds the notebook
        shutil.rmtree(left, ignore_errors=True)
    refuse_another_fa_lib(notebook.parent, _kernel(notebook))
    source = _made_from(notebook, scale, parameters(notebook, scale))
    accepted, done = papermill.inspect_notebook(str(notebook)), build / notebook.name
    with tempfile.TemporaryDirectory(prefix=f"{notebook.stem}.", dir=build) as staging:
        results, executed = Path(staging) / "out", Path(staging) / notebook.name
        paths = {"cache": str(build / "cache"), "out": str(results)}
        given = given | {name: path for name, path in paths.items() if name in accepted}
        try:
            papermill.execute_notebook(
                str(notebook), str(executed), given, cwd=str(notebook.parent), execution_timeout=timeout,
                progress_bar=False, stderr_file=sys.stderr,  # the sweeps' own progress comes through
                extra_arguments=QUIET,
            )  # fmt: skip
        except BaseException:
            if executed.exists():
                os.replace(executed, _failed(notebook, build))
            raise
        files = sorted(p.relative_to(results) for p in results.rglob("*") if p.is_file())
        outcome_path(notebook, build).unlink(missing_ok=True)  # until all files are in their place
        outcome.copy(files, results, into)
        with replacing(done) as temporary:
            shutil.copyfile(executed, temporary)
        spent = dict(seconds=time.monotonic() - started, cpu_seconds=_cpu_seconds() - before)
        outcome.write(outcome_path(notebook, build), source, files, into, **spent)
    return done


def _kernel(notebook):
    return nbformat.read(notebook, as_version=4).metadata.get("kernelspec", {}).get("name", "python3")


def _cpu_seconds():
    """Of the processes that this one has started and that have ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime
