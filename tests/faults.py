"""Faults, counted: processes are killed at random moments, disks are full, files are damaged; after each the work is
done again and compared bit for bit. `make test-faults KILLS=200` writes docs/reliability.md. (Not part of `make test`.)
"""

import argparse
import importlib.metadata
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from damage import damaged_cells, damaged_run
from victims import Figures, Pool, Process, Sweep, Training, Writer, stamps

from fa_lib.execution.files import replacing
from fa_lib.execution.paths import ROOT

FULL = 200  # kills, from which the record is written


@dataclass
class Count:
    """A row of the table."""

    kills: int = 0
    faults: int = 0
    resumed: int = 0
    refused: int = 0
    lost: int = 0
    ended: int = 0
    equal: int = 0
    note: str = ""

    def check(self, equal, what):
        self.ended += 1
        self.equal += equal
        self.lost += not equal
        if not equal:
            print(f"LOST: {what}", flush=True)


def undisturbed(what, folder):
    """What it ends with, seconds to its first result, and seconds."""
    folder.mkdir()
    since, first, process = time.monotonic(), None, Process(what.words(folder))
    while process.at.poll() is None:
        first = first or (bool(what.kept(folder)) and time.monotonic() - since) or None
        time.sleep(0.01)
    code, said = process.end()
    assert code == 0, said
    return what.result(folder), first, time.monotonic() - since


def moment(process, what, folder, times, chance):
    """Wait for a random moment: in one of four while it starts, else from its first new result on."""
    first, whole = times
    if chance.random() < 0.25:
        time.sleep(chance.uniform(0, first))
        return
    before = what.kept(folder)
    while process.at.poll() is None and what.kept(folder) == before:
        time.sleep(0.005)
    time.sleep(chance.uniform(0, 0.4 * (whole - first)))


def finish(what, folder, right, count, name):
    """Run it to its end: equal bit for bit, and what was kept is not made again."""
    before = what.kept(folder)
    code, said = Process(what.words(folder)).end()
    after = stamps(p for p in before if p.exists())
    count.resumed += bool(before) and code == 0 and after == before
    count.check(code == 0 and after == before and what.result(folder) == right, f"{name}, exit {code}: {said[-2000:]}")


def kills(what, name, folder, baseline, count, chance):
    """Kill it one to five times on end, then let it end."""
    folder.mkdir()
    for _ in range(chance.randint(1, 5)):
        process = Process(what.words(folder))
        moment(process, what, folder, baseline[1:], chance)
        count.kills += process.kill(chance.choice(what.whom), chance)
    finish(what, folder, baseline[0], count, name)


def writers(what, name, folder, baseline, count, chance):
    """Three on one cache at once, two or all of them killed; the others end well, and one more run too."""
    folder.mkdir()
    all_of = [Writer(i) for i in range(3)]
    running = [Process(one.words(folder)) for one in all_of]
    for process in running[: chance.randint(2, 3)]:
        moment(process, what, folder, (baseline[1], (baseline[1] + baseline[2]) / 2), chance)
        count.kills += process.kill("everyone", chance)
    for one, process in zip(all_of, running):
        code, said = process.end()
        if code != -signal.SIGKILL:
            equal = code == 0 and one.table(folder).read_bytes() == baseline[0]
            count.check(equal, f"{name}, exit {code}: {said[-2000:]}")
    finish(what, folder, baseline[0], count, name)


def full_disk(what, name, folder, baseline, count, kib):
    """On a disk too small: an error that says so and where, no half-written file; with room, it goes on to its end."""
    folder.mkdir()
    small = folder / ("run" if isinstance(what, Training) else "cache")
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", small], capture_output=True)
    if mounted.returncode:
        count.note = "not run: it takes the right to mount a small disk"
        return
    try:
        code, said = Process(what.words(folder)).end()
        count.faults += 1
        told = code != 0 and "No space left on device" in said and str(small) in said.splitlines()[-1]
        count.refused += told
        left = [p.name for p in small.rglob(".*")]
        if not told or left:
            count.check(False, f"{name}, {kib} KiB, exit {code}, left {left}: {said[-2000:]}")
        subprocess.run(["mount", "-o", "remount,size=64m", small], check=True)
        finish(what, folder, baseline[0], count, name)
    finally:
        subprocess.run(["umount", "--lazy", small], check=True)


