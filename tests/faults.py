"""Faults: processes are killed at random moments, a disk is full, files are damaged. The same command again then ends
with the bits of an undisturbed run. `make test-faults KILLS=200` kills more often. (Not collected by `make test`.)"""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from hashlib import sha256

import psutil
import pytest
from processes import wait_until

from fa_lib import draw
from fa_lib.execution.files import replacing
from fa_lib.execution.paths import ROOT
from fa_lib.execution.pools import workers
from fa_lib.execution.sweep import sweep

SLOW_S = 300  # seconds after which a process hangs: alone on a machine each takes less than 20
UNEQUAL = r"^said|\.ipynb$|\.(outcome|provenance)\.json$"  # names of files that hold times, which no two runs share
SECONDS = rb'"(seconds|checksum)": [^,}]+'  # the same in run.json, and the checksum over them
TRAIN = "-m fa_lib dev train --config tiny --steps 40 --save-every 2 --out run"
FIGURES = "-m fa_lib dev figures --scale quick 02_precision 03_golden_value"
VICTIMS = {  # share of the kills, processes at once in a folder, words of the command, globs of finished results
    "training": (0.2, 1, TRAIN, "run/weights-*"),
    "sweep": (0.35, 1, f"{__file__} 2 cache table0.csv", "cache/cell/[!.]*.json"),
    "writers": (0.3, 3, f"{__file__} 0 cache table#.csv", "cache/cell/[!.]*.json"),  # #: the number of the process
    "figures": (0.15, 1, FIGURES, "build/cache/*/[!.]*.json build/*.outcome.json"),
}


def cell(i):
    """A cell of the sweep. It takes the seconds that PAUSE says."""
    time.sleep(float(os.environ.get("PAUSE", 0)))
    return dict(norm=draw("normal", i, (1, 1, 32, 8), (1, 1, 32, 8))[0].norm().item())


def prepare(victim, folder):
    """Make its folder, for figures with a copy of the repository."""
    folder.mkdir()
    if "figures" in victim.words:
        for name in ("fa_lib", "notebooks", "data"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)


def contents(folder):
    """name -> checksum, False where it differs from run to run, of all files in a folder but hidden ones."""
    paths = [path for path in folder.rglob("[!.]*") if path.is_file() and "__pycache__" not in path.parts]
    read = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    return {n: not re.search(UNEQUAL, n) and sha256(re.sub(SECONDS, b"", held)).hexdigest() for n, held in read.items()}


def running():
    return {each for each in psutil.process_iter(["status"]) if each.info["status"] != psutil.STATUS_ZOMBIE}


class Victim:
    def __init__(self, name):
        (self.share, self.at_once, self.words, self.results), self.started, self.kills = VICTIMS[name], [], 0

    def begin(self, folder):
        """Its processes."""
        env = os.environ | dict(
            PYTHONPATH=f"{folder}:{ROOT}", TQDM_DISABLE="1", PYTHONFAULTHANDLER="1", PAUSE="0.04", OMP_NUM_THREADS="1"
        )
        for number in range(self.at_once):
            words = [sys.executable, *self.words.replace("#", str(number)).split()]
            with open(folder / f"said{number}", "w") as said:
                self.started.append(psutil.Popen(words, cwd=folder, env=env, stdout=said, stderr=said))
        return self.started[-self.at_once :]

    def finished(self, folder):
        """path -> when it was made, of finished results but the newest: weights are written before their checkpoint."""
        made = {path: path.stat().st_mtime_ns for glob in self.results.split() for path in folder.glob(glob)}
        return dict(sorted(made.items(), key=lambda item: item[1])[:-1])

    def finish(self, folder):
        """Run to the end; the number of results that were finished before, of which none is made again."""
        before = self.finished(folder)
        assert not any([process.wait(SLOW_S) for process in self.begin(folder)]), (folder / "said0").read_text()
        assert before.items() <= self.finished(folder).items()
        return len(before)

    def strike(self, process, folder, chance):
        """SIGKILL for a process, then for another one and all that it started, then for one that it started alone. One
        in four comes while it starts, the others after a random number of new results. What is left ends by itself."""
        before, early = len(self.finished(folder)), chance.random() < 0.25
        wanted = before if early else chance.randint(before + 1, max(before + 1, self.total))
        wait_until(lambda: process.poll() is not None or len(self.finished(folder)) >= wanted, SLOW_S)
        time.sleep(chance.uniform(0, self.seconds / (2 if early else self.total)))
        if process.poll() is None:
            below = process.children(recursive=True)
            self.started += below
            for each in ([process], [process, *below], chance.sample(below or [process], 1))[self.kills % 3]:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            self.kills += 1
            try:
                process.wait(SLOW_S)
            except psutil.TimeoutExpired:
                process.send_signal(signal.SIGABRT)  # it prints where its threads are
                process.wait(SLOW_S)
                raise AssertionError(f"it hangs: {(folder / 'said0').read_text()}") from None
            wait_until(lambda: not {*below} & running(), seconds=30)


