"""Notebooks in turn and side by side: in which kernel they run, what follows what, and what one that fails stops.
tests/attacks/test_make.py kills them."""

import json
import os
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from fa_lib.execution.notebooks import run_all

pytestmark = pytest.mark.slow  # they start kernels
CELL = """import json, os, sys, time
import matplotlib, matplotlib.pyplot as plt
begun = time.monotonic()
found = dict(pid=os.getpid(), parent=os.getppid(), folder=os.getcwd(), backend=matplotlib.get_backend(),
             threads=os.environ['OMP_NUM_THREADS'], figures=plt.get_fignums(), left='left' in globals(),
             loaded='colorsys' in sys.modules)
import colorsys
left = plt.figure()
time.sleep(0.5)
print('printed')
{more}
with open('../{name}.json', 'w') as file:
    json.dump(dict(found, begun=begun, ended=time.monotonic()), file)"""
POOL = """from fa_lib.execution.pools import workers
with workers(1) as pool:
    assert list(pool.map(abs, [-1])) == [1]"""
SOURCES = {"01_a": "", "02_fails": "1 / 0", "03_c": "", "04_a": POOL}  # 04_a: the second notebook of its kernel


@pytest.fixture(scope="module", params=[1, 2])
def done(request, tmp_path_factory):
    """(jobs, what each notebook found, the error, the folder); 01_a and 04_a share something."""
    folder = tmp_path_factory.mktemp("notebooks")
    (folder / "notebooks/scales").mkdir(parents=True)
    (folder / "notebooks/scales/paper.yaml").write_text("".join(f"{name}: {{}}\n" for name in SOURCES))
    for name, more in SOURCES.items():
        metadata = dict(kernelspec=dict(name="python3", display_name="Python 3", language="python"))
        if name.endswith("_a"):
            metadata["fa_lib"] = dict(shares="a")
        cell = new_code_cell(CELL.format(name=name, more=more))
        nbformat.write(new_notebook(cells=[cell], metadata=metadata), folder / f"notebooks/{name}.ipynb")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError) as error:
        patch.delenv("OMP_NUM_THREADS", raising=False)
        patch.setattr(os, "cpu_count", lambda: 8)
        paths = [folder / f"notebooks/{name}.ipynb" for name in SOURCES]
        run_all(paths, "paper", folder / "build", jobs=request.param, say=lambda line: None)
    found = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    return request.param, found, f"{error.value}", folder


def test_a_notebook_that_fails_is_kept_and_stops_no_other(done):
    _, found, error, folder = done
    assert sorted(found) == ["01_a", "03_c", "04_a"]
    kept = folder / "build/02_fails.failed.ipynb"
    assert (
        error
        == f"02_fails.ipynb: cell 0 failed: ZeroDivisionError: division by zero\nThe notebook as far as it came: {kept}"
    )  # noqa: E501
    assert "ZeroDivisionError" in kept.read_text()
    [cell] = nbformat.read(folder / "build/01_a.ipynb", as_version=4).cells
    assert cell.outputs[0].text == "printed\n"


def test_kernels_have_their_share_of_the_cores_run_in_the_notebooks_folder_and_end(done):
    jobs, found, _, folder = done
    for each in found.values():
        assert each["threads"] == f"{8 // jobs}" and each["parent"] == os.getpid()
        assert Path(each["folder"]) == folder / "notebooks" and each["backend"].endswith("inline")
        assert not Path(f"/proc/{each['pid']}").exists()


def test_the_next_notebook_of_a_kernel_finds_what_is_imported_and_nothing_else(done):
    """A notebook that failed ends its kernel: the next has a new one."""
    _, found, _, _ = done
    assert not any(each["left"] or each["figures"] for each in found.values())
    pids = [found[name]["pid"] for name in ("01_a", "04_a", "03_c")]
    assert pids[0] == pids[1] != pids[2]
    assert [found[name]["loaded"] for name in ("01_a", "04_a", "03_c")] == [False, True, False]


def test_notebooks_that_share_something_follow_one_another(done):
    _, found, _, _ = done
    assert found["01_a"]["ended"] < found["04_a"]["begun"]


def test_what_is_up_to_date_starts_no_kernel(done, monkeypatch):
    _, _, _, folder = done
    monkeypatch.setattr("fa_lib.execution.notebook_kernel.KernelManager", None)
    paths, said = [folder / f"notebooks/{name}.ipynb" for name in ("01_a", "03_c")], []
    run_all(paths, "paper", folder / "build", say=said.append)
    assert said == ["01_a.ipynb is up to date", "03_c.ipynb is up to date"]
