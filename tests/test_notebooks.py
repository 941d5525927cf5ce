"""`make figures`: what papermill runs, refuses, leaves behind, and when it runs again; notebooks side by side.
tests/attacks/test_make.py runs make, and kills them."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import nbformat
import papermill
import pytest
from nbclient.exceptions import CellTimeoutError
from nbformat.v4 import new_code_cell, new_notebook

from fa_lib.execution import results
from fa_lib.execution.notebooks import is_fresh, of_scale, outcome, parameters, run, run_all, stamp

pytestmark = pytest.mark.slow  # each starts a notebook's kernel
KERNEL = dict(kernelspec=dict(name="python3", display_name="Python 3", language="python"))


@pytest.fixture
def project(tmp_path):
    (tmp_path / "notebooks" / "scales").mkdir(parents=True)
    (tmp_path / "notebooks" / "scales" / "paper.yaml").write_text("01_small: {n: 3}\n")
    write(tmp_path, "01_small")
    return tmp_path


def write(project, name, middle="", after=""):
    cells = [
        new_code_cell("n = 2\nout = ''\ncache = ''", metadata={"tags": ["parameters"]}),
        new_code_cell("from pathlib import Path\n" + middle),
        new_code_cell(
            f"table = Path(out) / 'data/results/{name}.csv'\ntable.parent.mkdir(parents=True, exist_ok=True)\n"
            "table.write_text(f'n\\n{n}\\n')\ntable.with_suffix('.provenance.json').write_text('{}')\n" + after
        ),
    ]
    nbformat.write(new_notebook(cells=cells, metadata=KERNEL), project / "notebooks" / f"{name}.ipynb")


def small(project, **more):
    return run(project / "notebooks" / "01_small.ipynb", "paper", project / "build", **more)


def everything(project):
    files = (p for p in project.rglob("*") if p.is_file() and "notebooks" not in str(p) and p.suffix != ".lock")
    return sorted(str(p.relative_to(project / "build")) for p in files)


WHOLE = [
    "01_small.ipynb", "01_small.outcome.json",
    "data/results/01_small.csv", "data/results/01_small.provenance.json",
]  # fmt: skip


def test_a_notebook_runs_at_its_scale_and_again_only_when_something_changed(project):
    table, notebook = project / "build/data/results/01_small.csv", project / "notebooks/01_small.ipynb"
    assert small(project) and table.read_text() == "n\n3\n" and everything(project) == WHOLE
    os.utime(notebook, (2e9, 2e9))  # a clock an hour, or decades, ahead
    assert not small(project)
    table.unlink()  # a file that is gone is made again
    assert not is_fresh(notebook, "paper", project / "build")
    assert small(project) and table.exists()
    (project / "build/data/results/01_small.provenance.json").write_text("damaged")
    assert not is_fresh(notebook, "paper", project / "build")
    (project / "notebooks/scales/paper.yaml").write_text("01_small: {n: 4}\n")
    assert small(project) and table.read_text() == "n\n4\n"
    write(project, "01_small", middle="x = 1")
    os.utime(notebook, (1e9, 1e9))  # edited, and older than what was made of it
    assert not is_fresh(notebook, "paper", project / "build")


@pytest.mark.parametrize(
    "scale, message",
    [
        ("01_small: {m: 3}", "01_small has no parameter 'm'; accepted are n, out, cache"),
        ("02_other: {n: 3}", "names the notebook '02_other'; accepted are 01_small"),
    ],
)
def test_what_no_notebook_has_is_refused(project, scale, message):
    (project / "notebooks" / "scales" / "paper.yaml").write_text(scale)
    with pytest.raises(ValueError, match=message):
        small(project)
    with pytest.raises(ValueError, match="scale: got 'huge'; accepted are paper"):
        parameters(project / "notebooks" / "01_small.ipynb", "huge")
    assert not (project / "build").exists()


def test_a_failing_notebook_is_kept_with_its_traceback_and_nothing_is_half_written(project):
    small(project)
    write(project, "01_small", after="table.write_text('n\\n99\\n')\n1 / 0")
    with pytest.raises(papermill.PapermillExecutionError) as failure:
        small(project)
    assert failure.value.ename == "ZeroDivisionError"
    assert (project / "build/data/results/01_small.csv").read_text() == "n\n3\n"
    assert everything(project) == sorted([*WHOLE, "01_small.failed.ipynb"])
    assert "ZeroDivisionError" in (project / "build/01_small.failed.ipynb").read_text()
    write(project, "01_small")
    small(project)
    assert everything(project) == WHOLE


def test_a_cell_has_a_timeout(project):
    write(project, "01_small", middle="import time; time.sleep(60)")
    with pytest.raises(CellTimeoutError):
        small(project, timeout=2)
    assert everything(project) == ["01_small.failed.ipynb"]


def test_a_notebook_that_a_scale_does_not_name_is_refused_and_one_that_it_leaves_out_is_not_of_it(project):
    write(project, "02_other")
    both = [project / "notebooks" / f"{name}.ipynb" for name in ("01_small", "02_other")]
    with pytest.raises(ValueError, match=r"^02_other: paper.yaml does not name it; .* or under left_out$"):
        run_all(both, "paper", project / "build", say=lambda words: None)
    (project / "notebooks/scales/paper.yaml").write_text("01_small: {n: 3}\nleft_out: [02_other]\n")
    assert of_scale(both, "paper") == both[:1]
    with pytest.raises(ValueError, match="^02_other: the scale paper leaves it out; accepted are 01_small$"):
        run(both[1], "paper", project / "build")
    (project / "notebooks/scales/paper.yaml").write_text("01_small: {n: 3}\nleft_out: [03_gone]\n")
    with pytest.raises(ValueError, match="names the notebook '03_gone'; accepted are 01_small, 02_other"):
        of_scale(both, "paper")


def test_a_damaged_outcome_is_none(tmp_path):
    path, notebook = tmp_path / "01_small.outcome.json", Path("01_small.ipynb")
    whole = json.dumps(dict(made_from="x", files={}, seconds=1.0))
    path.write_text(whole)
    assert outcome(notebook, tmp_path) == json.loads(whole)
    for cut in range(len(whole)):
        path.write_text(whole[:cut])
        assert outcome(notebook, tmp_path) is None


CELL = """import json, os, time
import matplotlib
found = dict(begun=time.monotonic(), folder=os.getcwd(), backend=matplotlib.get_backend(), pid=os.getpid(),
             threads=os.environ['OMP_NUM_THREADS'])
