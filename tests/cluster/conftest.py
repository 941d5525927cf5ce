"""Two Slurm nodes for the tests of this folder, and two more for each further process of pytest."""

import os
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fa_lib.execution.paths import ROOT

HERE = Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def slurm(tmp_path_factory):
    if not shutil.which("slurmctld"):
        pytest.exit("no Slurm here; `make test-cluster` installs it (slurm-wlm)", 1)
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "cluster.yaml").write_text("{time: 30, mem: 1GB, at_once: 2}\n")
    os.environ |= dict(SLURM_CONF=str(folder / "slurm.conf"), FA_LIB_CLUSTER=str(folder / "cluster.yaml"))
    paths = [f"{ROOT}", f"{ROOT}/instruments", f"{HERE}", os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # for the jobs
    with open(folder / "log", "w") as log:
        port = 17817 + 3 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        nodes = subprocess.Popen([HERE / "slurm.sh", folder, str(port)], stdout=log, stderr=log)
    try:
        wait(lambda: ask("sinfo", "-h", "-o", "%D %T") == "2 idle", lambda: (folder / "log").read_text())
        yield
    finally:
        nodes.terminate()
        nodes.wait(60)  # slurm.sh kills after ten seconds what does not end


def ask(*words):
    """What a command of Slurm says; they hang where no controller answers."""
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=5).stdout.strip()
    except subprocess.TimeoutExpired:
        return ""


def order(*words):
    """A command of Slurm, once: where a job cannot be signalled just now, scancel tries again for minutes, and so hits
    the job that was begun again."""
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(words, check=True, timeout=3)


def wait(true, said=lambda: "", seconds=180):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited {seconds} s; {said()} {ask('squeue')}"
        time.sleep(0.05)
