"""The built wheel in an empty environment, in another folder: `make test-install`. (Not collected by `make test`.)"""

import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from fa_lib.execution.paths import ROOT
from install_locked import hashed, versions

HEAVY = ("jupyterlab", "papermill", "diffusers", "transformers", "pytest")


def run(*words, cwd):
    """Run a command as one who has no checkout: `make` puts this one on PYTHONPATH, before what is installed."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([str(word) for word in words], cwd=cwd, env=env, capture_output=True, text=True)
    print(*words, done.returncode, done.stdout[-1500:], done.stderr[-1500:], sep="\n")
    return done


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """The folder of an empty environment's commands, after the wheel was installed in it."""
    home = tmp_path_factory.mktemp("home")
    assert run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", home, ROOT, cwd=home).returncode == 0
    (wheel,) = home.glob("fa_lib-*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", home / "venv", cwd=home)
    pip = [sys.executable, "-m", "pip", "--python", home / "venv"]
    (home / "versions.txt").write_text(versions(hashed()))
    install = ("install", "--quiet", "--no-compile", "--constraint", home / "versions.txt", wheel)
    assert run(*pip, *install, cwd=home).returncode == 0
    assert run(*pip, "check", cwd=home).returncode == 0
    return home / "venv" / "bin"


def contents(installed):
    """The installed package, file by file, but for compiled code."""
    (package,) = (installed.parent / "lib").glob("python*/site-packages/fa_lib")
    files = [p for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    return {str(p.relative_to(package)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_what_runs_is_what_was_installed(installed, tmp_path):
    code = "import fa_lib.execution.paths as p; print(p.PACKAGE, p.CHECKOUT)"
    package, checkout = run(installed / "python", "-c", code, cwd=tmp_path).stdout.split()
    assert package.startswith(str(installed.parent)) and checkout == "None"


def test_the_install_is_thin(installed):
    pip = [sys.executable, "-m", "pip", "--python", installed.parent]
    held = json.loads(run(*pip, "list", "--format=json", cwd="/").stdout)
    names = {package["name"].lower() for package in held}
    assert not names & set(HEAVY) and {"torch", "numba", "gfloat", "typer"} <= names
    code = "import sys, pytest_fa_lib; print(sorted({'fa_lib', 'torch'} & {*sys.modules}))"  # at pytest's every start
    assert run(installed / "python", "-c", code, cwd="/").stdout == "[]\n"
    assert {"share/data/published.csv", "share/notebooks/02_precision.ipynb"} <= contents(installed).keys()


def test_a_kernel_is_judged_and_nothing_is_written_into_the_package(installed, tmp_path):
    before = contents(installed)
    (tmp_path / "mine.py").write_text((ROOT / "examples/my_kernel.py").read_text())
    with ThreadPoolExecutor() as both:
        words = (("flash", "--json", "out.json"), ("mine:attention",))
        check = partial(run, installed / "fa-lib", "check", "kernel", "--exit-code", "--quick", cwd=tmp_path)
        done, bad = both.map(lambda more: check(*more), words)
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "out.json").read_text())
    assert told["passed"] is True and told["findings"] and told["versions"]["torch"] and told["parameters"]
    assert "flash passes" in (tmp_path / "build/reports/flash.html").read_text()
    assert bad.returncode == 1 and "fails" in bad.stdout
    assert contents(installed) == before


def test_the_ledger_is_printed_and_what_needs_an_extra_says_which(installed, tmp_path):
    ledger = run(installed / "fa-lib", "dev", "claims", cwd=tmp_path)
    assert ledger.returncode == 0 and "**reproduced**" in ledger.stdout
    figures = run(installed / "fa-lib", "dev", "figures", cwd=tmp_path)
    assert figures.returncode == 2 and "pip install 'fa_lib[notebooks]'" in figures.stderr
    train = run(installed / "fa-lib", "dev", "train", "--out", "x", cwd=tmp_path)
    assert train.returncode == 2 and "pip install 'fa_lib[train]'" in train.stderr
    assert list(tmp_path.iterdir()) == []
