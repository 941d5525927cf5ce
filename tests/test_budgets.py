"""The house stays as small as pyproject.toml says, and light to import. `make lint` holds who may import whom."""

import subprocess
import sys

from benchmarks import sizes
from fa_lib.execution.paths import ROOT


def test_no_package_and_no_notebook_outgrows_its_budget():
    budgets, now = sizes.budgets(), sizes.sizes()
    assert now.keys() == budgets.keys()
    assert not {name: f"{lines} of {budgets[name]}" for name, lines in now.items() if lines > budgets[name]}


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
