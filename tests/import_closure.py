"""Which modules of the project a notebook imports, in all, and how many lines these are."""

import ast
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from fa_lib.execution.paths import ROOT

PACKAGES = ("fa_lib", "ptx_machine", "attention_check", "attention_gallery")


@cache
def modules() -> dict[str, Path]:
    """Find the project's modules: dotted name -> file."""
    files = {}
    for folder in (ROOT, ROOT / "instruments"):
        for path in (path for package in PACKAGES for path in (folder / package).rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def imported(source: str) -> set[str]:
    """List the project's modules that a source names in its imports, those inside of functions too."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names & modules().keys()


def closure(sources: Iterable[str]) -> set[str]:
    """List the modules that sources import, and that these import, packages included; without `fa_lib` itself, which
    imports what it names only when it is asked for."""
    seen, waiting = {"fa_lib"}, [name for source in sources for name in imported(source)]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += [*imported(modules()[name].read_text()), *filter(None, [name.rpartition(".")[0]])]
    return seen - {"fa_lib"}


def lines_imported(*notebooks: str) -> int:
    """Count the lines of all modules that notebooks of notebooks/ import, by the names of their files."""
    sources = []
    for name in notebooks:
        cells = json.loads((ROOT / "notebooks" / name).read_text())["cells"]
        sources.append("\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"))
    return sum(len(modules()[name].read_text().splitlines()) for name in closure(sources))
