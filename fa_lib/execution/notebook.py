"""Run notebooks through papermill.

The executed copy goes to build/. What the notebook writes goes to a folder of its own first, and below build/ only when
the notebook has ended well: nothing is half-written. What came out is listed in an outcome (`manifest`).

With the executor "slurm" a notebook that has the parameter `processes` runs here and sends its cells as Slurm jobs; any
other is one job itself.
"""

import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path

import papermill
import yaml

from fa_lib.execution import manifest
from fa_lib.execution.files import locked_folder, replacing
from fa_lib.execution.notebook_kernel import SLOW_S, NotebookKernel, notebook_kernel
from fa_lib.execution.pools import share, workers

CELL_TIMEOUT = 7200  # seconds; what was done before it is not lost
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
    executor: str | int | None = None, timeout: int = CELL_TIMEOUT, kernel: NotebookKernel | None = None,
    stopped: threading.Event | None = None,
) -> Path | None:  # fmt: skip
    """Execute a notebook at a scale, unless its outcome is there and fresh.

    Args:
        notebook: its path; the scales are beside it, in scales/.
        build: folder of the executed copy, the outcome and the cache of cells.
        into: folder of the results; None is `build`.
        executor: as for `workers`, instead of the notebook's `processes`.
        timeout: seconds that a cell may take.
        kernel: runs the notebook; None starts one for it. stopped: once it is set, no lock is waited for any longer.

    Returns:
        the executed copy's path; None where its outcome is fresh.

    Raises:
        Refused: as `parameters`, or an executor that there is not.
        papermill.PapermillExecutionError: a cell failed; nbclient's CellTimeoutError: it ran past `timeout` seconds.
            The executed copy is kept as <notebook>.failed.ipynb, and no result is touched.
    """
    notebook, build = Path(notebook).resolve(), Path(build)
    into = Path(into or build)
    check_executor(executor)
    given = parameters(notebook, scale)
    with locked_folder(build / notebook.stem, 2 * CELL_TIMEOUT, stopped and stopped.is_set):
        failed_path(notebook, build).unlink(missing_ok=True)  # of an earlier run
        if is_fresh(notebook, scale, build, into):
            return None
        accepted = papermill.inspect_notebook(str(notebook))
        if executor is not None and "processes" in accepted:
            given = given | dict(processes=executor)
        return _execute_on(executor, notebook, scale, given, build, into, timeout, kernel)


def check_executor(executor: str | int | None) -> None:
    """Raise Refused for an executor that there is not."""
    if executor not in (None, "slurm") and type(executor) is not int:
        raise Refused(f"executor: got {executor!r}; accepted is slurm or a number of processes")


def is_fresh(notebook: Path, scale: str, build: Path, into: Path) -> bool:
    """Whether a notebook's outcome at a scale is there, and made from what is there now."""
    source = _made_from(notebook, scale, parameters(notebook, scale))
    return manifest.fresh(outcome_path(notebook, build), source, into)


def _made_from(notebook, scale, asked):
    """What the outcome of a notebook depends on, asked for with the parameters of a scale."""
    return manifest.made_from(notebook, dict(asked, scale=scale))


def outcome_path(notebook: Path, build: Path) -> Path:
    return build / f"{notebook.stem}.outcome.json"


def failed_path(notebook: Path, build: Path) -> Path:
    """Where a notebook that failed is kept, as far as it came."""
    return build / f"{notebook.stem}.failed.ipynb"


def _execute_on(executor, notebook, scale, given, build, into, timeout, kernel):
    work = (notebook, scale, given, build, into, timeout, kernel)
    if executor != "slurm":
        return _execute(*work)
    with workers("slurm") as jobs:  # left by an error, it ends the jobs of a kernel too
        if "processes" in given:
            return _execute(*work[:-2], None, kernel)  # jobs wait their turn, and have a time of their own
        assert jobs is not None
        return jobs.submit(_execute, *work[:-2], None, None).result()


def _execute(notebook, scale, given, build, into, timeout, kernel):
    """Run the notebook, move what it wrote to its place, and write its outcome."""
    build.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    for left in build.glob(f"{notebook.stem}.*/"):  # by a run that was killed: this one holds the notebook
        shutil.rmtree(left, ignore_errors=True)
    source = _made_from(notebook, scale, parameters(notebook, scale))
    accepted, done = papermill.inspect_notebook(str(notebook)), build / notebook.name
    with (
        nullcontext(kernel) if kernel else notebook_kernel(share()) as kernel,
        tempfile.TemporaryDirectory(prefix=f"{notebook.stem}.", dir=build) as staging,
    ):
        results, executed = Path(staging) / "out", Path(staging) / notebook.name
        paths = {"cache": str(build / "cache"), "out": str(results)}
        given = given | {name: path for name, path in paths.items() if name in accepted}
        before = kernel.cpu_seconds()
        try:
            papermill.execute_notebook(
                str(notebook), str(executed), given, km=kernel.ready(notebook), execution_timeout=timeout,
                iopub_timeout=SLOW_S, start_timeout=SLOW_S,
                progress_bar=False, stderr_file=sys.stderr,  # the sweeps' own progress comes through
            )  # fmt: skip
        except BaseException:
            if executed.exists():
                os.replace(executed, failed_path(notebook, build))
            raise
        files = sorted(p.relative_to(results) for p in results.rglob("*") if p.is_file())
        outcome_path(notebook, build).unlink(missing_ok=True)  # until all files are in their place
        manifest.copy(files, results, into)
        with replacing(done) as temporary:
            shutil.copyfile(executed, temporary)
        spent = dict(seconds=time.monotonic() - started, cpu_seconds=kernel.cpu_seconds() - before)
        manifest.write(outcome_path(notebook, build), source, files, into, **spent)
    return done
