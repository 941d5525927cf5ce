"""`fa-lib dev mutate`: which changes of a GPU kernel does a reader's test command not notice?"""

import json
import os
import random
import signal
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from ptx_machine import mutate
from ptx_machine.mutate import Change
from ptx_machine.ptx import parse

NOTICED, SURVIVED, CRASHED, TIMEOUT = "noticed", "survived", "crashed", "timeout"
LONGEST_S = 600.0  # that the tests may take with a change
OUTCOMES = NOTICED, SURVIVED, CRASHED, TIMEOUT
FAILED_TESTS = 1  # pytest's exit status


def recorded(command: Sequence[str], within: str, gpu: str) -> list[Change]:
    """Run a test command with the unchanged kernel, and list the possible changes of the kernels that it launches.

    Raises:
        ValueError: the command fails, or the function launches no kernel.
    """
    with tempfile.TemporaryDirectory() as folder:
        settings = {mutate.RECORD: folder, mutate.WITHIN: within, mutate.DEFAULT_GPU: gpu}
        status, output = ran(command, settings, None)
        if status:
            raise ValueError(f"tests: they fail with the unchanged kernel, and have to pass:\n{output[-2000:]}")
        found = [json.loads(path.read_text()) for path in sorted(Path(folder).iterdir())]
    if not found:
        raise ValueError(f"kernel: the tests launch no GPU kernel of {within}; accepted is a function that does")
    every = (mutate.changes(each["text"], parse(each["text"]).entries[each["kernel"]]) for each in found)
    return [*dict.fromkeys(chain.from_iterable(every))]


def drawn(changes: Sequence[Change], count: int, seed: int) -> list[Change]:
    """Draw changes, of each kind in turn, so that rare kinds come too."""
    kinds = defaultdict(list)
    for change in random.Random(seed).sample(changes, len(changes)):
        kinds[change.kind].append(change)
    turns = [change for place in range(len(changes)) for own in kinds.values() for change in own[place : place + 1]]
    return turns[:count]


def outcome(command: Sequence[str], within: str, gpu: str, change: Change) -> str:
    """Run the tests with a change, and return which of OUTCOMES comes of it."""
    settings = {mutate.CHANGE: mutate.as_json(change), mutate.WITHIN: within, mutate.DEFAULT_GPU: gpu}
    status, _ = ran(command, settings, LONGEST_S)
    return {0: SURVIVED, FAILED_TESTS: NOTICED, None: TIMEOUT}.get(status, CRASHED)


def ran(command: Sequence[str], settings: dict[str, str], timeout: float | None) -> tuple[int | None, str]:
    """Run a command, and return its exit status, or None after `timeout` seconds, and its output."""
    process = subprocess.Popen(command, env=os.environ | settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, start_new_session=True)  # fmt: skip
    try:
        output, _ = process.communicate(timeout=timeout)
        return process.returncode, output
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)  # it may have workers
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            return None, ""
        raise
