"""Run notebooks through papermill.

The executed copy goes to build/. What the notebook writes goes to a folder of its own first, and below build/ only when
the notebook has ended well: nothing is half-written. What came out is listed in an outcome (`manifest`).

With the executor "slurm" a notebook that has the parameter `processes` runs here and sends its cells as Slurm jobs; any
other is one job itself.
"""

import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import nbformat
import papermill
import yaml
from jupyter_client import AsyncKernelManager

from fa_lib.execution import manifest
from fa_lib.execution.files import locked_folder, replacing
from fa_lib.execution.pools import workers
from fa_lib.execution.progress import Progress
from fa_lib.execution.same_code import refuse_another_fa_lib

CELL_TIMEOUT = 7200  # seconds; what was done before it is not lost
SLOW_S = 600  # seconds that a kernel may take to start, and outputs to arrive: a loaded machine is no error
QUIET = ["--IPKernelApp.log_level=CRITICAL"]  # the kernel program's own lines are no business of a reader
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
    executor: str | int | None = None, timeout: int = CELL_TIMEOUT, kernel: type[AsyncKernelManager] | None = None,
) -> Path | None:  # fmt: skip
    """Execute a notebook at a scale, unless its outcome is there and fresh.

    Args:
        notebook: its path; the scales are beside it, in scales/.
        build: folder of the executed copy, the outcome and the cache of cells.
        into: folder of the results; None is `build`.
        executor: as for `workers`, instead of the notebook's `processes`.
        timeout: seconds that a cell may take.
        kernel: the manager that starts the notebook's kernel here; None starts the one that the notebook names.

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
    with locked_folder(build / notebook.stem, seconds=2 * CELL_TIMEOUT):  # another `make figures` may be at it
        _failed(notebook, build).unlink(missing_ok=True)  # of an earlier run
        if is_fresh(notebook, scale, build, into):
            return None
        accepted = papermill.inspect_notebook(str(notebook))
        if executor is not None and "processes" in accepted:
            given = given | dict(processes=executor)
        return _execute_on(executor, notebook, scale, given, build, into, timeout, kernel)


def is_fresh(notebook: Path, scale: str, build: Path, into: Path) -> bool:
    """Whether a notebook's outcome at a scale is there, and made from what is there now."""
    source = _made_from(notebook, scale, parameters(notebook, scale))
    return manifest.fresh(outcome_path(notebook, build), source, into)


def _made_from(notebook, scale, asked):
    """What the outcome of a notebook depends on, asked for with the parameters of a scale."""
    return manifest.made_from(notebook, dict(asked, scale=scale))


def outcome_path(notebook: Path, build: Path) -> Path:
    return build / f"{notebook.stem}.outcome.json"


def run_all(
    notebooks: Iterable[Path], scale: str, build: Path, *, into: Path | None = None,
    executor: str | int | None = None, say: Callable = print, kernel: type[AsyncKernelManager] | None = None,
) -> None:  # fmt: skip
    """Run the notebooks of a scale that are stale, one after the other, and say what is done. The arguments are those
    of `run`.

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
            work = partial(run, notebook, scale, build, into=into, executor=executor, kernel=kernel)
            _told(notebook, build, work)
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
        fresh = is_fresh(path, scale, Path(build), Path(into or build))
        return 0 if fresh else manifest.seconds(outcome_path(path, build))

    return Progress({path.stem: seconds(Path(path)) for path in map(Path, notebooks)}, jobs)


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


def _execute_on(executor, notebook, scale, given, build, into, timeout, kernel):
    work = (notebook, scale, given, build, into)
    if executor != "slurm":
        return _execute(*work, timeout, kernel)
    with workers("slurm") as jobs:  # left by an error, it ends the jobs of a kernel too
        work = (*work, None)  # jobs wait their turn, and have a time of their own
        return _execute(*work) if "processes" in given else jobs.submit(_execute, *work).result()


def _execute(notebook, scale, given, build, into, timeout, kernel=None):
    """Run the notebook, move what it wrote to its place, and write its outcome."""
    build.mkdir(parents=True, exist_ok=True)
    started, before = time.monotonic(), _cpu_seconds()
    for left in build.glob(f"{notebook.stem}.*/"):  # by a run that was killed: this one holds the notebook
        shutil.rmtree(left, ignore_errors=True)
    if kernel is None:
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
                iopub_timeout=SLOW_S, start_timeout=SLOW_S,
                progress_bar=False, stderr_file=sys.stderr,  # the sweeps' own progress comes through
                extra_arguments=QUIET, **({} if kernel is None else dict(kernel_manager_class=kernel)),
            )  # fmt: skip
        except BaseException:
            if executed.exists():
                os.replace(executed, _failed(notebook, build))
            raise
        files = sorted(p.relative_to(results) for p in results.rglob("*") if p.is_file())
        outcome_path(notebook, build).unlink(missing_ok=True)  # until all files are in their place
        manifest.copy(files, results, into)
        with replacing(done) as temporary:
            shutil.copyfile(executed, temporary)
        spent = dict(seconds=time.monotonic() - started, cpu_seconds=_cpu_seconds() - before)
        manifest.write(outcome_path(notebook, build), source, files, into, **spent)
    return done


def _kernel(notebook):
    return nbformat.read(notebook, as_version=4).metadata.get("kernelspec", {}).get("name", "python3")


def _cpu_seconds():
    """Of the processes that this one has started and that have ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime
