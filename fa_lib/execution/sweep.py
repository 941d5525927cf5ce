"""A grid of cells to one tidy table, cached cell by cell, on any executor."""

import builtins
import inspect
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, ProcessPoolExecutor, wait
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import numpy
import pandas as pd
from tqdm import tqdm

from fa_lib.execution.cache import Cells
from fa_lib.execution.fingerprint import code_version, digest


def sweep(
    fn: Callable, grid: dict, *, fixed: dict | None = None, uses: Iterable = (), cache: str | Path = "",
    executor: Executor | None = None,
) -> pd.DataFrame:  # fmt: skip
    """Call `fn(**cell)` for every cell of a grid and put the rows together.

    Args:
        fn: a function that returns the rows of one cell: a dict, or a list of them. With an executor of other processes
            it is a function of a module.
        grid: name -> value or list of values (lists, tuples and ranges are axes; texts and numbers are one value).
        fixed: name -> value, of any type, the same for every cell.
        uses: functions, and paths of files, that results depend on and that fn does not import: kernels that cells
            name. (A text "package.module:function" in a cell counts without that.)
        cache: folder that holds each finished cell; a cell found there is not computed again, so an interrupted
            sweep resumes. A cell of other code or other versions, or a damaged file, is recomputed.
        executor: a concurrent.futures.Executor; `pools.workers` makes one, of processes or of Slurm jobs. With None
            this process computes one cell after the other. A process that is forked must have one thread: torch's
            others do not survive a fork.

    Returns:
        pandas.DataFrame in the grid's order: the cell's parameters, then the columns of fn's rows. Fixed numbers and
        texts are columns too, and so are the fields of a fixed dataclass; no other fixed value is.

    Raises:
        ValueError: an axis without values, a parameter that fn does not have, or with a cache a value that JSON
            cannot hold.
        Exception: what fn raised, with the cell in a note; finished cells stay in the cache. With an executor each
            failure is printed as it happens, the other cells are finished, and the first one is raised at the end.
    """
    fixed = fixed or {}
    cells = [cell | fixed for cell in expand(grid)]
    try:
        for cell in cells:
            inspect.signature(fn).bind(**cell)
    except TypeError as error:
        raise ValueError(f"grid: {error}; accepted are the parameters {inspect.signature(fn)}") from None
    keys = [{name: _as_json(x) for name, x in cell.items()} for cell in cells]
    finished = _finished_cells(fn, keys, uses, cache)
    cached = {i: finished.get(key) for i, key in enumerate(keys)} if finished else {}
    rows = {i: found for i, found in cached.items() if found is not None}
    todo = [i for i in range(len(cells)) if i not in rows]
    hide = False if hasattr(builtins, "__IPYTHON__") else None  # None: unless on a terminal; a notebook's page is none
    named: dict[str, Any] = dict(desc=fn.__name__, unit="cell", leave=False, disable=hide)
    with tqdm(total=len(cells), initial=len(cells) - len(todo), **named) as bar:
        for i, result in _results(fn, {i: cells[i] for i in todo}, executor):
            rows[i] = result if isinstance(result, list) else [result]
            if finished:
                finished.put(keys[i], rows[i])
            bar.update()
    return pd.DataFrame([_columns(cell, fixed) | row for i, cell in enumerate(cells) for row in rows[i]])


def expand(grid: dict) -> Iterator[dict]:
    """Make the cells of a grid: every combination of its axes, the last axis fastest.

    Args:
        grid: as of `sweep`.

    Returns:
        dicts: name -> value.

    Raises:
        ValueError: an axis has no values.
    """
    grid = {name: v.tolist() if isinstance(v, numpy.ndarray) else v for name, v in grid.items()}
    axes = {name: list(v) if isinstance(v, (list, tuple, range)) else [v] for name, v in grid.items()}
    for name, values in axes.items():
        if not values:
            raise ValueError(f"grid: {name} has no values; accepted is a value or a list of at least one")
    return (dict(zip(axes, values)) for values in itertools.product(*axes.values()))


def _fields(value: object) -> dict[str, Any] | None:
    """Return name -> value of a dataclass's instance; None for any other value, and for one with a text of its own."""
    if is_dataclass(value) and not isinstance(value, type) and type(value).__str__ is object.__str__:
        return asdict(value)
    return None


def _as_json(value):
    """A dataclass as a dict, or as its text where it has one (in a list these only); any other value as it is."""
    if isinstance(value, (list, tuple)):
        return [*map(_text, value)]
    fields = _fields(value)
    return _text(value) if fields is None else fields


def _text(value):
    """A dataclass with a text of its own as this text; any other value as it is."""
    return str(value) if is_dataclass(value) and not isinstance(value, type) else value


def _finished_cells(fn, keys, uses, cache):
    """Return the Cells of fn; None without a cache.

    Raises:
        ValueError: JSON cannot hold a cell.
    """
    if not cache:
        return None
    try:
        digest(keys)
    except TypeError as error:
        raise ValueError(f"grid: {error}; accepted with a cache are numbers, texts, True, False and None") from None
    return Cells(cache, fn.__name__, code_version(fn, keys, uses))


def _columns(cell, fixed):
    """Return the columns that a row has of its cell: name -> value."""
    columns = {}
    for name, x in cell.items():
        if (fields := _fields(x)) is not None:
            columns |= fields
        elif name not in fixed or x is None or isinstance(_text(x), (str, int, float)):
            columns[name] = _text(x)
    return columns


def _results(fn, cells, executor):
    """Yield (index, rows) of each cell as it is done."""
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
    """Yield futures as they are done. Where a pool's worker was killed while calls were submitted, some futures never
    are (Python 3.11); then another call, which the pool refuses, raises."""
    left = set(futures)
    while left:
        done, left = wait(left, timeout=5, return_when=FIRST_COMPLETED)
        yield from done
        if not done and isinstance(executor, ProcessPoolExecutor):
            executor.submit(int)
