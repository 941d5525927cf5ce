"""A grid of cells to one tidy table, cached cell by cell, on any executor."""

import hashlib
import importlib.metadata
import inspect
import itertools
import json
import multiprocessing
import os
import re
import sys
import threading
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, ProcessPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import numpy
import pandas as pd
import torch
from tqdm import tqdm

from fa_lib import kernels
from fa_lib.paths import replacing


def sweep(fn, grid, *, cache=None, executor=None):
    """Call `fn(**cell)` for every cell of a grid and put the rows together.

    Args:
        fn: returns a dict, or a list of them: the rows of one cell. A function of a module where an executor
            carries it to other processes.
        grid: name -> value or list of values (lists, tuples and ranges are axes; texts and numbers are fixed).
        cache: folder that holds each finished cell; a cell found there is not computed again, so an interrupted
            sweep goes on where it was. A cell of other code or other versions, or a damaged file, is recomputed.
        executor: a concurrent.futures.Executor; `workers` makes one, of processes or of Slurm jobs. None works here,
            one cell after the other. Processes must be spawned: torch's threads do not survive a fork.

    Returns:
        pandas.DataFrame in the grid's order: the cell's parameters, then the columns of fn's rows.

    Raises:
        ValueError: an axis without values, a parameter that fn does not have, or with a cache a value that JSON
            cannot hold.
        Exception: what fn raised, with the cell in a note; finished cells stay in the cache. With an executor each
            failure is printed as it happens, the other cells are finished, and the first one is raised at the end.
    """
    cells = list(expand(grid))
    try:
        for cell in cells:
            inspect.signature(fn).bind(**cell)
    except TypeError as error:
        raise ValueError(f"grid: {error}; accepted are the parameters {inspect.signature(fn)}") from None
    store = _Store(cache, fn, cells) if cache else None
    rows = {i: store.get(cell) for i, cell in enumerate(cells)} if store else {}
    todo = [i for i in range(len(cells)) if rows.get(i) is None]
    with tqdm(total=len(cells), initial=len(cells) - len(todo), desc=fn.__name__, unit="cell") as bar:
        for i, result in _results(fn, {i: cells[i] for i in todo}, executor):
            rows[i] = result if isinstance(result, list) else [result]
            if store:
                store.put(cells[i], rows[i])
            bar.update()
    return pd.DataFrame([cell | row for i, cell in enumerate(cells) for row in rows[i]])


@contextmanager
def workers(count):
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
            from fa_lib.cluster import Slurm
        except ModuleNotFoundError as error:
            raise ValueError(f"executor: 'slurm' needs {error.name}; pip install 'fa_lib[cluster]'") from error
        with Slurm() as jobs:
            yield jobs
        return
    if type(count) is not int or count < 0:
        raise ValueError(f"executor: got {count!r}; accepted is 'slurm' or a number of processes")
    context, others = multiprocessing.get_context("spawn"), multiprocessing.active_children()
    with ProcessPoolExecutor(count, mp_context=context, initializer=_settle) as pool:
        try:
            yield pool
        except BrokenExecutor:  # of a worker killed while another began, Python 3.11 waits for the other
            for child in multiprocessing.active_children():
                if child not in others:
                    child.kill()
            raise


def _settle():
    """One thread; and a worker whose parent is killed ends too, instead of working on beside what takes over."""
    torch.set_num_threads(1)

    def follow():
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def expand(grid):
    """The cells of a grid: every combination of its axes, the last axis fastest."""
    grid = {name: v.tolist() if isinstance(v, numpy.ndarray) else v for name, v in grid.items()}
    axes = {name: list(v) if isinstance(v, (list, tuple, range)) else [v] for name, v in grid.items()}
    for name, values in axes.items():
        if not values:
            raise ValueError(f"grid: {name} has no values; accepted is a value or a list of at least one")
    return (dict(zip(axes, values)) for values in itertools.product(*axes.values()))


def _results(fn, cells, executor):
    """(index, rows) of each cell as it is done."""
    if executor is None:
        pairs = ((i, lambda cell=cell: fn(**cell)) for i, cell in cells.items())
    else:
        futures = {executor.submit(fn, **cell): i for i, cell in cells.items()}
        pairs = ((futures[future], future.result) for future in _as_done(futures, executor))
    failures = []
    try:
        for i, result in pairs:
            try:
                row = result()
            except Exception as error:
                error.add_note(f"in the cell {cells[i]}")
                if executor is None or isinstance(error, BrokenExecutor):
                    raise
                words = "; ".join((f"{type(error).__name__}: {error}", *error.__notes__))
                tqdm.write(f"{words}; the other cells go on", file=sys.stderr)
                failures.append(error)
            else:
                yield i, row
        if failures:
            failures[0].add_note(f"{len(failures)} of {len(cells)} cells failed")
            raise failures[0]
    finally:
        if executor is not None:
            for future in futures:
                future.cancel()


