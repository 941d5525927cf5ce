"""Make the defects of mutations.csv by machine: one change each to the text of a right kernel of the second set. The
operators that change code are mutmut's; one of ours rounds a value to the inputs' format. It takes many minutes.

    pip install mutmut==3.8.1
    python -m benchmarks.mutations.generate
"""

import math
import os
import random
from collections.abc import Iterator

import libcst as cst
import pandas as pd
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider
from mutmut.mutation.mutators import mutation_operators
from tqdm import tqdm

from benchmarks.mutations import AUTHORS, FOLDER, SOURCES, author_of, kernel, text
from benchmarks.mutations.fuzz import compared, first_call
from fa_lib.execution.pools import workers

SEED = 0
FINE = 0.02  # of the largest value: an error at the first call that nobody sees
DRAWN = {  # how many, of each kind of those that get through a first call
    "raises": 30, "no number": 60, "wrong": 70, "less exact": 110, "as exact": 80, "same bits": 40,
}  # fmt: skip


class Definitions(cst.CSTVisitor):
    """Functions and classes of a text, the names that each uses, and the changes that can be made in each.

    Attributes:
        names: definition -> names in it.
        found: (definition, operator, position, before, after).
    """

    METADATA_DEPENDENCIES = (PositionProvider, ParentNodeProvider)

    def __init__(self, text: str):
        self.names: dict[str, set[str]] = {}
        self.found: list[tuple] = []
        self._open: list[cst.FunctionDef | cst.ClassDef] = []
        self._module = cst.parse_module(text)
        MetadataWrapper(self._module, unsafe_skip_copy=True).visit(self)

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, (cst.Annotation, cst.Decorator)):
            return False
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            self._open.append(node)
        if self._open:
            own = self._open[0].name.value
            names = self.names.setdefault(own, set())
            names |= {node.value} if isinstance(node, cst.Name) else set()
            for kind, operator in mutation_operators:
                for after in operator(node) if isinstance(node, kind) else ():
                    self._add(own, operator.__name__, node, self._module.code_for_node(after))
            for after in self._rounded(node):
                self._add(own, "rounded", node, after)
        return True

    def on_leave(self, node: cst.CSTNode) -> None:
        if self._open and self._open[-1] is node:
            self._open.pop()

    def _rounded(self, node: cst.CSTNode) -> Iterator[str]:
        """A sum, product or value of a function, rounded to the inputs' format, if the function knows it."""
        functions = [each for each in self._open if isinstance(each, cst.FunctionDef)]
        if isinstance(node, (cst.BinaryOperation, cst.Call)) and functions:
            known = {name for each in self._open for name in _assigned(each)}
            dtype = "dtype" if "dtype" in known else "q.dtype" if "q" in known else None
            if dtype and not isinstance(self.get_metadata(ParentNodeProvider, node), cst.Arg):
                yield f"rounded({self._module.code_for_node(node)}, {dtype})"

    def _add(self, own, operator, node, after):
        at = self.get_metadata(PositionProvider, node, None)
        if at is not None:
            before = self._module.code_for_node(node)
            self.found.append(
                (own, operator, (at.start.line, at.start.column, at.end.line, at.end.column), before, after)
            )


def _assigned(function: cst.CSTNode) -> set[str]:
    """Names that a function has from its parameters or assignments."""
    found = set()
    for node in _walk(function):
        if isinstance(node, cst.Param):
            found.add(node.name.value)
        elif isinstance(node, cst.AssignTarget):
            targets = (
                [each.value for each in node.target.elements] if isinstance(node.target, cst.Tuple) else [node.target]
            )
            found |= {target.value for target in targets if isinstance(target, cst.Name)}
    return found


def _walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from _walk(child)


def candidates() -> pd.DataFrame:
    """Every change to a right kernel, or to a step that one takes: a row each, with one of the kernels that take it."""
    rows, draw = [], random.Random(SEED)
    for author in AUTHORS:
        texts = {name: Definitions((SOURCES / f"{author}_{name}.py").read_text()) for name in ("steps", "right")}
        names = {own: used for text in texts.values() for own, used in text.names.items()}
        kernels = [own for own in texts["right"].names if not own.startswith("_")]
        taken = {name: _reached(name, names) for name in kernels}
        for part, parsed in texts.items():
            for own, operator, at, before, after in parsed.found:
                takers = [name for name in kernels if own in taken[name]]
                if takers:
                    place = dict(zip(("line", "column", "end_line", "end_column"), at))
                    of = dict(kernel=draw.choice(takers), file=f"{author}_{part}.py")
                    rows.append(of | place | dict(operator=operator, before=before, after=after))
    every = pd.DataFrame(rows)
    return every[[_stands(mutation) for mutation in rows]]


def _stands(mutation: dict) -> bool:
    """Whether its text is at its place: of what stands in parentheses the place is that within them."""
    try:
        text(mutation, author_of(mutation))
    except ValueError:
        return False
    return True


def _reached(name: str, names: dict[str, set[str]]) -> set[str]:
    found, todo = set(), [name]
    while todo:
        own = todo.pop()
        if own in names and own not in found:
            found.add(own)
            todo += names[own]
    return found


def fuzzed(mutations: list[dict]) -> list[dict]:
    """`first_call` of changes to one kernel, and `compared` of those that get through it."""
    name, author = mutations[0]["kernel"], author_of(mutations[0])
    right, rows = kernel(name, author), []
    for mutation in mutations:
        changed = kernel(name, author, mutation)
        first = first_call(changed)
        fine = not isinstance(first, str) and first <= FINE
        rows.append(dict(first=first, fine=fine, **(compared(right, changed) if fine else {})))
    return rows


def kind(row: pd.Series) -> str:
    """What random calls say of a change."""
    if not row.fine:
        return "seen at a first call"
    if row.same:
        return "same bits"
    if math.isinf(row.worst):
        return "raises" if row["where"].endswith("Error") else "no number"
    return "wrong" if row.worst > 100 else "less exact" if row.worst > 2 else "as exact"


def main():
    every = candidates()
    groups = [rows for _, rows in every.groupby("kernel")]
    with workers(os.cpu_count()) as executor:
        found = executor.map(fuzzed, [rows.to_dict("records") for rows in groups])
        rows = [
            each.join(pd.DataFrame(said, index=each.index)) for each, said in zip(tqdm(groups, unit="kernel"), found)
        ]
    every = pd.concat(rows).sort_index()
    every["kind"] = [kind(row) for _, row in every.iterrows()]
    every.groupby(["kind", "operator"]).size().rename("changes").reset_index().to_csv(
        FOLDER / "population.csv", index=False
    )
    drawn = [every[every.kind == each].sample(count, random_state=SEED) for each, count in DRAWN.items()]
    pd.concat(drawn).sort_index().drop(columns=["first", "fine"]).to_csv(FOLDER / "mutations.csv", index_label="number")


if __name__ == "__main__":
    main()