print('printed')
{more}
with open('../{name}.json', 'w') as file:
    json.dump(dict(found, ended=time.monotonic()), file)"""
POOL = """from fa_lib.execution.pools import workers
with workers(1) as pool:
    assert list(pool.map(abs, [-1])) == [1]"""
SOURCES = {"01_a": "time.sleep(1)", "02_fails": "1 / 0", "03_c": "time.sleep(1)", "04_a": POOL}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """(what each notebook found, the error, the folder) of two at a time; 01_a and 04_a share something."""
    folder = tmp_path_factory.mktemp("notebooks")
    (folder / "notebooks/scales").mkdir(parents=True)
    (folder / "notebooks/scales/paper.yaml").write_text("".join(f"{name}: {{}}\n" for name in SOURCES))
    for name, more in SOURCES.items():
        metadata = KERNEL | (dict(fa_lib=dict(shares="a")) if name.endswith("_a") else {})
        cell = new_code_cell(CELL.format(name=name, more=more))
        nbformat.write(new_notebook(cells=[cell], metadata=metadata), folder / f"notebooks/{name}.ipynb")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError) as error:
        patch.delenv("OMP_NUM_THREADS", raising=False)
        patch.setattr(os, "cpu_count", lambda: 8)
        paths = [folder / f"notebooks/{name}.ipynb" for name in SOURCES]
        run_all(paths, "paper", folder / "build", jobs=2, say=lambda line: None)
    found = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    return found, f"{error.value}", folder


def test_a_notebook_that_fails_is_kept_and_stops_no_other(done):
    found, error, folder = done
    assert sorted(found) == ["01_a", "03_c", "04_a"]
    kept = folder / "build/02_fails.failed.ipynb"
    words = "02_fails.ipynb: cell 0 failed: ZeroDivisionError: division by zero\nThe notebook as far as it came: "
    assert error == f"{words}{kept}" and "ZeroDivisionError" in kept.read_text()
    [cell] = nbformat.read(folder / "build/01_a.ipynb", as_version=4).cells
    assert cell.outputs[0].text == "printed\n"


def test_kernels_have_their_share_of_the_cores_run_in_the_notebooks_folder_and_end(done):
    found, _, folder = done
    for each in found.values():
        assert each["threads"] == "4" and each["backend"].endswith("inline")
        assert Path(each["folder"]) == folder / "notebooks" and not Path(f"/proc/{each['pid']}").exists()
    assert "OMP_NUM_THREADS" not in os.environ or os.environ["OMP_NUM_THREADS"] != "4"


def test_notebooks_that_share_something_follow_one_another(done):
    found, _, _ = done
    assert found["01_a"]["ended"] < found["04_a"]["begun"]
    assert found["03_c"]["begun"] < found["04_a"]["ended"]


def test_notebooks_start_in_the_order_of_the_scales_file(project):
    (project / "notebooks/scales/paper.yaml").write_text("02_other: {n: 3}\n01_small: {n: 3}\n")
    shutil.copy(project / "notebooks/01_small.ipynb", project / "notebooks/02_other.ipynb")
    both, said = [project / f"notebooks/{name}.ipynb" for name in ("01_small", "02_other")], []
    run_all(both, "paper", project / "build", say=said.append)
    assert [line.split()[0] for line in said if "at scale" in line] == ["02_other.ipynb", "01_small.ipynb"]


def test_what_is_published_names_a_commit_that_has_its_code(tmp_path, monkeypatch):
    """A run with changes that were committed afterwards; a commit that was amended; one that led here."""
    monkeypatch.setattr(results, "CHECKOUT", tmp_path)

    def commit(*words):
        call = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a", *words]
        subprocess.run(["git", "add", "-A"], cwd=tmp_path, check=True)
        subprocess.run(call, cwd=tmp_path, check=True)
        return results.commit()

    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "fa_lib").mkdir()
    (tmp_path / "fa_lib/a.py").write_text("1")
    first = commit()
    (tmp_path / "fa_lib/a.py").write_text("2")
    (tmp_path / "notes.txt").write_text("")
    assert results.uncommitted(".", ":!fa_lib") == ["notes.txt"]
    assert results.commit() == f"{first} with uncommitted changes"
    record = tmp_path / "a.provenance.json"
    amended = commit()
    head = commit("--amend", "--no-edit", "--date", "2001-01-01T00:00:00")
    named = {first: first, f"{first} with uncommitted changes": head, amended: head}
    for before, after in named.items():
        record.write_text(json.dumps(dict(commit=before, seconds=1.0)))
        stamp(record)
        assert json.loads(record.read_text()) == dict(commit=after, seconds=1.0)
