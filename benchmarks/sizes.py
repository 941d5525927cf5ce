"""Print how large the house is, beside its budgets: `python -m benchmarks.sizes`. tests/test_repository.py holds them.

The budgets stand in pyproject.toml, `[tool.fa_lib.budgets]`, in lines of Python with comments and blank lines."""

import ast
import json
import tomllib
from pathlib import Path

import grimp

from fa_lib.execution.paths import NOTEBOOKS, ROOT

PACKAGES = ("fa_lib", "ptx_machine", "attention_check", "attention_gallery")
FOLDERS = {
    "fa_lib": ["fa_lib"],
    "ptx_machine": ["instruments/ptx_machine"],
    "attention_check": ["instruments/attention_check"],
    "attention_gallery": ["instruments/attention_gallery"],
    "tests, benchmarks, examples": ["tests", "benchmarks", "examples"],
}
CHECK = "attention_check.commands.reports"  # what `fa-lib check kernel` runs


def main():
    print(table())


def table() -> str:
    """What is counted, its lines and its budget, a row each."""
    limits = budgets()
    rows = [f"{name:<32} {count:>7,} of {limits[name]:>7,}" for name, count in sizes().items()]
    return "\n".join(["Lines of Python", *rows])


def budgets() -> dict[str, int]:
    """The most lines of what is counted, by name."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["fa_lib"]["budgets"]


def sizes() -> dict[str, int]:
    """The lines of each package, and of the modules that a notebook or a command reaches by imports, by name."""
    found = {name: lines(file for folder in folders for file in (ROOT / folder).rglob("*.py"))
             for name, folders in FOLDERS.items()}  # fmt: skip
    graph = imports()
    for number in ("01", "02", "03", "04"):
        (notebook,) = NOTEBOOKS.glob(f"{number}_*.ipynb")
        found[f"reached by notebook {number}"] = lines(files(reached(graph, imported(notebook, graph))))
    return found | {"reached by check kernel": lines(files(reached(graph, {CHECK})))}


def lines(files) -> int:
    return sum(len(file.read_text().splitlines()) for file in files)


def imports() -> grimp.ImportGraph:
    """Who imports whom in the four packages, also inside functions; what the packages' own __init__ import is left
    out, for they look it up when it is asked for."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True, cache_dir=None)
    for package in PACKAGES:
        for module in list(graph.find_modules_directly_imported_by(package)):
            graph.remove_import(importer=package, imported=module)
    return graph


def reached(graph: grimp.ImportGraph, modules: set[str]) -> set[str]:
    """Modules and all that they import, directly or not, without the packages' own __init__."""
    return modules.union(*map(graph.find_upstream_modules, modules)) - {*PACKAGES}


def imported(notebook: Path, graph: grimp.ImportGraph) -> set[str]:
    """The modules that the cells of a notebook import."""
    cells = json.loads(notebook.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    nodes = ast.walk(ast.parse("\n".join(line for line in "\n".join(code).splitlines() if not line.startswith("%"))))
    names = [
        name
        for node in nodes
        if isinstance(node, ast.ImportFrom | ast.Import)
        for alias in node.names
        for name in ([f"{node.module}.{alias.name}", node.module] if isinstance(node, ast.ImportFrom) else [alias.name])
    ]
    return graph.modules.intersection(names)


def files(modules: set[str]) -> list[Path]:
    """Where modules are written down."""
    bases = [ROOT.joinpath(*name.split(".")) for name in modules if name.startswith("fa_lib")]
    bases += [ROOT.joinpath("instruments", *name.split(".")) for name in modules if not name.startswith("fa_lib")]
    return [base / "__init__.py" if base.is_dir() else base.with_suffix(".py") for base in bases]


if __name__ == "__main__":
    main()
