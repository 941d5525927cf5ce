"""What the campaign of faults disturbs, and how it is killed: `python tests/victims.py 2 CACHE TABLE` is a sweep."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from fa_lib import draw, kernels
from fa_lib.execution.paths import ROOT
from fa_lib.execution.pools import workers
from fa_lib.execution.sweep import sweep

CELLS = 60
TRAIN = ["--config", "tiny", "--steps", "40", "--save-every", "2"]


def cell(i):
    """A cell of the sweep: an error of BF16 attention; it takes the milliseconds that PAUSE says."""
    time.sleep(float(os.environ.get("PAUSE", 0)) / 1000)
    q, k, v = draw("normal", i, (1, 1, 32, 8), (1, 1, 32, 8))
    wrong = kernels.get("unfused")(q.bfloat16(), k.bfloat16(), v.bfloat16()).double()
    return dict(error=(wrong - kernels.get("unfused")(q.double(), k.double(), v.double())).abs().max().item())


def victim(processes, cache, table):
    with workers(processes) as pool:
        sweep(cell, dict(i=range(CELLS)), cache=cache, executor=pool).to_csv(table, index=False)


def python(*words):
    return [sys.executable, *map(str, words)]


def stamps(paths):
    return {path: path.stat().st_mtime_ns for path in sorted(paths)}


# What is disturbed: how it is started, what a killed one has kept, what it ends with.


class Sweep:
    processes, whom = 0, ("everyone",)

    def words(self, folder):
        return python(__file__, self.processes, folder / "cache", folder / "table.csv")

    def kept(self, folder):
        return stamps((folder / "cache").glob("cell/[!.]*.json"))

    def result(self, folder):
        return (folder / "table.csv").read_bytes()


class Pool(Sweep):
    processes, whom = 2, ("everyone", "everyone", "the parent", "a worker")


class Writer(Sweep):
    """One of several on a cache; each with its own table."""

    def __init__(self, number):
        self.number = number

    def words(self, folder):
        return python(__file__, 0, folder / "cache", self.table(folder))

    def table(self, folder):
        return folder / f"table{self.number}.csv"


class Training:
    whom = ("everyone",)

    def words(self, folder):
        return python("-m", "fa_lib", "dev", "train", *TRAIN, "--out", folder / "run")

    def kept(self, folder):
        return stamps(sorted((folder / "run").glob("weights-*"))[:-1])  # the last may be older than the checkpoint

    def result(self, folder):
        ended = json.loads((folder / "run/run.json").read_text())
        assert sorted(p.name for p in (folder / "run").iterdir() if not p.name.startswith("weights-")) == ["run.json"]
        files = [(p.name, p.read_bytes()) for p in sorted((folder / "run").glob("weights-*"))]
        return files, ended["losses"], ended["zero_gradients"], ended["settings"]


class Figures:
    """Two notebooks in a copy of the repository, at a small scale."""

    whom = ("everyone", "the group")  # a notebook's kernel has a group of its own, and ends when its parent is gone

    def words(self, folder):
        if not (folder / "Makefile").exists():
            for name in ("fa_lib", "notebooks", "data", "Makefile", "README.md", "pyproject.toml"):
                ignored = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints", "results", "0[014-9]*", "1*")
                whole = (ROOT / name).is_dir()
                (shutil.copytree(ROOT / name, folder / name, ignore=ignored) if whole
                 else shutil.copy(ROOT / name, folder))  # fmt: skip
            scale = "02_precision: {n: 128, seeds: 2}\n03_golden_value: {n: 128, seeds: 2, lengths: [128]}\n"
            (folder / "notebooks/scales/paper.yaml").write_text(scale)
        return ["make", f"PYTHON={sys.executable}", "--directory", str(folder), "figures"]

    def kept(self, folder):
        return stamps([*(folder / "build/cache").glob("*/[!.]*.json"), *(folder / "build").glob("*.outcome.json")])

    def result(self, folder):
        files = [*(folder / "build/data/results").glob("*.csv"), *(folder / "build/figures").iterdir()]
        assert len(files) == 9, files
        return {p.name: p.read_bytes() for p in files}


# One process, and its end.


class Process:
    def __init__(self, words):
        env = {k: v for k, v in os.environ.items() if "MAKE" not in k}
        env |= dict(PYTHONPATH=str(ROOT), TQDM_DISABLE="1", PAUSE="40", OMP_NUM_THREADS="1")
        self.said = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.at = subprocess.Popen(words, cwd=ROOT, env=env, stdout=self.said, stderr=self.said, start_new_session=True)

    def end(self, seconds=300):
        """Its exit code and its words; a process that hangs is killed and raises."""
        try:
            code = self.at.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill("everyone", random)
            raise
        self.said.seek(0)
        return code, self.said.read()

    def kill(self, whom, chance):
        """SIGKILL, or False where nothing was running any more."""
        below = descendants(self.at.pid)
        workers = [p for p in below if forked(p)]
        if self.at.poll() is not None:
            return False
        if whom == "a worker" and workers:
            send(chance.choice(workers))
            self.at.wait(60)  # the sweep says so and ends, and does not hang
            return self.at.returncode != 0
        if whom in ("everyone", "the group"):
            os.killpg(self.at.pid, signal.SIGKILL)
        for one in [self.at.pid, *(below if whom == "everyone" else [])]:
            send(one)
        landed = self.at.wait(60) == -signal.SIGKILL
        since = time.monotonic()
        while any(alive(p) for p in below):  # whoever is left ends by himself
            assert time.monotonic() - since < 30, f"left running after {whom} was killed"
            time.sleep(0.02)
        return landed


def forked(pid):
    """Whether it is a worker of a pool, and not the server that forks them, nor what counts their semaphores."""
    parent = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[1:2]
    return all(b"forkserver import main" in read(f"/proc/{p}/cmdline") for p in (pid, *map(int, parent)))


def send(pid):
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def read(path):
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def alive(pid):
    return read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[:1] not in ([], [b"Z"], [b"X"])


def descendants(pid):
    children = [int(p) for p in read(f"/proc/{pid}/task/{pid}/children").split()]
    return children + [p for child in children for p in descendants(child)]


if __name__ == "__main__":
    victim(int(sys.argv[1]), *sys.argv[2:])
