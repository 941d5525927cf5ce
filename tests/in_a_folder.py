"""What tests of commands share: the command line in this process, files of captured calls, drawn tensors."""

import json
import runpy
import sys

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from fa_lib.commands.cli import app
from fa_lib.execution import reader_modules
from fa_lib.kernels.inputs import draw

SDPA = "from torch.nn.functional import scaled_dot_product_attention as sdpa\n"


@pytest.fixture
def own_path(monkeypatch):
    """Commands that run in this process look for modules in folders that go with the test."""
    monkeypatch.setattr(reader_modules, "_FOLDERS", [])
    monkeypatch.setattr(sys, "path", [*sys.path])


def command(*words):
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [*map(str, words)], prog_name="fa-lib")


def recorded(path, what):
    """The findings of a kind in a record that a command wrote with --json."""
    return [each for each in json.loads(path.read_text())["findings"] if each["what"] == what]


def written_test_says(test, monkeypatch, kernel=""):
    """What a test that `fa-lib shrink` wrote says when it fails; "" where it passes. kernel: in place of its own."""
    monkeypatch.setenv("KERNEL", kernel)
    try:
        (test_function,) = (x for name, x in runpy.run_path(str(test)).items() if name.startswith("test_"))
        test_function()
    except (AssertionError, RuntimeError) as error:
        return str(error)
    return ""


def saved(folder, **held):
    file = folder / "call.safetensors"
    save_file({name: x.contiguous() for name, x in held.items()}, file)
    return file


def normal(*shape, dtype=torch.float32, kv=None, seed=0):
    return [x.to(dtype) for x in draw("normal", seed, shape, kv)]
