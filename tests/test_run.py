"""make figures: what papermill runs, refuses, and leaves behind."""

import os
import shutil
import subprocess
import sys

import nbformat
import papermill
import pytest
from nbclient.exceptions import CellTimeoutError
from nbformat.v4 import new_code_cell, new_notebook

from fa_lib.execution.notebook import Refused, main, parameters, run
from fa_lib.paths import ROOT


@pytest.fixture
def project(tmp_path):
    (tmp_path / "notebooks" / "scales").mkdir(parents=True)
    (tmp_path / "notebooks" / "scales" / "paper.yaml").write_text("01_small: {n: 3}\n")
    write(tmp_path, "01_small")
    return tmp_path


def write(project, name, middle="", after=""):
    cells = [
        new_code_cell("n = 2\nout = ''\ncache = ''", metadata={"tags": ["parameters"]}),
        new_code_cell("import pandas as pd\nfrom fa_lib.execution.results import save\n" + middle),
        new_code_cell(f"save(out, {name!r}, dict(n=n), pd.DataFrame(dict(n=[n])))\n{after}"),
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(new_notebook(cells=cells, metadata=kernel), project / "notebooks" / f"{name}.ipynb")


def everything(project):
    return sorted(str(p.relative_to(project)) for p in project.rglob("*") if p.is_file() and "notebooks" not in str(p))


def test_a_notebook_runs_at_its_scale_and_leaves_its_results(project):
    run(project / "notebooks" / "01_small.ipynb", "paper", root=project)
    assert (project / "data/results/01_small.csv").read_text() == "n\n3\n"
    assert everything(project) == [
        "build/01_small.ipynb", "data/results/01_small.csv", "data/results/01_small.provenance.json",
    ]  # fmt: skip


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
        run(project / "notebooks" / "01_small.ipynb", "paper", root=project)
    assert everything(project) == []
    with pytest.raises(Refused, match="scale: got 'huge'; accepted are paper"):
        parameters(project / "notebooks" / "01_small.ipynb", "huge", project)


def test_a_failing_notebook_is_kept_with_its_traceback_and_nothing_is_half_written(project):
    run(project / "notebooks" / "01_small.ipynb", "paper", root=project)
    before = everything(project)
    write(project, "01_small", after="n = 99\nsave(out, '01_small', {}, pd.DataFrame(dict(n=[n])))\n1 / 0")
    with pytest.raises(papermill.PapermillExecutionError) as failure:
        run(project / "notebooks" / "01_small.ipynb", "paper", root=project)
    assert failure.value.ename == "ZeroDivisionError"
    assert (project / "data/results/01_small.csv").read_text() == "n\n3\n"
    assert everything(project) == sorted([*before, "build/01_small.failed.ipynb"])
    assert "ZeroDivisionError" in (project / "build/01_small.failed.ipynb").read_text()
    write(project, "01_small")
    run(project / "notebooks" / "01_small.ipynb", "paper", root=project)
    assert everything(project) == before


def test_a_cell_has_a_timeout(project):
    write(project, "01_small", middle="import time; time.sleep(60)")
    with pytest.raises(CellTimeoutError):
        run(project / "notebooks" / "01_small.ipynb", "paper", root=project, timeout=2)
    assert "data/results/01_small.csv" not in everything(project)
    assert "build/01_small.failed.ipynb" in everything(project)


def test_what_there_is_not_is_refused_and_what_a_scale_does_not_name_is_left_alone(project, monkeypatch, capsys):
    notebook = project / "notebooks" / "01_small.ipynb"
    with pytest.raises(Refused, match="executor: got 'slrum'; accepted is slurm or a number of processes"):
        run(notebook, "paper", root=project, executor="slrum")
    (project / "notebooks" / "scales" / "other.yaml").write_text("")
    monkeypatch.setattr(run, "__defaults__", (project, 60, None, None))
    monkeypatch.setattr(sys, "argv", ["run", str(notebook), "--scale", "other"])
    main()
    assert "01_small.ipynb is not of this scale: its results stay as they are" in capsys.readouterr().out
    assert everything(project) == []


def test_a_cache_that_is_asked_for_is_the_one(project):
    write(project, "01_small", middle="print(repr(cache))")
    for given, cache in (({}, str(project / "build" / "cache")), (dict(cache=""), "")):
        executed = run(project / "notebooks" / "01_small.ipynb", "paper", root=project, **given)
        assert f"{cache!r}\n" in nbformat.read(executed, 4).cells[-2].outputs[0].text


def test_the_command_names_notebook_and_cell(project, monkeypatch):
    write(project, "01_small", middle="raise ValueError('no such thing')")
    monkeypatch.setattr("fa_lib.execution.notebook.ROOT", project)
    monkeypatch.setattr(run, "__defaults__", (project, 60, None, None))
    monkeypatch.setattr(sys, "argv", ["run", str(project / "notebooks" / "01_small.ipynb")])
    with pytest.raises(SystemExit, match=r"01_small.ipynb: cell \d failed: ValueError: no such thing"):
        main()


def make(folder, *words):
    return subprocess.run(
        ["make", f"PYTHON={sys.executable}", "--no-print-directory", *words],
        cwd=folder, capture_output=True, text=True, env={k: v for k, v in os.environ.items() if "MAKE" not in k},
    )  # fmt: skip


def test_make_figures_runs_what_changed(tmp_path):
    """In a copy of the repository at a small scale: two at once, then nothing, then the one that was edited."""
    for name in ("fa_lib", "notebooks", "data", "Makefile", "README.md", "pyproject.toml"):
        source = ROOT / name
        ignored = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints", "results", "0[014-9]*", "1*")
        shutil.copytree(source, tmp_path / name, ignore=ignored) if source.is_dir() else shutil.copy(source, tmp_path)
    small = "{n: 128, seeds: 2}"
    (tmp_path / "notebooks/scales/paper.yaml").write_text(
        "".join(f"{n}: {small}\n" for n in ("02_precision", "03_golden_value"))
    )
    first = make(tmp_path, "-j2", "figures")
    assert first.returncode == 0, first.stderr
    figures = sorted(p.name for p in (tmp_path / "figures").iterdir())
    assert figures == [f"{n}.{s}" for n in ("figure3_precision", "figure4_golden_value") for s in ("png", "svg")]
    assert "N = 128, d = 64" in (tmp_path / "README.md").read_text()
    stamp = lambda name: (tmp_path / "data/results" / name).stat().st_mtime_ns  # noqa: E731
    before = [stamp(f"{n}.csv") for n in ("02_precision", "03_golden_value")]
    second = make(tmp_path, "figures")
    assert second.returncode == 0 and second.stdout == ""
    assert [stamp(f"{n}.csv") for n in ("02_precision", "03_golden_value")] == before
    (tmp_path / "notebooks/02_precision.ipynb").touch()
    assert make(tmp_path, "figures").returncode == 0
    after = [stamp(f"{n}.csv") for n in ("02_precision", "03_golden_value")]
    assert after[0] > before[0] and after[1] == before[1]
    (tmp_path / "data/results/03_golden_value.csv").unlink()
    assert "03_golden_value" in make(tmp_path, "figures").stdout and stamp("03_golden_value.csv")
    shutil.copy(tmp_path / "notebooks/scales/paper.yaml", tmp_path / "notebooks/scales/other.yaml")
    other = make(tmp_path, "figures", "SCALE=other").stdout
    assert "02_precision.ipynb at scale other" in other and "03_golden_value.ipynb at scale other" in other


def test_make_alone_prints_the_targets():
    printed = make(ROOT).stdout
    for target in ("figures", "test", "lab", "claims", "bench", "lint", "clean"):
        assert f"\n{target} " in printed
