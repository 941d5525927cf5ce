"""Run the notebooks of a scale through papermill: those that are not up to date, some at a time.

The executed copy goes to build/. What the notebook writes goes to a folder of its own first, and below build/ only when
the notebook has ended well: nothing is half-written. Its outcome, build/<notebook>.outcome.json, lists these files with
their checksums, and holds a digest of what they were made from. It is stale where the notebook's code, its parameters,
the fa_lib that it imports, the libraries or the processor changed, where the tables of READ changed or other devices
left other tables of it, which its figures draw too, or where a file is gone or altered. The files' dates do not count.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, wait
from functools import partial
from pathlib import Path

import nbformat
import papermill
import yaml
from jupyter_client.kernelspec import KernelSpecManager

from fa_lib.execution import fingerprint
from fa_lib.execution.files import replacing
from fa_lib.execution.folder_lock import locked_folder
from fa_lib.execution.paths import PACKAGE, RECORDED, ROOT
from fa_lib.execution.pools import share, workers
from fa_lib.execution.process_settings import KEPT
from fa_lib.execution.results import commit, git, versions, write_json

CELL_TIMEOUT = 7200  # seconds; what was done before it is not lost
SLOW_S = 600  # seconds that a kernel may take to start, and outputs to arrive: a loaded machine is no error
QUIET = [
    "--IPKernelApp.log_level=CRITICAL",  # the kernel program's own lines are no business of a reader
    "--HistoryManager.hist_file=:memory:",  # nor are a notebook's cells any of the reader's history
]
SAY = partial(print, flush=True)  # it may be to a file, or a pipe
LEFT_OUT = "left_out"  # the key of a scale's file that lists the notebooks which the scale has not
READ = {  # notebook -> the folder of data/ that other commands write and it draws
    "01b_original_kernel": "gpu", "06_inside_a_model": "heads", "14_gallery": "gallery", "19_blame": "blame",
}  # fmt: skip


def parameters(notebook: Path, scale: str) -> dict:
    """Read the parameters of a notebook at a scale.

    Raises:
        ValueError: the scale, a notebook it names or one of its parameters does not exist; the scale leaves the
            notebook out, or does not say whether it does.
    """
    scales, left_out = _scale(notebook, scale)
    if notebook.stem in left_out:
        raise ValueError(f"{notebook.stem}: the scale {scale} leaves it out; accepted are {', '.join(scales)}")
    if notebook.stem not in scales:
        raise ValueError(
            f"{notebook.stem}: {scale}.yaml does not name it; name it there with its parameters, or under {LEFT_OUT}"
        )
    given, accepted = scales[notebook.stem] or {}, papermill.inspect_notebook(str(notebook))
    for name in given.keys() - accepted.keys():
        raise ValueError(f"{scale}.yaml: {notebook.stem} has no parameter {name!r}; accepted are {', '.join(accepted)}")
    return given


def of_scale(notebooks: Iterable[Path], scale: str) -> list[Path]:
    """List the notebooks that a scale does not leave out; a ValueError as of `parameters`."""
    return [path for path in map(Path, notebooks) if path.stem not in _scale(path, scale)[1]]


def _scale(notebook, scale):
    """Return parameters by notebook, and the notebooks that are left out. scales/ is beside a notebook, or one folder
    above it."""
    folder = next((up for up in notebook.parents[:2] if (up / "scales").is_dir()), notebook.parent)
    path = folder / "scales" / f"{scale}.yaml"
    if not path.exists():
        names = sorted(p.stem for p in path.parent.glob("*.yaml"))
        raise ValueError(f"scale: got {scale!r}; accepted are {', '.join(names)}")
    scales = yaml.safe_load(path.read_text()) or {}
    left_out = scales.pop(LEFT_OUT, None) or []
    known = {p.stem for p in [*folder.glob("*.ipynb"), *folder.glob("[!.]*/*.ipynb")]}
    for name in sorted({*scales, *left_out} - known):
        raise ValueError(f"{path.name}: names the notebook {name!r}; accepted are {', '.join(sorted(known))}")
    return scales, left_out


def outcome(notebook: Path, build: Path) -> dict | None:
    """Read what a notebook's run left.

    Returns:
        dict: made_from (a digest), files (path below build -> checksum), seconds. None where there is no outcome, or a
        damaged one.
    """
    try:
        record = json.loads(_outcome_path(notebook, build).read_text())
        return record if isinstance(record["files"], dict) and "made_from" in record else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def stamp(path: Path) -> None:
    """Have a provenance name the checkout's commit, unless it names one that led there: a run with changes that were
    committed later. The caller knows that the commit has the code of the run (`is_fresh`)."""
    record = json.loads(path.read_text())
    if git("merge-base", "--is-ancestor", record["commit"], "HEAD").returncode:
        write_json(path, record | dict(commit=commit()))


def is_fresh(notebook: Path, scale: str, build: Path) -> bool:
    """Say whether a notebook's outcome at a scale is made from what is there now, and its files are as its run left
    them; a ValueError as of `parameters`."""
    given, record = parameters(notebook, scale) | dict(scale=scale), outcome(notebook, build)
    if record is None or record["made_from"] != made_from(notebook, given):
        return False
    return all(_checksum(Path(build) / file) == checksum for file, checksum in record["files"].items())


def made_from(notebook: Path, parameters: dict) -> str:
    """Compute a digest of what a notebook's results depend on.

    Args:
        notebook: its path. parameters: name -> value, as its run gets them.
    """
    cells = nbformat.read(notebook, as_version=4).cells
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    imports = fingerprint.of_notebook(code, parameters, notebook.parent)
    gpu = "cuda" in parameters.values()  # its run is what others draw: it waits for no table of another device
    names = [notebook.stem, *(["study"] if parameters.get("study_recorded") else [])]  # `training.campaign`'s
    tables = [] if gpu else sorted(path for name in names for path in RECORDED.glob(f"*/data/results/{name}*.csv"))
    if notebook.stem in READ:
        tables += sorted((ROOT / "data" / READ[notebook.stem]).glob("*.csv"))
    recorded = [_checksum(path) for path in tables]
    return fingerprint.digest([code, parameters, imports, versions(), fingerprint.hardware(gpu), recorded])


def copy(files: Iterable, source: Path, target: Path) -> None:
    """Copy files, paths relative to both folders, from `source` to `target`; each is whole or as it was."""
    for file in files:
        with replacing(Path(target) / file) as temporary:
            shutil.copyfile(Path(source) / file, temporary)


def run_all(
    notebooks: Iterable[str | Path], scale: str, build: Path, *, executor: str | int | None = None, jobs: int = 1,
    say: Callable[[str], object] = SAY, timeout: int = CELL_TIMEOUT,
) -> None:  # fmt: skip
    """Run the notebooks of a scale that are stale, each in a kernel of its own; one that fails stops no other.

    Args:
        notebooks: paths; the scales are beside them or one folder above, in scales/.
        build: folder of the executed copies, the outcomes, the results and the cache of cells.
        executor: as for `workers`, instead of the parameter `processes` of the notebooks that have it.
        jobs: notebooks at a time, each with its share of the cores. Those that share cells or training runs, which
            their metadata say ("fa_lib": {"shares": a word}), follow one another.
        say: prints what is done, a line each. timeout: seconds that a cell may take.

    Raises:
        RuntimeError: of those that failed, each in words, with the path of the notebook as far as it came.
        ValueError: as of `parameters`, or an executor that there is not; before anything runs.
    """
    if executor not in (None, "slurm") and type(executor) is not int:
        raise ValueError(f"executor: got {executor!r}; accepted is slurm or a number of processes")
    paths, build = [Path(path).resolve() for path in notebooks], Path(build).resolve()
    stale = [path for path in paths if not is_fresh(path, scale, build)]
    if stale:  # in the order of the scale's file
        order = [*_scale(stale[0], scale)[0]]
        stale.sort(key=lambda path: order.index(path.stem))
    for path in paths:
        if path not in stale:
            say(f"{path.name} is up to date")
    environment, failures, count = {"OMP_NUM_THREADS": f"{share(jobs)}"} | KEPT | os.environ, [], 0
    waiting, running = _chains(stale), {}
    if executor == "slurm":
        from fa_lib.execution.slurm import cancel_all, job_name

        environment["FA_LIB_JOB_NAME"] = job_name()
    try:
        with workers(jobs if stale else 0) as pool:
            while pool and (waiting or running):
                while waiting and len(running) < jobs:
                    path, *later = waiting.pop(0)
                    say(f"{path.name} at scale {scale}")
                    call = pool.submit(_in_worker, path, scale, build, executor, timeout, environment)
                    running[call] = path, later, time.monotonic()
                if not (ended := wait(running, timeout=5, return_when=FIRST_COMPLETED).done):
                    pool.submit(int)  # a pool whose worker was killed may forget its calls (Python 3.11); this raises
                for call in ended:
                    path, later, started = running.pop(call)
                    waiting[:0], count = [later] if later else [], count + 1
                    failures += filter(None, [failure := call.result()])
                    words = f"{'failed after' if failure else 'done in'} {time.monotonic() - started:.0f} s"
                    say(f"{path.name} {words} ({count} of {len(stale)})")
    except BaseException:
        if executor == "slurm":
            cancel_all()
        raise
    if failures:
        raise RuntimeError("\n".join(failures))


def _chains(paths):
    """Return the notebooks as lists, each of those that follow one another."""
    chains: dict[str, list[Path]] = {}
    for path in paths:
        word = nbformat.read(path, as_version=4).metadata.get("fa_lib", {}).get("shares", path.stem)
        chains.setdefault(word, []).append(path)
    return list(chains.values())


def _in_worker(path, scale, build, executor, timeout, environment):
    """`run` in a process of a pool; return why it failed, in words, or ""."""
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the command, which ends this process
    os.environ.update(environment)
    try:
        run(path, scale, build, executor, timeout)
        return ""
    except papermill.PapermillExecutionError as error:
        words = f"{path.name}: cell {error.cell_index} failed: {error.ename}: {error.evalue}"
    except Exception as error:
        words = "; ".join((f"{path.name}: {type(error).__name__}: {error}", *getattr(error, "__notes__", ())))
    kept = _failed_path(path, build)
    return f"{words}\nThe notebook as far as it came: {kept}" if kept.exists() else words


def run(
    notebook: Path, scale: str, build: Path, executor: str | int | None = None, timeout: int = CELL_TIMEOUT
) -> bool:  # fmt: skip
    """Execute a notebook at a scale, unless its outcome is fresh; return whether it ran. All arguments as of `run_all`.

    Raises:
        ValueError: as of `parameters`.
        RuntimeError: the kernel that it names imports another fa_lib.
        papermill.PapermillExecutionError: a cell failed; nbclient's CellTimeoutError: it ran past `timeout` seconds.
            The executed copy is kept as <notebook>.failed.ipynb, and no result is touched.
    """
    given, failed = parameters(notebook, scale), _failed_path(notebook, build)
    with locked_folder(build / notebook.stem, 2 * CELL_TIMEOUT):
        failed.unlink(missing_ok=True)  # of an earlier run
        if is_fresh(notebook, scale, build):
            return False
        _refuse_another_fa_lib(notebook)
        for left in build.glob(f"{notebook.stem}.*/"):  # by a run that was killed: this one holds the notebook
            shutil.rmtree(left, ignore_errors=True)
        source, started = made_from(notebook, given | dict(scale=scale)), time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"{notebook.stem}.", dir=build) as staging:
            results, executed = Path(staging) / "out", Path(staging) / notebook.name
            more = dict(cache=f"{build / 'cache'}", out=f"{results}")
            more |= {} if executor is None else dict(processes=executor)
            accepted = papermill.inspect_notebook(str(notebook))
            try:
                papermill.execute_notebook(
                    str(notebook), str(executed), given | {name: more[name] for name in more if name in accepted},
                    cwd=str(notebook.parent), execution_timeout=timeout, iopub_timeout=SLOW_S, start_timeout=SLOW_S,
                    extra_arguments=QUIET, progress_bar=False,
                    stderr_file=sys.stderr,  # the sweeps' own progress comes through
                )  # fmt: skip
            except BaseException:
                if executed.exists():
                    os.replace(executed, failed)
                raise
            files = sorted(p.relative_to(results) for p in results.rglob("*") if p.is_file())
            _outcome_path(notebook, build).unlink(missing_ok=True)  # until all files are in their place
            copy(files, results, build)
            copy([notebook.name], Path(staging), build)
        checksums = {str(file): _checksum(build / file) for file in files}
        record = dict(made_from=source, files=checksums, seconds=round(time.monotonic() - started, 1))
        with replacing(_outcome_path(notebook, build)) as temporary:
            temporary.write_text(json.dumps(record, indent=1) + "\n")
    return True


def _refuse_another_fa_lib(notebook):
    """Refuse a notebook whose kernel is of a Python that would import another fa_lib than this one, or none."""
    name = nbformat.read(notebook, as_version=4).metadata.get("kernelspec", {}).get("name", "python3")
    interpreter = KernelSpecManager().get_kernel_spec(name).argv[0]
    where = "import importlib.util as u; spec = u.find_spec('fa_lib'); print(spec and spec.origin or '')"
    words = [interpreter, "-c", where]
    origin = subprocess.run(words, cwd=notebook.parent, capture_output=True, text=True).stdout.strip()
    if not origin or Path(origin).resolve().parent != PACKAGE:
        words = f"would run the fa_lib in {Path(origin).parent}" if origin else "finds no fa_lib"
        raise RuntimeError(
            f"the notebook's kernel, {interpreter}, {words}, not this one, {PACKAGE}; accepted is a Python that has no "
            "other one, and a folder without a colon in its path"
        )


def _outcome_path(notebook, build):
    return build / f"{notebook.stem}.outcome.json"


def _failed_path(notebook, build):
    """Return where a notebook that failed is kept, as far as it came."""
    return build / f"{notebook.stem}.failed.ipynb"


def _checksum(path):
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
