"""The gallery, judged: every kernel in a process of its own, which may crash or hang; a row of a table for each."""

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from attention_check.checks.relations import RELATIONS
from attention_check.isolation.worker import Outcome
from attention_check.judge.findings import Judgement, Severity
from attention_check.judge.kernel import judge_kernel
from attention_check.measure.draws import OF_LENGTHS, worst_draws
from attention_check.measure.examine import examine
from attention_check.measure.plan import QUICK, CheckPlan
from attention_gallery.caches import QUANTISED_INPUTS, over_bits
from attention_gallery.catalogue import CATALOGUES, FEW_QUERIES, PLANNED, Entry, installed
from fa_lib import kernels
from fa_lib.execution import process_settings
from fa_lib.execution.files import replacing
from fa_lib.execution.fingerprint import code_version, digest
from fa_lib.execution.lookup import lookup
from fa_lib.kernels.rule import ALLOWED

PLANS = {"quick": QUICK}
for _depth, _plan in PLANNED["depths"].items():
    _fields: dict[str, Any] = {"relations": [*RELATIONS]} | _plan
    _lists: dict[str, Any] = {name: (*value,) for name, value in _fields.items() if isinstance(value, list)}
    PLANS[_depth] = CheckPlan(**_fields | _lists)
LIMIT_S = 600  # of one kernel
QUERIES = {"1": "1", "16": "16", "many": "as many as keys"}  # of the columns times_<key> -> in words
BY_FEW_BITS = {"error", "outputs", "relation", "coarse", "gradients"}  # findings that few bits make
# XLA takes most of a GPU's memory by default
ENVIRONMENT = dict(OMP_NUM_THREADS="1", XLA_PYTHON_CLIENT_PREALLOCATE="false")
PROGRAM = "import sys; from attention_gallery.commands.judging import judge_for_parent; judge_for_parent(*sys.argv[1:])"


@dataclass(frozen=True)
class JudgingSettings:
    """How kernels of the gallery are judged.

    Attributes:
        folder: where the record of each is kept. depth: a key of PLANS.
        device: whose catalogue: "cpu", "cuda" or "modelled".
        limit_s: seconds of one kernel.
    """

    folder: str
    depth: str = "full"
    device: str = "cpu"
    limit_s: float = LIMIT_S

    def entry(self, key: str) -> Entry:
        """Return the entry of a key, of the device's catalogue, or raise a ValueError where the key is unknown."""
        return lookup("kernel", key, CATALOGUES[self.device])

    def plan(self, entry: Entry) -> CheckPlan:
        """Plan how thoroughly an entry's kernel is examined: less where it is compiled or interpreted anew at each
        call, or takes few queries."""
        plan = PLANS[self.depth]
        if self.depth == "full" and entry.key in PLANNED["slow"]:
            plan = replace(plan, lengths=(128, 512, 4096), square=512, related_n=64, related_formats=1)
        if entry.project.startswith("whisper"):  # its encoder makes 1,500 keys, and its decoder sees no more
            plan = replace(plan, lengths=tuple(n for n in plan.lengths if n <= 1500))
        if self.device == "modelled":
            plan = replace(plan, asked_head_dims=None)  # each would be compiled
            if entry.key in PLANNED["compiled_anew"]:
                plan = replace(plan, lengths=(128, 512), shapes=("97",), relations=QUICK.relations)
            if entry.key in FEW_QUERIES:  # each query takes some 50 ms
                few = dict(asked_queries=1, troubled_n=32, related_n=16, square=32, relations=QUICK.relations)
                plan = replace(plan, shapes=("97",), **few)
        elif entry.key in FEW_QUERIES:
            shapes = tuple(shape for shape in plan.shapes if shape not in PLANNED["square"])
            square = min(plan.square, 128)
            plan = replace(plan, square=square, troubled_n=128, related_n=64, asked_queries=16, shapes=shapes)
        return plan


