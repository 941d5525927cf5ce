"""Run notebooks through papermill.

The executed copy goes to build/. What the notebook writes goes to a folder of its own first, and below build/ only when
the notebook has ended well: nothing is half-written. What came out is listed in an outcome (`execution.outcome`).

With the executor "slurm" a notebook that has the parameter `processes` runs here and sends its cells as Slurm jobs; any
other is one job itself.
"""

import os
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
from fa_lib.execution.pools import workers
from fa_lib.execution.same_code import refuse_another_fa_lib

CELL_TIMEOUT = 7200  # seconds; what was done before it is not lost


class Refused(ValueError):
    """Asked for something no notebook has."""


def parameters(notebook: Path, scale: str) -> dict | None:
    """The parameters of a notebook at a scale; None where the scale does not name it.

    Raises:
        Refused: the scale, the notebook it names or one of its parameters does not exist.
    """
    path = notebook.parent / "scales" / f"{scale}.yaml"
    if not path.exists():
        raise Refused(
            f"scale: got {scale!r}; accepted are {', '.join(sorted(p.stem for p in path.parent.glob('*.yaml')))}"
        )
    scales = yaml.safe_load(path.read_text()) or {}
    known = {p.stem for p in notebook.parent.glob("*.ipynb")}
    for name in scales.keys() - known:
        raise Refused(f"{path.name}: names the notebook {name!r}; accepted are {', '.join(sorted(known))}")
    if notebook.stem not in scales:
        return None
    given, accepted = scales[notebook.stem] or {}, papermill.inspect_notebook(str(notebook))
    for name in given.keys() - accepted.keys():
        raise Refused(f"{path.name}: {notebook.stem} has no parameter {name!r}; accepted are {', '.join(accepted)}")
    return given


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
        the executed copy's path; None where the scale does not name the notebook, or its outcome is fresh.

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
    if given is None:
        return None
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
    asked = parameters(notebook, scale)
    return asked is not None and outcome.fresh(outcome_path(notebook, build), _made_from(notebook, scale, asked), into)


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
    for notebook in map(Path, notebooks):
        name, started = notebook.name, time.monotonic()
        if parameters(notebook, scale) is None:
            say(f"{name} is not of the scale {scale}")
        elif is_fresh(notebook, scale, Path(build), Path(into or build)):
            say(f"{name} is up to date")
        else:
            say(f"{name} at scale {scale}")
            _told(notebook, build, lambda: run(notebook, scale, build, into=into, executor=executor))  # noqa: B023
            say(f"{name} done in {time.monotonic() - started:.0f} s")


def run_beside(notebooks: list[Path], jobs: int, command: Callable[[Path], list[str]]) -> bool:
    """Run a command for each notebook, so many at a time; those that train share their runs: one after the other.

    Args:
        command: of a notebook, the words of a process, which ends with this one.

    Returns:
        whether all ended well.
    """
    trains = [path for path in notebooks if "fa_lib.training" in path.read_text()]
    chains = [trains, *([path] for path in notebooks if path not in trains)]
    running, stopped = [], threading.Event()

    def follow(chain):
        well = True
        for path in chain:
            if stopped.is_set():
                return False
            own = os.environ | {parent.NAME: str(os.getpid())}
            running.append(process := subprocess.Popen(command(path), env=own))
            well &= process.wait() == 0
        return well

    with ThreadPoolExecutor(jobs) as pool:
        try:
            return all([future.result() for future in [pool.submit(follow, chain) for chain in chains]])
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
        outcome.write(outcome_path(notebook, build), source, files, into)
    return done


def _kernel(notebook):
    return nbformat.read(notebook, as_version=4).metadata.get("kernelspec", {}).get("name", "python3")
