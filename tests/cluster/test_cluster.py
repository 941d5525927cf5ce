"""On a real Slurm of two nodes: sweeps, training, notebooks; preempted, failing and interrupted."""

import json
import signal
import subprocess
import sys

import nbformat
import pandas as pd
import pytest
from cells import begun_again, on_a_node, sometimes
from conftest import ask, order, wait
from nbformat.v4 import new_code_cell, new_notebook
from runs import same_weights

from fa_lib import sweep
from fa_lib.execution.notebooks import run
from fa_lib.execution.paths import ROOT
from fa_lib.execution.pools import workers
from fa_lib.execution.results import device
from fa_lib.execution.slurm import DEFAULTS, settings
from fa_lib.training.config import Config
from fa_lib.training.run_folder import weights
from fa_lib.training.study import StudySpec, train_arm


def test_two_nodes_finish_a_sweep_with_the_table_of_one_process(tmp_path):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    grid = dict(fmt=["BF16", "FP16"], seed=range(3))
    here = sweep(on_a_node, grid | dict(folder=str(tmp_path / "here")))
    with workers("slurm") as jobs:
        there = sweep(on_a_node, grid | dict(folder=str(tmp_path / "there")), executor=jobs)
    pd.testing.assert_frame_equal(there.drop(columns="folder"), here.drop(columns="folder"), check_exact=True)
    cells = [(tmp_path / "there" / node).read_text().splitlines() for node in ("n1", "n2")]
    assert all(cells) and sum(map(len, cells)) == 6 and jobs.devices == [device() | dict(threads=1)]


@pytest.mark.parametrize("words", [["scancel", "--signal=USR2"], ["scontrol", "requeue"]])
def test_a_preempted_training_run_goes_on_and_ends_with_the_same_bits(words, tmp_path):
    cell = dict(arm="flash", seed=0, spec=StudySpec(seeds=1, steps=300, every=10, config=Config.load("tiny")))
    with workers("slurm") as jobs:
        future = jobs.submit(begun_again, tmp_path / "begun", folder=str(tmp_path / "there"), **cell)
        wait(lambda: list((tmp_path / "there").glob("*/weights-000020.*")))
        (folder,) = (path for path in (tmp_path / "there").iterdir() if path.is_dir())
        first = weights(folder, 10).stat()
        order(*words, (tmp_path / "begun").read_text().strip())
        row = future.result(300)
    begun, second = (tmp_path / "begun").read_text().split(), weights(row["at"], 10).stat()
    assert len(begun) > 1 and len(set(begun)) == 1, begun  # Slurm begins the same job again
    assert (first.st_ino, first.st_mtime_ns) == (second.st_ino, second.st_mtime_ns)  # it went on
    here = train_arm(folder=str(tmp_path / "here"), **cell)
    assert row["status"] == "done" and row["loss"] == here["loss"] and same_weights(row["at"], here["at"], 300)


def test_settings_that_do_not_fit_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "own.yaml"
    monkeypatch.setenv("FA_LIB_CLUSTER", str(path))
    with pytest.raises(ValueError, match="FA_LIB_CLUSTER: got '.*own.yaml', which does not exist"):
        settings()
    path.write_text("[time, 3]")
    with pytest.raises(ValueError, match="own.yaml: got .*time.*; accepted is a mapping"):
        settings()
    path.write_text("{tyme: 3}")
    with pytest.raises(ValueError, match="(?s)tyme.*Valid parameters are"):
        workers("slurm").__enter__()
    path.write_text("{mem: 1GB, partition: nowhere}")
    assert settings() == DEFAULTS | dict(mem="1GB", partition="nowhere")
    with pytest.raises(Exception, match="invalid partition"), workers("slurm") as jobs:
        sweep(sometimes, dict(a=range(3)), executor=jobs)


def test_a_job_that_finds_other_code_than_its_sender_refuses(monkeypatch):
    monkeypatch.setattr("fa_lib.execution.slurm.code_version", lambda *_: "older")
    with pytest.raises(RuntimeError, match="its code was changed after this job was sent"), workers("slurm") as jobs:
        jobs.submit(abs, -1).result(120)


def test_what_fails_is_reported_with_its_log_and_the_rest_finish(tmp_path, capfd):
    with pytest.raises(RuntimeError, match="(?s)ValueError: no luck.*_log.out"), workers("slurm") as jobs:
        sweep(sometimes, dict(a=range(4)), cache=tmp_path, executor=jobs)
    assert "in the cell {'a': 1}; the other cells go on" in capfd.readouterr().err
    assert len(list(tmp_path.rglob("*.json"))) == 3  # the others are done and kept


def write(project, cell):
    """A notebook in a project of its own, which sends its cells where `processes` says so."""
    (project / "notebooks" / "scales").mkdir(parents=True)
    (project / "notebooks" / "scales" / "paper.yaml").write_text("01_small: {}\n")
    imports = f"from cells import {cell.partition(',')[0]}\nfrom fa_lib.execution.pools import workers\n"
    imports += "from fa_lib.execution.sweep import sweep\nwith workers(processes) as pool:\n"
    table = f"    table = sweep({cell}, executor=pool)\n"
    save = "from fa_lib.execution.results import save\nsave(out, '01_small', {}, table, pool=pool)"
    cells = [new_code_cell("out = ''\nprocesses = 0", metadata={"tags": ["parameters"]})]
    cells += [new_code_cell(imports + table + save)]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(new_notebook(cells=cells, metadata=kernel), project / "notebooks" / "01_small.ipynb")
    return project / "notebooks" / "01_small.ipynb"


def test_a_notebook_that_sends_its_cells_leaves_the_same_files(tmp_path):
    (tmp_path / "nodes").mkdir()
    cell = f"on_a_node, dict(fmt='BF16', seed=[0, 1], folder={str(tmp_path / 'nodes')!r})"
    for name, executor in (("here", None), ("there", "slurm")):
        assert run(write(tmp_path / name, cell), "paper", tmp_path / name / "build", executor)
    here, there = (tmp_path / name / "build/data/results" for name in ("here", "there"))
    assert (here / "01_small.csv").read_text() == (there / "01_small.csv").read_text()
    jobs = [json.loads((folder / "01_small.provenance.json").read_text()).get("jobs") for folder in (here, there)]
    assert jobs == [None, [device() | dict(threads=1)]]


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_a_closed_terminal_end_the_jobs(by, tmp_path):
    begun = tmp_path / "begun"
    notebook = write(tmp_path, f"forever, dict(begun={str(begun)!r})")
    script = "import signal, sys\nfrom fa_lib.commands.errors import end_as_interrupted\n"
    script += "from fa_lib.execution.notebooks import run_all\n"
    script += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # tests in the background ignore it
    script += "if __name__ == '__main__':\n"
    script += "    end_as_interrupted()\n    run_all(sys.argv[1:2], 'paper', sys.argv[2], executor='slurm')"
    words = [sys.executable, "-c", script, str(notebook), str(tmp_path / "build")]
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        try:
            wait(begun.exists)
        finally:
            process.send_signal(by)
    assert process.returncode
    wait(lambda: ask("squeue", "--noheader") == "" and ask("sinfo", "-h", "-o", "%D %T") == "2 idle")
