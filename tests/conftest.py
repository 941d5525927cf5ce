"""The order of the tests, and what several of them need."""

import gc
import shutil
import sys
from queue import Empty

import nbval.kernel
import nbval.plugin
import pytest

from fa_lib.execution import fingerprint, process_settings
from fa_lib.execution.paths import PACKAGE

process_settings.prepare()  # as commands do


FORGET = (  # the reset deletes __spec__ too, without which multiprocessing starts no process
    "import matplotlib.pyplot; matplotlib.pyplot.close('all'); get_ipython().run_line_magic('reset', '-f'); "
    "__import__('sys').modules['__main__'].__spec__ = None"
)


class SharedKernel(nbval.kernel.RunningKernel):
    """A notebook's kernel, kept for the next one: what the first imports and compiles, the next finds ready."""

    def stop(self):
        try:
            self.await_reply(self.execute_cell_input(FORGET), timeout=60)
        except Empty:  # a cell is at work still, whatever interrupts it
            super().stop()


KERNELS: dict[str, SharedKernel] = {}


def running_kernel(name, **options):
    """The kernel of this process by that name, in place of a new one for each notebook."""
    if name not in KERNELS or not KERNELS[name].is_alive():
        KERNELS[name] = SharedKernel(name, **options)
    return KERNELS[name]


nbval.plugin.RunningKernel = running_kernel

LONG = "test_make", "test_notebooks", "test_report", "test_unusual_kernels", "test_carry", "test_isolated_kernel"


def pytest_runtest_teardown():
    process_settings.give_back()


def pytest_addoption(parser):
    parser.addoption("--kills", type=int, default=20, help="of tests/faults.py: how many")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What tests import stays until the end, so Python need not search it for garbage again and again."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


def pytest_collection_modifyitems(items):
    """What takes longest comes first, a file at a time, so that two processes end together."""
    items.sort(key=lambda item: (item.path.stem not in LONG, item.path.suffix != ".ipynb"))


@pytest.fixture
def edited(tmp_path, monkeypatch):
    """edited(module, file -> text): as if fa_lib's sources were a copy, with this text added to these files, for what
    depends on the functions of a module. Each call begins from the sources as they are."""

    def edit(module, added):
        copy = tmp_path / f"copy{len(list(tmp_path.glob('copy*')))}" / "fa_lib"
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        for name, text in added.items():
            with open(copy / name, "a") as file:
                file.write(text)
        monkeypatch.setitem(fingerprint.PACKAGES, "fa_lib", copy)
        monkeypatch.setattr(module, "__file__", str(copy.joinpath(*module.__name__.split(".")[1:]).with_suffix(".py")))

    return edit


HEAD = """
import atexit, os, random, signal, sys, threading, time
import numpy, torch
import torch.nn.functional as F

kept = []

def right(q, k, v, causal=False, scale=None):
    if q.dtype in (torch.float16, torch.float64):
        raise NotImplementedError("in BF16 and FP32")
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
"""


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """stranger(name, text) -> "name:f", of a module that holds the text, and that nobody imports here."""
    monkeypatch.syspath_prepend(tmp_path)

    def written(name, text="def f(q, k, v): return right(q, k, v)"):
        (tmp_path / f"{name}.py").write_text(HEAD + text + "\n")
        return f"{name}:f"

    yield written
    assert not [path.stem for path in tmp_path.glob("*.py") if path.stem in sys.modules]