def judge_all(keys: Sequence[str], settings: JudgingSettings, say: Callable, jobs: int = 2) -> pd.DataFrame:
    """Judge kernels of the gallery, keep what each came to, and return `rows`; what is there already is not judged
    again, unless its code, its library's version or the depth has changed. A ValueError: a key is unknown; a
    RuntimeError: an error of ours, not of a kernel's.

    Args:
        keys: of the device's catalogue. jobs: kernels at a time.
        say: gets a line when a kernel is done, after its record is written.
    """
    entries = [settings.entry(key) for key in keys]
    left = [entry for entry in entries if not entry.problem and not _kept(entry, settings)]
    # XLA compiles for minutes, and the catalogue ends with slower ones
    left = sorted(left[::-1], key=lambda entry: (entry.key not in PLANNED["first"], "jax" not in entry.needs))
    say(f"{len(entries)} kernels: {len(entries) - len(left)} done before or not to be had here, {len(left)} to judge")
    for ended in call_each([entry.key for entry in left], settings, jobs):
        entry = settings.entry(ended.key)
        problem = _problem(ended, settings)
        if problem:
            crashed = ended.code is not None and ended.code < 0
            verdict = "fails" if crashed else "not_judged"
            _write(settings, entry.key, dict(key=_fingerprint(entry, settings), problem=problem, verdict=verdict))
        say(f"{entry.key}: {problem or row(entry, _read(settings, entry.key))['verdict']}")
    return rows(keys, settings)


def rows(keys: Sequence[str], settings: JudgingSettings) -> pd.DataFrame:
    """Make the `row` of each key, in their order; of a kernel without a record that it is not judged yet."""
    entries = [settings.entry(key) for key in keys]
    waiting = dict(verdict="not_judged", problem="not judged yet")
    records = [None if entry.problem else _read(settings, entry.key) or waiting for entry in entries]
    return pd.DataFrame([row(entry, record) for entry, record in zip(entries, records)])


def judge_one(key: str, settings: JudgingSettings) -> None:
    """Judge one kernel in this process, and write a record with its findings and numbers.

    A kernel that refuses every call cannot run here: its record says why, as that of one whose library is missing.
    """
    process_settings.keep_memory()
    entry = settings.entry(key)
    device = "cpu" if settings.device == "modelled" else settings.device
    measured = examine(entry.ref, settings.plan(entry), device=device)
    asked = measured.asked
    if (asked.outcome == Outcome.REFUSED).all():
        record = dict(verdict="cannot_run", problem=asked.problem.iloc[0])
    else:
        judged = judge_kernel(entry.ref, measured)
        record = dict(problem="") | judged.record() | dict(numbers=errors(measured.lengths))
        if key in QUANTISED_INPUTS:  # what these bits cost does not count against it
            record["over_bits"] = over_bits(key, kernels.get(entry.ref))
            grave = {f.what for f in judged.findings if f.severity == Severity.FAILS} - BY_FEW_BITS
            record["verdict"] = "fails" if grave or record["over_bits"] > ALLOWED["o"] else "passes"
    _write(settings, key, dict(key=_fingerprint(entry, settings)) | record)


def judgement_of(key: str, settings: JudgingSettings) -> Judgement | None:
    """Read the Judgement that `judge_one` left; None where the kernel did not come to an end."""
    record = _read(settings, key)
    return Judgement.of(record) if record and "findings" in record else None


def row(entry: Entry, record: dict | None) -> dict[str, Any]:
    """Write what a kernel came to, by its record of `judge_one`, which is None where the kernel cannot run here: a dict
    of key, project, version (of its distribution), use; verdict ("passes", "fails", "not_judged", "cannot_run");
    times_1, times_16, times_many: largest error over Baseline's by number of queries, the largest over formats, N and
    ordinary inputs, inf where an output is not finite; relative_1 and so on: largest relative error; carries,
    carried_in, tile: the sums carried in low precision, their format and tile; outwards and baseline_outwards (ulp),
    gradients (largest error over Baseline's), problem; over_bits: as of `caches`, of a kernel that holds K and V in few
    bits."""
    about = dict(key=entry.key, project=entry.project, version="" if entry.cannot else entry.version, use=entry.use)
    if record is None or "findings" not in record:
        verdict = "cannot_run" if record is None else record["verdict"]
        return about | dict(verdict=verdict, problem=entry.problem if record is None else record["problem"])
    findings = Judgement.of(record).findings
    low = [f for f in findings if f.what == "carry" and f.severity == Severity.FAILS]
    side = next((f for f in findings if f.what == "outwards"), None)
    causes = dict.fromkeys(f.what for f in findings if f.severity == Severity.FAILS)
    return about | dict(verdict=record["verdict"]) | record["numbers"] | dict(
        carries=" ".join(dict.fromkeys(f.where["sum"] for f in low)),
        carried_in=" ".join(dict.fromkeys(f.where["fmt"] for f in low)),
        tile=max((f.where["tile"] or 0 for f in low), default=0) or None,
        outwards=side and side.number, baseline_outwards=side and side.where.get("baseline"),
        gradients=max((f.number for f in findings if f.what == "gradients" and f.number), default=None),
        cause=" ".join(causes), problem="", over_bits=record.get("over_bits"),
    )  # fmt: skip


