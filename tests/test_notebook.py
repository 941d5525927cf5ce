"""make figures: what papermill runs, refuses, leaves behind, and when it runs again."""

import json
import os
import shutil
import subprocess
import sys
import threading

import nbformat
import papermill
import pytest
from nbclient.exceptions import CellTimeoutError
from nbformat.v4 import new_code_cell, new_notebook

from fa_lib.execution import manifest, results
from fa_lib.execution.files import locked_folder
from fa_lib.execution.notebook import Refused, is_fresh, of_scale, parameters, run
from fa_lib.execution.notebooks import run_all
from fa_lib.execution.paths import ROOT

pytestmark = pytest.mark.slow  # each starts a notebook's kernel


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
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(new_notebook(cells=cells, metadata=kernel), project / "notebooks" / f"{name}.ipynb")


def small(project, scale="paper", **more):
    return run(project / "notebooks" / "01_small.ipynb", scale, project / "build", **more)


def everything(project):
    files = (p for p in project.rglob("*") if p.is_file() and "notebooks" not in str(p) and p.suffix != ".lock")
    return sorted(str(p.relative_to(project / "build")) for p in files)


WHOLE = [
    "01_small.ipynb", "01_small.outcome.json",
    "data/results/01_small.csv", "data/results/01_small.provenance.json",
]  # fmt: skip


def test_a_notebook_runs_at_its_scale_and_again_only_when_something_changed(project):
    table = project / "build/data/results/01_small.csv"
    assert small(project) == project / "build/01_small.ipynb"
    assert table.read_text() == "n\n3\n" and everything(project) == WHOLE
    assert small(project) is None  # nothing changed: it does not run
    os.utime(project / "notebooks/01_small.ipynb", (2e9, 2e9))  # a clock an hour, or decades, ahead
    assert small(project) is None
    table.unlink()
    assert small(project) and table.exists()  # a file that is gone is made again
    (project / "build/data/results/01_small.provenance.json").write_text("damaged")
    assert small(project)
    (project / "notebooks/scales/paper.yaml").write_text("01_small: {n: 4}\n")
    assert small(project) and table.read_text() == "n\n4\n"
    before = os.stat(table).st_mtime_ns
    write(project, "01_small", middle="x = 1")
    os.utime(project / "notebooks/01_small.ipynb", (1e9, 1e9))  # edited, and older than what was made of it
    assert small(project) and os.stat(table).st_mtime_ns > before


@pytest.mark.parametrize(
    "scale, message",
    [
        ("01_small: {m: 3}", "01_small has no parameter 'm'; accepted are n, out, cache"),
        ("02_other: {n: 3}", "names the notebook '02_other'; accepted are 01_small"),
    ],
)
def test_what_no_notebook_has_is_refused(project, scale, message):
    (project / "notebooks" / "scales" / "paper.yaml").write_text(scale)
    with pytest.raises(Refused, match=message):
        small(project)
    with pytest.raises(Refused, match="scale: got 'huge'; accepted are paper"):
        parameters(project / "notebooks" / "01_small.ipynb", "huge")
    with pytest.raises(Refused, match="executor: got 'slrum'; accepted is slurm or a number of processes"):
        small(project, executor="slrum")
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
    with pytest.raises(RuntimeError, match=r"(?s)01_small.ipynb: cell \d failed: ZeroDivisionError.*as far as it came"):
        run_all([project / "notebooks/01_small.ipynb"], "paper", project / "build", say=lambda words: None)
    write(project, "01_small")
    small(project)
    assert everything(project) == WHOLE


def test_a_cell_has_a_timeout(project):
    write(project, "01_small", middle="import time; time.sleep(60)")
    with pytest.raises(CellTimeoutError):
        small(project, timeout=2)
    assert everything(project) == ["01_small.failed.ipynb"]


