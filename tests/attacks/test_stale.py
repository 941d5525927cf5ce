"""Numbers of code that is gone: a damaged compiled cache, an edited import, another repository's commit."""

import os
import shutil
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_notebook

from fa_lib.execution import results
from fa_lib.execution.notebooks import _refuse_another_fa_lib
from fa_lib.execution.paths import PACKAGE, ROOT


def python(*words, cwd=ROOT, **environment):
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | environment
    return subprocess.run([sys.executable, *map(str, words)], cwd=cwd, capture_output=True, text=True, env=env)


def test_a_folder_inside_another_repository_has_not_its_commit(tmp_path, monkeypatch):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "inner").mkdir()
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "another"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(results, "CHECKOUT", tmp_path / "inner")
    assert results.commit() == "not a git checkout"
    monkeypatch.setattr(results, "CHECKOUT", tmp_path)
    assert len(results.commit()) == 40
    monkeypatch.setattr(results, "CHECKOUT", ROOT)
    own = results.commit()
    monkeypatch.setenv("GIT_DIR", str(tmp_path / ".git"))  # as within a hook of another repository
    assert results.commit() == own


@pytest.fixture
def other(tmp_path):
    """A folder with another fa_lib: a package that says where it is."""
    folder = tmp_path / "other: it"
    (folder / "fa_lib").mkdir(parents=True)
    (folder / "fa_lib/__init__.py").write_text("")
    (folder / "fa_lib/__main__.py").write_text("print('the other one')")
    return folder


KERNEL = "import fa_lib\nfrom fa_lib import kernels\ndef f(q, k, v):\n    raise ValueError(fa_lib.__file__)\n"


def test_a_kernel_in_another_checkout_has_the_fa_lib_of_the_command(other):
    """As where `pip install .` was run in a checkout, and `fa-lib` in it; a change of the checkout is reported."""
    (other / "pyproject.toml").write_text('[project]\nname = "fa_lib"\n')
    (other / "mine.py").write_text(KERNEL)
    words = ("-P", "-m", "fa_lib", "check", "kernel", "mine:f", "--quick", "--exit-code", "--out", "pages")
    done = python(*words, cwd=other, PYTHONPATH=str(ROOT))
    assert done.returncode == 1 and f"ValueError: {PACKAGE / '__init__.py'}" in done.stdout, done.stderr
    assert done.stderr == f"fa-lib: {PACKAGE} runs; {other / 'fa_lib'} has other code, which `python -m fa_lib` runs\n"
    shutil.rmtree(other / "fa_lib")
    for folder in ("fa_lib", "instruments"):
        shutil.copytree(ROOT / folder, other / folder, ignore=shutil.ignore_patterns("__pycache__"))
    assert python(*words, cwd=other, PYTHONPATH=str(ROOT)).stderr == ""


def test_no_results_are_written_into_a_checkout_by_another(other):
    (other / "pyproject.toml").write_text('[project]\nname = "fa_lib"\n')
    done = python("-P", "-m", "fa_lib", "dev", "claims", cwd=other, PYTHONPATH=str(ROOT))
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"fa-lib: {PACKAGE} would run in {other}," in done.stderr


def test_a_notebook_whose_kernel_has_another_fa_lib_is_not_run(other, tmp_path, monkeypatch):
    nbformat.write(new_notebook(), notebook := tmp_path / "01_x.ipynb")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # as where the folder of this one has a colon: Python splits there
    (other / "fa_lib").rename(tmp_path / "fa_lib")
    with pytest.raises(RuntimeError, match=f"would run .* {tmp_path / 'fa_lib'}, not .*{PACKAGE}"):
        _refuse_another_fa_lib(notebook)
    (tmp_path / "fa_lib").rename(tmp_path / "elsewhere")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    _refuse_another_fa_lib(notebook)
