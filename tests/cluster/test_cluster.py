"""On a real Slurm of two nodes: sweeps, training, notebooks; preempted, killed, failing and interrupted."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import BrokenExecutor
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from cells import begun_again, on_a_node, out_of_time, sometimes, stopped
from conftest import ask, order, wait
from fa_lib.execution.notebook import run
from fa_lib.execution.slurm_settings import Settings, settings
from nbformat.v4 import new_code_cell, new_notebook
from runs import same_weights

from fa_lib import sweep
from fa_lib.execution.paths import ROOT
from fa_lib.execution.pools import workers
from fa_lib.execution.results import device
from fa_lib.training.config import Config
from fa_lib.training.run_folder import weights
from fa_lib.training.study import StudySpec, study, train_arm

IMPORTS = "from cells import {}\nfrom fa_lib.execution.pools import workers\nfrom fa_lib.execution.sweep import sweep\n"


def test_two_nodes_finish_a_sweep_with_the_table_of_one_process(tmp_path):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    grid = dict(fmt=["BF16", "FP16"], seed=range(6))
    here = sweep(on_a_node, grid | dict(folder=str(tmp_path / "here")))
    with workers("slurm") as jobs:
        there = sweep(on_a_node, grid | dict(folder=str(tmp_path / "there")), executor=jobs)
        pd.testing.assert_frame_equal(there.drop(columns="folder"), here.drop(columns="folder"), check_exact=True)
    cells = [(tmp_path / "there" / node).read_text().splitlines() for node in ("n1", "n2")]
    assert all(cells) and sum(map(len, cells)) == 12
    assert not jobs.folder.exists()  # nothing failed, nothing to read


def test_arms_of_the_study_end_with_the_same_bits(tmp_path):
    spec = StudySpec(seeds=1, steps=12, every=4, config=Config.load("tiny"))
    here, runs = study(["flash", "data_order"], spec, tmp_path / "here")
    with workers("slurm") as jobs:
        there, sent = study(["flash", "data_order"], spec, tmp_path / "there", executor=jobs)
    pd.testing.assert_frame_equal(there, here, check_exact=True)
    assert sent.arm.tolist() == runs.arm.tolist()
    assert all(same_weights(*at, 12) for at in zip(sent["at"], runs["at"]))


WAYS = {
    "preempted": ["scancel", "--signal=USR2"],
    "requeued": ["scontrol", "requeue"],
    "killed": ["scancel", "--full", "--signal=KILL"],
}


def test_preempted_and_killed_runs_go_on_and_end_with_the_same_bits(tmp_path):
    cell = dict(arm="flash", seed=0, spec=StudySpec(seeds=1, steps=300, every=10, config=Config.load("tiny")))
    rows, first = {}, {}
    with workers("slurm") as jobs:
        for way in WAYS:
            folder = str(tmp_path / way)
            rows[way] = jobs.submit(begun_again, tmp_path / f"{way}.begun", folder=folder, **cell)
        for way, words in WAYS.items():
            wait(lambda: list((tmp_path / way).glob("*/weights-000020.*")))  # noqa: B023
            (at,) = (path for path in (tmp_path / way).iterdir() if path.is_dir())
            first[way] = weights(at, 10).stat()
            order(*words, (tmp_path / f"{way}.begun").read_text().strip())
        rows = {way: future.result(300) for way, future in rows.items()}
    here = train_arm(folder=str(tmp_path / "here"), **cell)
    for way, row in rows.items():
        begun = (tmp_path / f"{way}.begun").read_text().split()
        # Slurm begins the same job again, once or more; a killed one is a new job
        assert len(begun) > 1 and len(set(begun)) == 1 + (way == "killed"), begun
        second = weights(row["at"], 10).stat()
        assert (first[way].st_ino, first[way].st_mtime_ns) == (second.st_ino, second.st_mtime_ns)  # it went on
        assert row["status"] == "done" and row["loss"] == here["loss"] and same_weights(row["at"], here["at"], 300)


def test_of_a_preempted_and_a_killed_job_only_the_call_they_were_in_is_made_again(tmp_path):
    with workers("slurm") as jobs:  # ten calls of two rounds of two jobs: two in each job
        futures = [jobs.submit(stopped, tmp_path, i) for i in range(10)]
        for i, words in ((1, ["scancel", "--signal=USR2"]), (3, ["scancel", "--full", "--signal=KILL"])):
            wait(lambda: (tmp_path / str(i)).exists() and (tmp_path / str(i)).read_text())  # noqa: B023
            order(*words, (tmp_path / str(i)).read_text().strip())
        assert [future.result(300)["square"] for future in futures] == [i * i for i in range(10)]
    begun = {i: (tmp_path / str(i)).read_text().split() for i in range(10)}
    assert [len(begun[i]) for i in range(10)] == [1, 2, 1, 2, 1, 1, 1, 1, 1, 1]
    assert begun[0] == begun[1][:1] == begun[1][1:] and begun[2] == begun[3][:1] != begun[3][1:]


def test_one_run_on_two_nodes_by_srun_has_the_bits_of_two_processes_here(tmp_path):
    train = [sys.executable, "-m", "fa_lib", "dev", "train", "--config", "tiny", "--steps", "8", "--save-every", "4"]
    srun = ["srun", "--nodes=2", "--ntasks-per-node=1", "--mem=1G"]
    for at, words in (("here", [*train, "--devices", "2"]), ("there", [*srun, *train])):
        # loopback's nodes have no names that resolve
        env = os.environ | dict(MASTER_ADDR="127.0.0.1") if at == "there" else None
        words = [*words, "--out", str(tmp_path / at)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300, env=env)
        assert done.returncode == 0, done.stderr
    assert same_weights(tmp_path / "here", tmp_path / "there", 8)


def test_settings_that_do_not_fit_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "own.yaml"
    monkeypatch.setenv("FA_LIB_CLUSTER", str(path))
    for text, message in (
        (None, "FA_LIB_CLUSTER: got '.*own.yaml', which does not exist"),
        ("{tyme: 3}", "own.yaml: got 'tyme'; accepted are partition, account, time"),
        ("{time: 0}", "own.yaml: time: got 0;"),
        ("{time: 2:00:00}", "own.yaml: time: got 2:00:00;"),
        ("{account: 3}", "own.yaml: account: got 3; accepted is a text"),
        ("{sbatch: {job-name: mine}}", "own.yaml: sbatch: got 'job-name';"),
        ("{sbatch: {time: 120}}", "own.yaml: sbatch: got 'time';"),
        ("{sbatch: {1: 2}}", "own.yaml: sbatch: got 1;"),
        ("[time, 3]", "own.yaml: got .*time.*; accepted is a mapping"),
        ("{time: [", "own.yaml: no YAML: "),
    ):
        if text:
            path.write_text(text)
        with pytest.raises(ValueError, match=message):
            settings()
    path.write_text("{gpus: 2, account: , partition: nowhere, memory: 1}")
    assert settings().model_copy(update=dict(gpus=0, partition="", memory=4)) == Settings()
    with pytest.raises(BrokenExecutor, match="(?s)sbatch: error: .*; the jobs' logs: "), workers("slurm") as jobs:
        sweep(sometimes, dict(a=range(5), how=0), executor=jobs)


def test_the_end_of_a_job_is_not_a_result_of_its_call_and_other_code_is_refused(tmp_path, monkeypatch):
    refused = pytest.raises(RuntimeError, match="its code was changed")
    with refused as error, workers("slurm") as jobs:
        with pytest.raises(RuntimeError, match="out of time: timed out too many times"):
            jobs.submit(out_of_time, tmp_path / "alone").result(300)
        futures = [jobs.submit(out_of_time, tmp_path / "several") for _ in range(9)]  # two to a job
        assert [future.result(300) for future in futures] == [dict(square=4)] * 9
        monkeypatch.setattr("fa_lib.execution.slurm.Slurm._code", lambda self, fn, kwargs: "older")
        jobs.submit(out_of_time, tmp_path / "several").result(300)
    assert error.value.__notes__[0].startswith("its log: ")


def test_a_sender_inside_a_job(tmp_path):
    """Whose variables its jobs must not get: one that had those of an array would take itself for a part of it."""
    script = IMPORTS.format("on_a_node")
    script += "with workers('slurm') as jobs:\n"
    script += f"    sweep(on_a_node, dict(fmt='BF16', seed=0, folder={str(tmp_path)!r}), executor=jobs)"
    part = ["env", "SLURM_ARRAY_JOB_ID=77", "SLURM_ARRAY_TASK_ID=0"]
    words = ["srun", "--nodelist=n1", "--mem=1G", *part, sys.executable, "-c", script]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "n2").read_text().splitlines()) == 1


def test_what_fails_for_good_is_reported_with_its_log_and_the_rest_finish(tmp_path, capfd):
    with pytest.raises((ValueError, RuntimeError)), workers("slurm") as jobs:
        sweep(sometimes, dict(a=range(5), how=1), cache=tmp_path, executor=jobs)
    printed = [line for line in capfd.readouterr().err.splitlines() if "other cells go on" in line]
    by_cell = {a: line for line in printed for a in (1, 2) if f"'a': {a}" in line}
    assert len(printed) == len(by_cell) == 2
    assert by_cell[1].startswith("ValueError: no luck; its log: ") and "was killed; its log: " in by_cell[2]
    logs = {a: Path(line.split("its log: ")[1].split(";")[0]).read_text() for a, line in by_cell.items()}
    assert "ValueError: no luck" in logs[1] and "Starting with JobEnvironment" in logs[2]
    assert len(list(tmp_path.rglob("*.json"))) == 3  # the others are done and kept


def write(project, parameters, middle):
    """A notebook in a project of its own."""
    (project / "notebooks" / "scales").mkdir(parents=True)
    (project / "notebooks" / "scales" / "paper.yaml").write_text("01_small: {}\n")
    save = "import pandas as pd\nfrom fa_lib.execution.results import save\nsave(out, '01_small', {}, table, pool=pool)"
    cells = [new_code_cell(f"out = ''\n{parameters}", metadata={"tags": ["parameters"]})]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    cells += [new_code_cell(middle), new_code_cell(save)]
    nbformat.write(new_notebook(cells=cells, metadata=kernel), project / "notebooks" / "01_small.ipynb")
    return project / "notebooks" / "01_small.ipynb"


def files(project):
    held = (project / "build" / "data" / "results").iterdir()
    return {p.name: p.read_text() for p in held if "provenance" not in p.name}


@pytest.mark.parametrize("parameters", ["", "processes = 0"])
def test_a_notebook_is_a_job_or_sends_its_cells_and_leaves_the_same_files(parameters, tmp_path):
    nodes = tmp_path / "nodes"
    nodes.mkdir()
    table = IMPORTS.format("on_a_node")
    table += f"with workers({parameters and 'processes' or 0}) as pool:\n"
    table += f"    table = sweep(on_a_node, dict(fmt='BF16', seed=[0, 1], folder={str(nodes)!r}), executor=pool)"
    for name, executor in (("here", None), ("there", "slurm")):
        build = tmp_path / name / "build"
        done = run(write(tmp_path / name, parameters, table), "paper", build, executor=executor)
        assert done == build / "01_small.ipynb" and done.exists()
    assert files(tmp_path / "here") == files(tmp_path / "there") != {}
    provenance = (tmp_path / "there" / "build" / "data" / "results" / "01_small.provenance.json").read_text()
    assert json.loads(provenance).get("jobs") == ([device() | dict(threads=1)] if parameters else None)
    assert len((nodes / "here").read_text().splitlines()) == 2
    assert sum(len((nodes / n).read_text().splitlines()) for n in ("n1", "n2") if (nodes / n).exists()) == 2


@pytest.mark.parametrize("parameters, by", [("", signal.SIGINT), ("processes = 0", signal.SIGTERM)])
def test_ctrl_c_and_a_closed_terminal_end_the_jobs(parameters, by, tmp_path):
    begun = tmp_path / "begun"
    middle = IMPORTS.format("forever")
    middle += f"with workers({parameters and 'processes' or 0}) as pool:\n"
    middle += f"    table = sweep(forever, dict(begun={str(begun)!r}), executor=pool)"
    notebook = write(tmp_path, parameters, middle)
    script = "import signal\nimport sys\nfrom fa_lib.execution.notebooks import run_all\n"
    script += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # tests in the background ignore it
    script += "from fa_lib.execution.exit_with_parent import end_as_interrupted\nend_as_interrupted()\n"
    script += "run_all(sys.argv[1:2], 'paper', sys.argv[2], executor='slurm')"
    words = [sys.executable, "-c", script, str(notebook), str(tmp_path / "build")]
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        try:
            wait(begun.exists)
        finally:
            process.send_signal(by)
    assert process.returncode
    wait(lambda: ask("squeue", "--noheader") == "" and ask("sinfo", "-h", "-o", "%D %T") == "2 idle")