def test_two_at_once_run_a_notebook_once(project):
    write(project, "01_small", middle="import time; time.sleep(1)")
    done = []
    both = [threading.Thread(target=lambda: done.append(small(project))) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert sorted(map(bool, done)) == [False, True] and everything(project) == WHOLE


def test_a_folder_is_held_by_one_and_let_go_by_one_that_is_killed(tmp_path):
    script = f"from fa_lib.execution.files import locked_folder\nwith locked_folder({str(tmp_path / 'x')!r}):\n    print('held', flush=True)\n    input()"  # noqa: E501
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stdin=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        with (
            pytest.raises(ValueError, match=f"folder: {tmp_path / 'x'} is in use"),
            locked_folder(tmp_path / "x", seconds=0.3),
        ):
            pass
        other.kill()
    with locked_folder(tmp_path / "x", seconds=5):
        assert not (tmp_path / "x").exists()


def test_results_on_another_file_system_are_copied_there(project):
    with open("/proc/mounts") as mounts:
        assert any(line.split()[1] == "/dev/shm" for line in mounts), "this test needs /dev/shm"
    there = f"/dev/shm/fa_lib-{os.getpid()}"
    try:
        small(project, into=there)
        assert os.stat(there).st_dev != os.stat(project).st_dev
        assert sorted(os.listdir(f"{there}/data/results")) == ["01_small.csv", "01_small.provenance.json"]
        assert is_fresh(project / "notebooks/01_small.ipynb", "paper", project / "build", type(project)(there))
    finally:
        shutil.rmtree(there, ignore_errors=True)


def test_a_notebook_that_a_scale_does_not_name_is_refused_and_one_that_it_leaves_out_is_not_of_it(project):
    write(project, "02_other")
    both = [project / "notebooks" / f"{name}.ipynb" for name in ("01_small", "02_other")]
    with pytest.raises(Refused, match=r"^02_other: paper.yaml does not name it; .* or under left_out$"):
        run_all(both, "paper", project / "build", say=lambda words: None)
    assert not (project / "build").exists()  # it is said before anything runs
    (project / "notebooks/scales/paper.yaml").write_text("01_small: {n: 3}\nleft_out: [02_other]\n")
    assert of_scale(both, "paper") == both[:1]
    with pytest.raises(Refused, match="^02_other: the scale paper leaves it out; accepted are 01_small$"):
        run(both[1], "paper", project / "build")
    (project / "notebooks/scales/paper.yaml").write_text("01_small: {n: 3}\nleft_out: [03_gone]\n")
    with pytest.raises(Refused, match="names the notebook '03_gone'; accepted are 01_small, 02_other"):
        of_scale(both, "paper")


def test_a_damaged_outcome_is_none(tmp_path):
    manifest.write(tmp_path / "a.json", "x", [], tmp_path)
    assert manifest.fresh(tmp_path / "a.json", "x", tmp_path) and not manifest.fresh(tmp_path / "a.json", "y", tmp_path)
    whole = (tmp_path / "a.json").read_text()
    for cut in range(len(whole) - 1):
        (tmp_path / "a.json").write_text(whole[:cut])
        assert not manifest.fresh(tmp_path / "a.json", "x", tmp_path)


def make(folder, *words):
    return subprocess.run(
        ["make", f"PYTHON={sys.executable}", "--no-print-directory", *words],
        cwd=folder, capture_output=True, text=True, env={k: v for k, v in os.environ.items() if "MAKE" not in k},
    )  # fmt: skip


def test_make_figures_runs_what_changed_and_leaves_the_checkout_as_it_was(tmp_path):
    """In a copy of the repository at a small scale: all, then what was damaged; then they are published."""
    for name in ("fa_lib", "notebooks", "data", "Makefile", "README.md", "pyproject.toml", ".gitignore"):
        source = ROOT / name
        ignored = shutil.ignore_patterns(".ipynb_checkpoints", "results", "0[0149]*", "0[5-8]*", "1*")
        shutil.copytree(source, tmp_path / name, ignore=ignored) if source.is_dir() else shutil.copy(source, tmp_path)
    scale = "02_precision: {n: 128, seeds: 2}\n03_golden_value: {n: 128, seeds: 2, lengths: [128]}\n"
    (tmp_path / "notebooks/scales/paper.yaml").write_text(scale)
    (tmp_path / "data/results").mkdir()
    (tmp_path / "docs/paper").mkdir(parents=True)
    shutil.copy(ROOT / "docs/paper/claims.md", tmp_path / "docs/paper")
    subprocess.run("git init -q && git add -A && git -c user.name=a -c user.email=a@b commit -qm a", shell=True,
                   cwd=tmp_path, check=True)  # fmt: skip
    first = make(tmp_path, "figures", "JOBS=2")
    assert first.returncode == 0, first.stderr
    assert first.stdout.count(f"figures are in {tmp_path}/build/figures") == 1
    assert first.stdout.count("(1 of 2)") == first.stdout.count("(2 of 2)") == 1 and "IPKernelApp" not in first.stderr
    figures = sorted(p.name for p in (tmp_path / "build/figures").iterdir())
    assert figures == [f"{n}.{s}" for n in ("figure3_precision", "figure4_golden_value") for s in ("png", "svg")]
    status = ["git", "status", "--porcelain"]
    assert subprocess.run(status, cwd=tmp_path, capture_output=True, text=True).stdout == ""
    readme = (tmp_path / "README.md").read_text()
    (tmp_path / "README.md").write_text("changed")
    refused = publish(tmp_path)
    assert refused.returncode == 2 and "publish: not committed: README.md; accepted is a clean tree" in refused.stderr
    assert not (tmp_path / "figures").exists() and not [*(tmp_path / "data/results").iterdir()]
    (tmp_path / "README.md").write_text(readme)
    (tmp_path / "docs/paper/ledger.md").write_text("what publish writes itself is no reason")
    (tmp_path / "build/data/results/03_golden_value.csv").write_text("")
    published = make(tmp_path, "publish")
    assert published.returncode == 0, published.stderr
    assert "02_precision.ipynb is up to date" in published.stdout
    assert "03_golden_value.ipynb at scale paper" in published.stdout
    assert (tmp_path / "figures/figure3_precision.png").exists()
    assert "N = 128" in (tmp_path / "docs/paper/ledger.md").read_text()
    page = (tmp_path / "docs/paper/claims.md").read_text()
    (tmp_path / "build/figures/figure3_precision.png").unlink()
    refused = publish(tmp_path)
    assert refused.returncode == 2 and "02_precision.ipynb is not up to date" in refused.stderr
    assert (tmp_path / "docs/paper/claims.md").read_text() == page


def publish(folder):
    words = [sys.executable, "-m", "fa_lib", "dev", "publish"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True)


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
        results.stamp(record)
        assert json.loads(record.read_text()) == dict(commit=after, seconds=1.0)


def test_make_alone_prints_the_targets():
    printed = make(ROOT).stdout
    for target in ("figures", "publish", "test", "test-fast", "lab", "claims", "bench", "lint", "clean"):
        assert f"\n{target} " in printed or printed.startswith(target)