@pytest.fixture(scope="module", params=VICTIMS)
def victim(request, tmp_path_factory):
    """After an undisturbed run: what its folder then holds, and its seconds and finished results."""
    victim, folder = Victim(request.param), tmp_path_factory.mktemp("undisturbed") / "run"
    prepare(victim, folder)
    since = time.monotonic()
    victim.finish(folder)
    victim.seconds, victim.total = time.monotonic() - since, len(victim.finished(folder))
    victim.right = contents(folder)
    yield victim
    for process in {*victim.started} & running():  # a failed test may leave some
        process.kill()


def test_a_killed_run_ends_with_the_same_bits(victim, tmp_path, request):
    """Killed up to four times, then run to its end. No result is ever half-written, and no other file is left."""
    wanted, found = round(victim.share * request.config.getoption("kills")), []
    while victim.kills < wanted or not found:
        assert len(found) < 3 * wanted, "too few kills come in time"
        folder, chance, kills = tmp_path / f"{len(found)}", random.Random(len(found)), victim.kills
        prepare(victim, folder)
        for _ in range(chance.randint(1, 4 // victim.at_once)):
            processes = victim.begin(folder)
            struck = chance.randint(1, victim.at_once)
            for process in processes[:struck]:
                victim.strike(process, folder, chance)
            assert not any([process.wait(SLOW_S) for process in processes][struck:])
            assert not [name for name, held in contents(folder).items() if victim.right.get(name, held) != held]
        found.append(victim.finish(folder))
        assert contents(folder) == victim.right
        hidden = [path for path in folder.rglob(".*") if path.is_file() and path.suffix != ".lock"]
        assert len(hidden) <= 2 * (victim.kills - kills), "a kill leaves a hidden file for each of two kernels at most"
    assert any(found)
    print(f"{victim.kills} kills, {len(found)} runs to the end, {sum(map(bool, found))} of them from finished results")


@pytest.mark.parametrize("victim, part, kib", [("training", "run", 2500), ("sweep", "cache", 60)], indirect=["victim"])
def test_a_full_disk_is_an_error_with_its_path(victim, part, kib, tmp_path):
    small = tmp_path / part
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", small]).returncode:
        pytest.skip("a small disk takes the right to mount one")
    try:
        code, said = victim.begin(tmp_path)[0].wait(SLOW_S), (tmp_path / "said0").read_text().strip()
        assert code and re.search(f"No space left on device.*'{part}/.*$", said) and not [*small.rglob(".*")], said
        subprocess.run(["mount", "-o", "remount,size=64m", small], check=True)
        assert victim.finish(tmp_path) and contents(tmp_path) == victim.right
    finally:
        subprocess.run(["umount", "--lazy", small], check=True)


if __name__ == "__main__":  # the sweep: processes, cache, table
    with workers(int(sys.argv[1])) as pool:
        table = sweep(cell, dict(i=range(60)), cache=sys.argv[2], executor=pool)
    with replacing(sys.argv[3]) as path:
        table.to_csv(path, index=False)
