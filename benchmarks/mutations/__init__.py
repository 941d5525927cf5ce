"""Defects made by machine: one change each to the text of a right kernel of the second set.

mutations.csv, population.csv: made once, by benchmarks/mutations/generate.py of commit 4a86e0b (mutmut 3.8.1)."""

from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parent
SOURCES = FOLDER.parent / "second_mutants"
AUTHORS = ("numerics", "edges")


def author_of(mutation: dict) -> str:
    """Whose kernel it changes."""
    return mutation["file"].split("_")[0]


def text(mutation: dict | None, author: str) -> str:
    """The module of an author's right kernels and their steps, with one change.

    Args:
        mutation: file, line, column, end_line, end_column, before, after: a row of mutations.csv. None: no change.
        author: of AUTHORS.

    Raises:
        ValueError: the text of `before` is not where it was.
    """
    steps, right = (_changed(f"{author}_{name}.py", mutation) for name in ("steps", "right"))
    begin = right.index(f"from benchmarks.second_mutants.{author}_steps import (")
    end = right.index(")\n", begin) + 2
    return steps + "\n\n" + right[:begin] + right[end:]


def _changed(file, mutation):
    whole = (SOURCES / file).read_text()
    if mutation is None or mutation["file"] != file:
        return whole
    starts = [0, *accumulate(map(len, whole.splitlines(keepends=True)))]
    first = starts[mutation["line"] - 1] + mutation["column"]
    last = starts[mutation["end_line"] - 1] + mutation["end_column"]
    found, before = whole[first:last], mutation["before"]
    if found.strip() != before.strip():
        raise ValueError(f"{file}, line {mutation['line']}: got {found!r}; mutations.csv has {before!r}")
    return whole[:first] + mutation["after"] + whole[last:]


def kernel(name: str, author: str, mutation: dict | None = None) -> Callable:
    """A right kernel, with one change or none. Raises: as `text`."""
    module = ModuleType("changed")
    exec(compile(text(mutation, author), "changed", "exec"), module.__dict__)  # noqa: S102, a text of this repository
    return getattr(module, name)
