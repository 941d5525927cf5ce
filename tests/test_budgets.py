"""The house stays as small as pyproject.toml says, and its walls stand."""

import ast
import json
import subprocess
import sys
from importlib import import_module

import pytest

from benchmarks import sizes
from fa_lib.execution.paths import NOTEBOOKS, ROOT


def test_no_package_and_no_notebook_outgrows_its_budget():
    budgets, now = sizes.budgets(), sizes.sizes()
    assert now.keys() == budgets.keys()
    assert not {name: f"{lines} of {budgets[name]}" for name, lines in now.items() if lines > budgets[name]}


def test_who_may_import_whom():
    words = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.rglob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_names_what_there_is(path):
    """Without running it: what it imports of the packages, and what it takes of the modules that it imports."""
    code = [cell["source"] for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    tree = ast.parse("".join(line for cell in code for line in [*cell, "\n"] if not line.startswith("%")))
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in sizes.PACKAGES:
            for alias in node.names:
                held = getattr(import_module(node.module), alias.name, None)
                if held is None or type(held) is type(ast):
                    modules[alias.asname or alias.name] = import_module(f"{node.module}.{alias.name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            assert hasattr(modules[node.value.id], node.attr), f"{node.value.id}.{node.attr}"


def test_to_import_fa_lib_brings_neither_notebooks_nor_training_and_changes_nothing():
    script = """
import os, sys, torch, warnings
before = dict(os.environ), list(warnings.filters)
import fa_lib
unwanted = "papermill nbformat IPython diffusers transformers lightning_fabric pandas matplotlib"
assert not set(unwanted.split()) & set(sys.modules)
assert dict(os.environ) == before[0]
import matplotlib
style = dict(matplotlib.rcParams)
import attention_check, fa_lib.execution.results, fa_lib.plots.microbenchmark, fa_lib.plots.ablation
assert dict(matplotlib.rcParams) == style and dict(os.environ) == before[0]
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
