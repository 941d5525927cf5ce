"""Defects made by machine: one change each to the text of a right kernel of the second set. `text` makes the module."""

from pathlib import Path

FOLDER = Path(__file__).parent
SOURCES = FOLDER.parent / "second_mutants"
AUTHORS = ("numerics", "edges")


def text(mutation: dict | None, author: str) -> str:
    """The module of an author's right kernels and their steps, with one change.

    Args:
        mutation: file, line, column, end_line, end_column, before, after: a row of mutations.csv. None: no change.
        author: "numerics" or "edges".

    Raises:
        ValueError: the text of `before` is not where it was.
    """
    parts = []
    for name in ("steps", "right"):
        file = f"{author}_{name}.py"
        lines = (SOURCES / file).read_text().splitlines(keepends=True)
        if mutation and mutation["file"] == file:
            starts = [0]
            for line in lines:
                starts.append(starts[-1] + len(line))
            first = starts[mutation["line"] - 1] + mutation["column"]
            last = starts[mutation["end_line"] - 1] + mutation["end_column"]
            whole = "".join(lines)
            if whole[first:last].strip() != mutation["before"].strip():
                raise ValueError(
                    f"{file}, line {mutation['line']}: got {whole[first:last]!r}; "
                    f"mutations.csv has {mutation['before']!r}"
                )
            lines = [whole[:first] + mutation["after"] + whole[last:]]
        parts.append("".join(lines))
    steps, right = parts
    begin = right.index(f"from benchmarks.second_mutants.{author}_steps import (")
    end = right.index(")\n", begin) + 2
    return steps + "\n\n" + right[:begin] + right[end:]