def _as_done(futures, executor):
    """Futures as they are done. Some of a pool whose worker was killed while they were submitted never are (Python
    3.11), but it refuses another."""
    left = set(futures)
    while left:
        done, left = wait(left, timeout=5, return_when=FIRST_COMPLETED)
        yield from done
        if not done and isinstance(executor, ProcessPoolExecutor):
            executor.submit(int)


class _Store:
    """Finished cells, one JSON file each: what was computed, by which code, and a checksum over both."""

    def __init__(self, folder, fn, cells):
        self.folder = Path(folder) / fn.__name__
        self.code = code_version(fn, cells)
        try:
            digest(cells)
        except TypeError as error:
            raise ValueError(f"grid: {error}; accepted with a cache are numbers, texts, True, False and None") from None

    def _path(self, cell):
        return self.folder / f"{digest([self.code, cell])[:24]}.json"

    def get(self, cell):
        try:
            text = self._path(cell).read_text()
            rows = json.loads(text)["rows"]
            return rows if text == self._text(cell, rows) else None  # to the letter: a changed bit anywhere is seen
        except (OSError, ValueError, KeyError, TypeError):
            return None  # absent, cut short or not ours: computed again, and replaced

    def _text(self, cell, rows):
        checksum = digest([self.code, cell, rows])
        cell = dict(sorted(cell.items()))  # as its path has it
        return json.dumps({"code": self.code, "cell": cell, "rows": rows, "checksum": checksum})

    def put(self, cell, rows):
        with replacing(self._path(cell)) as path:
            path.write_text(self._text(cell, rows))


_HERE = Path(__file__).parent
_AROUND = [  # no number of a sweep depends on them
    _HERE / f"{name}.py"
    for name in ("claims", "cluster", "plots", "run", "results", "paths", "plots_why", "plots_report", "report",
                 "verdict", "capture", "explore", "plots_explore", "plots_model", "training/plots")
]  # fmt: skip
CORE = [p.read_text() for p in sorted([*_HERE.rglob("*.py"), *_HERE.rglob("*.yaml")]) if p not in _AROUND]


def code_version(fn, cells=()):
    """A digest of what a cell's numbers depend on: the core of fa_lib as it was loaded, the libraries' versions, the
    processor's instructions and, where cells name it, the GPU; fn and its module; what the cells name."""
    versions = [importlib.metadata.version(library) for library in ("torch", "numpy", "gfloat", "numba")]
    hardware = [torch.backends.cpu.get_cpu_capability()]
    if torch.cuda.is_available() and any("cuda" in cell.values() for cell in cells):
        hardware.append(torch.cuda.get_device_name())
    registered = [_module_text(kernels.get(name)) for name in _names(cells) if name in kernels.available()]
    parts = [*CORE, *versions, *hardware, _module_text(fn), *registered, *own_files(cells)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def own_files(cells):
    """Texts of the reader's own files that cells name: kernels as package.module:function, configurations as .yaml."""
    names = _names(cells)
    own = [_module_text(kernels.get(name)) for name in names if re.fullmatch(r"[\w.]+:\w+", name)]
    return own + [Path(name).read_text() for name in names if name.endswith(".yaml") and Path(name).is_file()]


def _names(cells):
    """The texts in cells, and their words, sorted: one may name several kernels."""
    texts = {value for cell in cells for value in cell.values() if isinstance(value, str)}
    return sorted(texts | {word for text in texts for word in text.split()})


def _module_text(fn):
    """A kernel's own text, and the file it comes from, which it may call; its name where it has none."""
    try:
        text = inspect.getsource(inspect.unwrap(fn))
    except (TypeError, OSError):  # compiled
        text = repr(fn)
    path = getattr(inspect.getmodule(inspect.unwrap(fn)), "__file__", None)
    return text + (Path(path).read_bytes().hex() if path else "")


def digest(value):
    """SHA-256 of a value as JSON holds it: the checksum of what is kept."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