def errors(lengths: pd.DataFrame) -> dict[str, float]:
    """Compute times_<queries> and relative_<queries>, see `row`, of a table of `examine.measure`; nothing where nothing
    ran."""
    numbers: dict[str, float] = {}
    if not len(lengths):
        return numbers
    for queries, calls in lengths.groupby(lengths.queries.where(lengths.queries < lengths.n, "many").astype(str)):
        if queries in QUERIES:
            largest = worst_draws(calls, OF_LENGTHS, ALLOWED["o"]).times_max.max(), calls.relative.max()
            worst = map(float, largest if calls.finite.astype(bool).all() else (math.inf, math.inf))
            numbers[f"times_{queries}"], numbers[f"relative_{queries}"] = worst
    return numbers


class EndedCall(NamedTuple):
    """How judging a kernel ended: its key; the exit status of its process, 1 after an exception, -n after signal n,
    None where it ran out of time; all that it printed, and its traceback."""

    key: str
    code: int | None
    printed: str


def call_each(keys: Sequence[str], settings: JudgingSettings, jobs: int, program: str = PROGRAM) -> Iterator[EndedCall]:
    """Judge each kernel in a process of its own, `jobs` at a time, and yield each call once it has ended: one that
    crashes, hangs or changes its process leaves the others alone. When the iterator ends, by an error or Ctrl-C too,
    the processes that still run are ended, with those that they started. program: what each runs, with a key and the
    settings as JSON."""
    running, stopped = set(), threading.Event()
    order = json.dumps(asdict(settings))

    def judged(key):
        with tempfile.TemporaryFile("w+", errors="backslashreplace") as printed:
            process = subprocess.Popen(
                [sys.executable, "-c", program, key, order], env=os.environ | ENVIRONMENT, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT,
            )  # fmt: skip
            running.add(process)
            try:
                code = process.wait(0 if stopped.is_set() else settings.limit_s)
            except subprocess.TimeoutExpired:
                code = None
            _end(process)
            running.discard(process)
            printed.seek(0)
            return EndedCall(key, code, printed.read())

    with ThreadPoolExecutor(jobs) as pool:
        calls = [pool.submit(judged, key) for key in keys]
        try:
            for call in as_completed(calls):
                yield call.result()
        finally:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for process in [*running]:
                _end(process)


def judge_for_parent(key: str, settings: str) -> None:
    """Judge one kernel in a process of `call_each`, which ends with its parent, as do those that it started; settings:
    as JSON."""
    parent = os.getppid()

    def follow():
        while os.getppid() == parent:
            time.sleep(1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=follow, daemon=True).start()
    judge_one(key, JudgingSettings(**json.loads(settings)))


def _end(process):
    """End a process and those that it has left running."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _fingerprint(entry, settings):
    """Compute a digest of what a record depends on."""
    versions = {name: installed(name) for name in entry.needs} | dict(package=entry.package and entry.package.sha256)
    code = code_version(judge_one, [dict(kernel=entry.ref.key)], [])
    return digest([code, versions, asdict(settings.plan(entry)), settings.device])


def _problem(ended, settings):
    """Say what became of a kernel's process; "" where it came to its end. An error of ours, not of the kernel's, is
    raised as RuntimeError; on CUDA it is reported as a kernel's, too: after a kernel's fault every call there fails,
    and nothing says whose it was."""
    if ended.code == 0:
        return ""
    if ended.code is None:
        return f"took longer than {settings.limit_s:g} s"
    if ended.code < 0:
        return f"ended its process by signal {-ended.code}"
    if settings.device != "cuda":
        raise RuntimeError(f"gallery: judging {ended.key} failed:\n{ended.printed}")
    last = [line for line in ended.printed.splitlines() if line.strip()][-1:] or ["no word"]
    return f"ended its process with an error: {last[0].strip()[:200]}"


def _write(settings, key, record):
    with replacing(Path(settings.folder) / f"{key}.json") as path:
        path.write_text(json.dumps(record, indent=1) + "\n")


def _read(settings, key):
    """Read the record of a kernel; None where there is none, or what is there is damaged."""
    try:
        record = json.loads((Path(settings.folder) / f"{key}.json").read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and "verdict" in record and "problem" in record else None


def _kept(entry, settings):
    """Say whether a record of this code is there, and the kernel came to an end."""
    record = _read(settings, entry.key)
    return bool(record) and record.get("key") == _fingerprint(entry, settings) and record.get("problem") == ""