KINDS = {  # kind -> what is disturbed, how, its share of the kills
    "a sweep in one process": (Sweep(), kills, 0.4),
    "a sweep on two processes: all, the parent or a worker": (Pool(), kills, 0.06),
    "three writers of one cache": (Sweep(), writers, 0.42),
    "training": (Training(), kills, 0.11),
    "`make figures`": (Figures(), kills, 0.01),
}


def campaign(wanted, seed, folder, jobs):
    """kind -> Count, of at least so many kills."""
    counts = {}

    def attempt(function, count, name, *rest):
        try:
            function(*rest)
        except Exception:
            count.check(False, f"{name}: {traceback.format_exc()}")

    def killing(kind):
        what, how, share = KINDS[kind]
        count, number = counts[kind], 0
        at = folder / str(list(KINDS).index(kind))
        at.mkdir()
        baseline = undisturbed(what, at / "undisturbed")
        if kind in small:
            sizes = (24, 60, 100) if isinstance(what, Sweep) else (1500, 2500, 4000)
            for kib in sizes[: 1 + (wanted >= FULL)]:
                name = f"full disk, {kind}"
                attempt(full_disk, small[kind], name, what, name, at / f"full{kib}", baseline, small[kind], kib)
        while count.kills < max(1, round(share * wanted)):
            chance = random.Random(f"{seed} {kind} {number}")
            name, number = f"{kind}, number {number}", number + 1
            attempt(how, count, name, what, name, at / str(number), baseline, count, chance)
            print(f"{count.kills:4d} kills of {kind}", flush=True)

    for kind in KINDS:
        counts[kind] = Count()
    small = {kind: Count() for kind in list(KINDS)[:4:3]}
    counts |= {f"a full disk: {kind}": count for kind, count in small.items()}
    names = ["a cell's file, cut at every byte", "a cell's file, one bit flipped"]
    names += ["a checkpoint, one bit flipped or cut", "weights, one bit flipped", "`run.json`, one bit flipped"]
    cut, flip, checkpoint, weight, ended = (counts.setdefault(name, Count()) for name in names)
    bits, chance = 10 if wanted < FULL else 100, random.Random(seed)
    for name in ("cells", "runs"):
        (folder / name).mkdir()
    attempt(damaged_cells, cut, "cells", folder / "cells", bits, cut, flip, chance)
    attempt(damaged_run, checkpoint, "checkpoints", folder / "runs", bits, checkpoint, weight, ended, chance)
    with ThreadPoolExecutor(jobs) as pool:  # the slowest first
        list(pool.map(lambda kind: attempt(killing, counts[kind], kind, kind), list(KINDS)[::-1]))
    return counts


def table(counts):
    """The rows as Markdown, with their sum."""
    total = Count(*(sum(getattr(c, f) for c in counts.values()) for f in list(vars(Count()))[:-1]))
    lines = ["| fault | kills | other faults | noticed | resumed | lost | equal bit for bit |", "|" + "---|" * 7]
    for name, c in (counts | {"**all**": total}).items():
        told = f"{c.refused} of {c.faults}" if c.faults else ""
        equal = c.note or f"{c.equal} of {c.ended}"
        lines.append(f"| {name} | {c.kills} | {c.faults} | {told} | {c.resumed} | {c.lost} | {equal} |")
    return "\n".join(lines), total


def record(rows, total, seed, seconds):
    """docs/reliability.md."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("torch", "numpy", "lightning-fabric")
    )
    return f"""<!-- written by `make test-faults KILLS={FULL}`: do not edit -->
# Through faults

Processes were killed with SIGKILL at random moments, disks were full, files were damaged. After each the same command
was run again to its end, and what it left was compared with an undisturbed run's, bit for bit.

{rows}

