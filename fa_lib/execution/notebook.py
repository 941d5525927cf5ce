"""Run a notebook through papermill: `python -m fa_lib.run notebooks/02_precision.ipynb --scale paper`.

The executed copy goes to build/. What the notebook writes goes to a folder of its own first, and to data/results/
and figures/ only when the notebook has ended well: nothing is half-written.

With `--executor slurm` a notebook that has the parameter `processes` runs here and sends its cells as Slurm jobs; any
other is one job itself.
"""

import argparse
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

import papermill
import torch
import yaml

from fa_lib.execution.pools import workers
from fa_lib.paths import ROOT

CELL_TIMEOUT = 7200  # seconds; what was done before it is not lost


class Refused(ValueError):
    """Asked for something no notebook has."""


def parameters(notebook, scale, root=ROOT):
    """The parameters of a notebook at a scale; None where the scale does not name it.

    Raises:
        Refused: the scale, the notebook it names or one of its parameters does not exist.
    """
    path = root / "notebooks" / "scales" / f"{scale}.yaml"
    if not path.exists():
        raise Refused(
            f"scale: got {scale!r}; accepted are {', '.join(sorted(p.stem for p in path.parent.glob('*.yaml')))}"
        )
    scales = yaml.safe_load(path.read_text()) or {}
    known = {p.stem for p in (root / "notebooks").glob("*.ipynb")}
    for name in scales.keys() - known:
        raise Refused(f"{path.name}: names the notebook {name!r}; accepted are {', '.join(sorted(known))}")
    if notebook.stem not in scales:
        return None
    given, accepted = scales[notebook.stem] or {}, papermill.inspect_notebook(str(notebook))
    for name in given.keys() - accepted.keys():
        raise Refused(f"{path.name}: {notebook.stem} has no parameter {name!r}; accepted are {', '.join(accepted)}")
    return given


def run(notebook, scale, root=ROOT, timeout=CELL_TIMEOUT, into=None, executor=None, **more):
    """Execute a notebook at a scale; returns the executed copy's path, or None where the scale does not name it.
    Results go below `into` instead of the root, and `more` are parameters beside the scale's.
    executor: as for `workers`, instead of the notebook's `processes`.

    Raises:
        Refused: as `parameters`, or an executor that there is not.
        papermill.PapermillExecutionError: a cell failed; nbclient's CellTimeoutError: it ran past `timeout` seconds.
            The executed copy is kept as build/<notebook>.failed.ipynb, and no result is touched.
    """
    notebook = Path(notebook).resolve()
    if executor not in (None, "slurm") and type(executor) is not int:
        raise Refused(f"executor: got {executor!r}; accepted is slurm or a number of processes")
    given = parameters(notebook, scale, root)
    if given is None:
        return None
    _failed(notebook, root).unlink(missing_ok=True)  # of an earlier run
    given, accepted = given | more, papermill.inspect_notebook(str(notebook))
    if "processes" in accepted and executor is not None:
        given = given | dict(processes=executor)
    if executor == "slurm":
        timeout = None  # jobs wait their turn, and have a time of their own
    with workers("slurm" if executor == "slurm" else 0) as jobs:  # left by an error, it ends the jobs of a kernel too
        if jobs and "processes" not in accepted:
            return jobs.submit(_execute, notebook, given, accepted, root, timeout, into).result()
        return _execute(notebook, given, accepted, root, timeout, into)


def _failed(notebook, root):
    return root / "build" / f"{notebook.stem}.failed.ipynb"


def _execute(notebook, given, accepted, root, timeout, into):
    build = root / "build"
    build.mkdir(exist_ok=True)
    done = build / notebook.name
    with tempfile.TemporaryDirectory(prefix=f"{notebook.stem}.", dir=build) as staging:
        results = Path(staging) / "out"
        executed = Path(staging) / notebook.name
        paths = {"cache": str(build / "cache")} | given | {"out": str(results)}
        paths = {name: paths[name] for name in ("out", "cache") if name in accepted}
        try:
            papermill.execute_notebook(
                str(notebook), str(executed), given | paths, cwd=str(notebook.parent), execution_timeout=timeout,
                progress_bar=False, stderr_file=sys.stderr,  # the sweeps' own progress comes through
            )  # fmt: skip
        except BaseException:
            if executed.exists():
                os.replace(executed, _failed(notebook, root))
            raise
        for path in sorted(p for p in results.rglob("*") if p.is_file()):
            target = (into or root) / path.relative_to(results)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, target)
        os.replace(executed, done)
    return done


def main():
    parser = argparse.ArgumentParser(description="run a notebook through papermill")
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--scale", default="paper", help="a file of notebooks/scales")
    parser.add_argument("--executor", type=_executor, help="slurm, or a number of processes, instead of the notebook's")
    parser.add_argument("--record", action="store_true", help="results go to data/recorded/<this GPU>/")
    arguments = parser.parse_args()
    into = None
    if arguments.record:
        if not torch.cuda.is_available():
            sys.exit("record: no CUDA device here; data/recorded/ holds runs on other hardware than the committed one")
        into = ROOT / "data" / "recorded" / re.sub(r"\W+", "_", torch.cuda.get_device_name())
    # OpenMP's threads spin while they wait: two notebooks at once (`make -j2`) would take each other's cores, and
    # run 20 times slower than one after the other.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: what it started ends with it
        signal.signal(number, signal.default_int_handler)
    name, started = arguments.notebook.name, time.monotonic()
    try:
        print(f"{name} at scale {arguments.scale}", flush=True)
        done = run(arguments.notebook, arguments.scale, into=into, executor=arguments.executor)
        seconds = f"done in {time.monotonic() - started:.0f} s"
        print(f"{name} {seconds if done else 'is not of this scale: its results stay as they are'}", flush=True)
        return
    except Refused as error:
        sys.exit(f"{name}: {error}")
    except papermill.PapermillExecutionError as error:
        words = f"{name}: cell {error.cell_index} failed: {error.ename}: {error.evalue}"
    except Exception as error:
        words = "; ".join((f"{name}: {type(error).__name__}: {error}", *getattr(error, "__notes__", ())))
    kept = _failed(arguments.notebook, ROOT)
    sys.exit(f"{words}\nThe notebook as far as it came: {kept.relative_to(ROOT)}" if kept.exists() else words)


def _executor(text):
    return int(text) if text.isdigit() else text


if __name__ == "__main__":
    from fa_lib.execution import notebook as here

    here.main()
