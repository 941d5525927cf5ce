"""The house: a folder imports only what stands before it, no circle, no long file, no private name used elsewhere."""

import ast
import json
import subprocess
import sys
from functools import cache

import pytest

from fa_lib.execution.paths import NOTEBOOKS, PACKAGE

ROOMS = (  # a folder of fa_lib imports only from those that stand before it
    "numerics", "execution", "kernels", "theory", "gpu", "gallery", "experiments", "check", "training", "plots",
    "testing", "commands",
)  # fmt: skip
OF_CHECK = ("isolation", "probe", "dialect", "measure", "judge", "report", "explain")
FILES = sorted(path for path in PACKAGE.rglob("*.py") if "share" not in path.relative_to(PACKAGE).parts)


def name_of(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(("fa_lib", *(parts[:-1] if parts[-1] == "__init__" else parts)))


MODULES = {name_of(path): path for path in FILES}


def imports(path):
    """(module of fa_lib, name or None, whether it is imported when the file is) of every import of fa_lib."""
    tree = ast.parse(path.read_text())
    late = {id(n) for f in ast.walk(tree) if isinstance(f, (ast.FunctionDef, ast.Lambda)) for n in ast.walk(f)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "fa_lib":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found = (inner, None) if inner in MODULES else (node.module, alias.name)
                yield *found, id(node) not in late
        elif isinstance(node, ast.Import):
            yield from ((a.name, None, id(node) not in late) for a in node.names if a.name.split(".")[0] == "fa_lib")


def test_the_rooms_are_those_that_are_named():
    def inside(folder):
        return {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}

    assert inside(PACKAGE) == {"__init__", "__main__", *ROOMS}
    assert inside(PACKAGE / "check") == {"__init__", *OF_CHECK}


@pytest.mark.parametrize("module", [name for name in MODULES if name.count(".") > 1])
def test_a_room_imports_only_what_stands_before_it(module):
    _, room, *inner = module.split(".")
    for other, _, _ in imports(MODULES[module]):
        if other == "fa_lib":
            pytest.fail(f"{module} imports from fa_lib itself: name the module")
        _, theirs, *their_inner = other.split(".")
        assert ROOMS.index(theirs) <= ROOMS.index(room), f"{module} imports {other}"
        if room == theirs == "check" and inner and their_inner:
            assert OF_CHECK.index(their_inner[0]) <= OF_CHECK.index(inner[0]), f"{module} imports {other}"


def test_there_is_no_circle():
    above = {name: {other for other, _, _ in imports(path)} - {name} for name, path in MODULES.items()}
    above.pop("fa_lib")
    left = dict(above)
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    assert not left, f"in circles: {sorted(left)}"


def test_each_file_says_what_it_holds():
    for path in FILES:
        assert ast.get_docstring(ast.parse(path.read_text())), path


def test_no_private_name_is_used_outside_its_module():
    for module, path in MODULES.items():
        for other, name, _ in imports(path):
            private = (name or "").startswith("_") or any(part.startswith("_") for part in other.split(".")[1:])
            assert not private, f"{module}: {other}.{name}"


@cache
def names_of(path):
    """All that a module binds at its top, or below conditions there."""
    tree = ast.parse(path.read_text())
    inner = {id(n) for f in tree.body if isinstance(f, (ast.FunctionDef, ast.ClassDef)) for n in ast.walk(f)}
    inner -= {id(f) for f in tree.body}
    nodes = [node for node in ast.walk(tree) if id(node) not in inner]
    found = {n.name for n in nodes if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    found |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return found | {n.asname or n.name.split(".")[0] for n in nodes if isinstance(n, ast.alias)}


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_names_what_there_is(path):
    """Without running it: what it imports of fa_lib, and what it takes of the modules that it imports."""
    code = [cell["source"] for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    tree = ast.parse("".join(line for cell in code for line in [*cell, "\n"] if not line.startswith("%")))
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "fa_lib":
            for alias in node.names:
                if (inner := f"{node.module}.{alias.name}") in MODULES:
                    modules[alias.asname or alias.name] = inner
                elif node.module != "fa_lib":
                    assert alias.name in names_of(MODULES[node.module]), inner
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            assert node.attr in names_of(MODULES[modules[node.value.id]]), f"{modules[node.value.id]}.{node.attr}"


def test_to_import_fa_lib_brings_neither_notebooks_nor_training_and_changes_nothing():
    script = """
import os, sys, torch, warnings
before = dict(os.environ), list(warnings.filters)
import fa_lib
unwanted = "papermill nbformat IPython diffusers transformers pandas matplotlib"
assert not set(unwanted.split()) & set(sys.modules)
assert dict(os.environ) == before[0]
import matplotlib
style = dict(matplotlib.rcParams)
import attention_check.measure.examine, fa_lib.execution.results, fa_lib.plots.microbenchmark, fa_lib.plots.ablation
assert dict(matplotlib.rcParams) == style and dict(os.environ) == before[0]
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.returncode == 0, done.stderr
