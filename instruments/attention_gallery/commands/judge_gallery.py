"""The gallery, judged: every kernel in a separate process, which may crash or hang; a row of a table for each."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pandas as pd

from attention_check.isolation.worker import Outcome
from attention_check.judge.findings import Judgement
from attention_check.judge.kernel import judge_kernel
from attention_check.measure.examine import examine
from attention_gallery.caches import HELD, over_bits
from attention_gallery.commands.gallery_rows import errors, of_few_bits, row
from attention_gallery.commands.gallery_settings import FIRST, JudgingSettings
from attention_gallery.entry import installed
from fa_lib import kernels
from fa_lib.execution import process_settings
from fa_lib.execution.files import replacing
from fa_lib.execution.fingerprint import code_version, digest
from fa_lib.execution.forked_calls import call_each


def judge_all(keys: Sequence[str], manner: JudgingSettings, say: Callable, jobs: int = 2) -> pd.DataFrame:
    """Judge kernels of the gallery, and keep what each came to; what is there already is not judged again, unless its
    code, its library's version or the depth has changed.

    Args:
        keys: of the device's catalogue.
        say: told when a kernel is done, after its record is written. jobs: kernels at a time.

    Returns:
        `rows`.

    Raises:
        ValueError: a key is unknown.
        RuntimeError: an error of ours, not of a kernel's.
    """
    entries = [manner.entry(key) for key in keys]
    left = [entry for entry in entries if not entry.problem and not _kept(entry, manner)]
    # XLA compiles for minutes, and the catalogue ends with slower ones
    left = sorted(left[::-1], key=lambda entry: (entry.key not in FIRST, "jax" not in entry.needs))
    say(f"{len(entries)} kernels: {len(entries) - len(left)} done before or not to be had here, {len(left)} to judge")

    # XLA takes most of a GPU's memory by default
    environment = dict(OMP_NUM_THREADS="1", XLA_PYTHON_CLIENT_PREALLOCATE="false")
    judge = partial(judge_one, manner=manner)
    for ended in call_each(judge, [entry.key for entry in left], jobs, manner.limit_s, environment):
        entry = manner.entry(ended.argument)
        problem = _problem(ended, manner)
        if problem:
            _write(entry, manner, dict(key=_key(entry, manner), problem=problem, verdict=_verdict(ended)))
        say(f"{entry.key}: {problem or row(entry, _read(entry, manner))['verdict']}")
    return rows(keys, manner)


def rows(keys: Sequence[str], manner: JudgingSettings) -> pd.DataFrame:
    """`row` of each key, in their order; of a kernel without a record that it is not judged yet."""
    entries = [manner.entry(key) for key in keys]
    waiting = dict(verdict="not_judged", problem="not judged yet")
    records = [None if entry.problem else _read(entry, manner) or waiting for entry in entries]
    return pd.DataFrame([row(entry, record) for entry, record in zip(entries, records)])


def judge_one(key: str, manner: JudgingSettings) -> None:
    """Judge one kernel in this process, and write a record with its findings and numbers.

    A kernel that refuses every call cannot run here: its record says why, as that of one whose library is missing.
    """
    process_settings.keep_memory()
    entry = manner.entry(key)
    kernel, device = entry.ref, "cpu" if manner.device == "modelled" else manner.device
    cells = manner.cells or str(Path(manner.folder) / "cells")
    found = examine(kernel, manner.plan(entry), device=device, cache=cells, beside=())
    asked = found.asked
    if (asked.outcome == Outcome.REFUSED).all():
        record = dict(verdict="cannot_run", problem=asked.problem.iloc[0])
    else:
        record = dict(problem="") | judge_kernel(kernel, found).record() | dict(numbers=errors(found.lengths))
        if key in HELD:
            record["over_bits"] = over_bits(key, kernels.get(entry.ref))
            record["verdict"] = of_few_bits(record)
    _write(entry, manner, dict(key=_key(entry, manner)) | record)


def judgement_of(key: str, manner: JudgingSettings) -> Judgement | None:
    """The Judgement that `judge_one` left; None where the kernel did not come to an end."""
    record = _read(manner.entry(key), manner)
    return Judgement.of(record) if record and "findings" in record else None


def _key(entry, manner):
    """What a record depends on."""
    versions = {name: installed(name) for name in entry.needs} | dict(package=entry.package and entry.package.sha256)
    code = code_version(judge_one, [dict(kernel=entry.ref.key)], [])
    return digest([code, versions, asdict(manner.plan(entry)), manner.device])


def _problem(ended, manner):
    """What became of a kernel's process; "" where it came to its end.

    Raises:
        RuntimeError: an error of ours, not of the kernel's. On CUDA an error is reported as a kernel's, too: after a
            kernel's fault every call there fails, and nothing says whose it was.
    """
    if ended.code == 0:
        return ""
    if ended.code is None:
        return f"took longer than {manner.limit_s:g} s"
    if ended.code < 0:
        return f"ended its process by signal {-ended.code}"
    if manner.device == "cpu":
        raise RuntimeError(f"gallery: judging {ended.argument} failed:\n{ended.printed}")
    last = [line for line in ended.printed.splitlines() if line.strip()][-1:] or ["no word"]
    return f"ended its process with an error: {last[0].strip()[:200]}"


def _verdict(ended):
    """Of a kernel that did not come to its end: one that crashes fails."""
    return "fails" if ended.code is not None and ended.code < 0 else "not_judged"


def _path(entry, manner):
    return Path(manner.folder) / f"{entry.key}.json"


def _write(entry, manner, record):
    with replacing(_path(entry, manner)) as path:
        path.write_text(json.dumps(record, indent=1) + "\n")


def _read(entry, manner):
    """The record of a kernel; None where there is none, or what is there is damaged."""
    try:
        record = json.loads(_path(entry, manner).read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and "verdict" in record and "problem" in record else None


def _kept(entry, manner):
    """Whether a record of this code is there, and the kernel came to an end."""
    record = _read(entry, manner)
    return bool(record) and record.get("key") == _key(entry, manner) and record.get("problem") == ""