{total.kills} kills on {date.today()} in {seconds / 60:.0f} minutes, seed {seed}, at commit {commit or "unknown"}.
Python {platform.python_version()}, {versions}, {platform.system()} on {os.cpu_count()} {platform.machine()} cores.

- **kills** landed while the work ran: one in four while it starts, the others from its first new result on. One to
  five come in a row before the run that ends.
- **noticed**: a damaged cell was computed again; a damaged checkpoint, weights file or `run.json` was refused with its
  path; a full disk was named with the path that did not fit.
- **resumed**: runs to the end that found finished work and did not make it again.
- **lost**: a rerun that failed, made finished work again, or ended with other bits.
- **equal**: results compared: a sweep's table; a training run's weights, losses and gradients' shares of zeros; the
  tables and figures of `make figures`.

## What guards what

- Every file is written beside its place and renamed when it is complete (`fa_lib.execution.files.replacing`). A kill
  may leave a hidden file beside it, which nothing reads. A notebook's folder `build/<notebook>.<random>/` that a kill
  left is removed when that notebook runs again.
- A training run holds its folder; another one in it is refused. A notebook that another `make figures` runs is waited
  for. Workers end when their parent is gone, and what `make figures` started ends with `make`; a sweep that loses a
  worker ends with an error and keeps its finished cells.
- What is not tried: power cuts (nothing waits for the disk), network file systems.

## What carries a checksum

| file | checksum | where it does not fit |
|---|---|---|
| a sweep's cell, a golden value kept for a check | SHA-256 of its content | it is computed again |
| `resume.ckpt` | SHA-256 of its content: `torch.load` lets most flipped bits through | refused, with its path |
| weights of a training run | SHA-256 of the tensors | refused, with their path; so is a run whose weights are gone |
| `run.json` | SHA-256 of its content | refused, with its path |
| results of a notebook | SHA-256 of each file, in `build/<notebook>.outcome.json` | the notebook runs again |
| a shard (.tar) of a data set | the tar format's own sum of each header, and its end | refused, with its path |
| archives that `make` installs | SHA-256, in `requirements.hashes` | not installed |

These carry none:

- Compiled code: numba's kernels are compiled anew in each process (half a second), since numba's cache on disk has no
  checksum. Python's `.pyc` files and the libraries of torch have none either: what changes them after they were
  installed changes numbers unseen.
- The bytes inside of a data set's files: PNG has sums of its own, JPEG, WebP and captions have none.
- Captured calls (`.safetensors`, `.npz`, `.pt`), and reports. `.npz` has CRC-32.
- torch, where an index has another build than PyPI's (one without CUDA): it is installed by its version, and this is
  said.

## What makes a result stale

A cell and a notebook's outcome depend on the source of their function; on every module of fa_lib's and of the
reader's that it imports, inside of functions too, wherever Python finds it, and so on from those; on the versions of
torch, numpy, gfloat and numba; on the processor's instructions; and on the code that their texts name
(`package.module:function`). Not seen: modules that are imported by a computed name, files that code opens, installed
packages (site-packages) beside those four, and, within one process, an edit of a module that is loaded already: start
anew after an edit.
"""


def main():
    parser = argparse.ArgumentParser(description="count what faults lose")
    parser.add_argument("--kills", type=int, default=20, help=f"at least so many; from {FULL} the record is written")
    parser.add_argument("--seed", type=int, default=0, help="of the moments, the victims and the flipped bits")
    parser.add_argument("--jobs", type=int, default=len(KINDS), help="kinds of faults at once")
    given = parser.parse_args()
    since = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        counts = campaign(given.kills, given.seed, Path(folder), given.jobs)
    rows, total = table(counts)
    seconds = time.monotonic() - since
    print(f"{rows}\n{seconds:.0f} s")
    if total.lost or total.equal != total.ended or total.refused != total.faults or total.kills < given.kills:
        sys.exit("some work was lost")
    if given.kills >= FULL:
        with replacing(ROOT / "docs" / "reliability.md") as path:
            path.write_text(record(rows, total, given.seed, seconds))


if __name__ == "__main__":
    main()
