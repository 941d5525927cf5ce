"""A session of recording: each step is a process with a time limit; the state is written after each, so that the
session can go on."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from fa_lib.commands.record.plan import LIMIT, SCALES, STEPS, Step, chosen, fits
from fa_lib.execution.files import locked_folder, replacing
from fa_lib.execution.lookup import lookup
from fa_lib.execution.paths import CHECKOUT, PACKAGE, RECORDED, build
from fa_lib.execution.results import commit, described, versions


def record(
    names: Sequence[str] = (), on: str = "cuda", budget: float = 0, out: str | Path = "",
    dry_run: bool = False, say: Callable = print,
) -> dict:  # fmt: skip
    """Make the steps that are not done, in order of value, as far as the time allows.

    A step that fails or runs out of time stops no other one. A step that is done is not made again unless it is named.

    Args:
        names: steps; empty is all that are not done.
        on: the device, "cuda", or "cpu" for a rehearsal of the same steps in small.
        budget: minutes for all steps together; 0 has no limit.
        out: folder; empty is data/recorded/<the GPU's name> or build/recorded/cpu.
        dry_run: whether to print the plan only. say: gets each line.

    Returns:
        dict, which `<out>/record.json` holds: device, versions, commit; steps, key -> status ("done", "failed", "out of
        time"), seconds, and, where it is not done, words: the end of its output.

    Raises:
        ValueError: an argument does not fit, or there is no such device here and a plan is not all that is asked for;
            before anything is made.
    """
    scale = lookup("device", on, SCALES)
    if on == "cuda" and not torch.cuda.is_available() and not dry_run:
        raise ValueError("device: no CUDA device here; accepted is cpu, a rehearsal of the same steps in small")
    if budget < 0:
        raise ValueError(f"budget: got {budget}; accepted are minutes above 0, or 0 for no limit")
    out = Path(out or (RECORDED / _name() if on == "cuda" else build() / "recorded" / "cpu")).resolve()
    state = read(out)
    steps = chosen(names, [key for key, step in state["steps"].items() if step["status"] == "done"])
    for line in plan_lines(steps, state, budget, out):
        say(line)
    if dry_run:
        return state
    ends = time.monotonic() + 60 * budget if budget else float("inf")
    with locked_folder(out):
        for step in steps:
            left = (ends - time.monotonic()) / 60
            if not fits(step, left):
                say(f"{step.key}: not begun, {left:.0f} minutes are left")
                continue
            say(f"{step.key}: {step.label}")
            state["steps"][step.key] = outcome = _make(step, on, scale, out, 60 * min(LIMIT, left))
            state |= dict(device=described(), versions=versions(), commit=commit())
            with replacing(out / "record.json") as path:
                path.write_text(json.dumps(state, indent=1) + "\n")
            say(f"{step.key}: {outcome['status']} in {outcome['seconds']:.0f} s {outcome.get('words', '')}".rstrip())
    return state


def plan_lines(steps: Sequence[Step], state: dict, budget: float, out: Path) -> list[str]:
    """Write the plan: a line that names the folder, then a line for each step.

    Args:
        steps: those to be made. state: of `read`. budget: minutes; 0 for no limit. out: the folder.
    """
    lines = [f"results go to {out}" + (f"; {budget:g} minutes" if budget else "")]
    for key, step in STEPS.items():
        plan = f"{step.minutes:g} min" if step in steps else state["steps"].get(key, {}).get("status", "left out")
        lines.append(f"  {key:11} {plan:>10}  {step.label}")
    return lines


def read(out: Path) -> dict:
    """Read the state of a session; without a file, that of a new one.

    Returns:
        dict: as of `record`; of a new session, steps only.

    Raises:
        ValueError: its file is damaged.
    """
    path = Path(out) / "record.json"
    if not path.exists():
        return dict(steps={})
    try:
        state = json.loads(path.read_text())
        return state if state["steps"].keys() <= STEPS.keys() else dict(state, steps={})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"out: {path} is damaged; remove it to begin anew: {error}") from error


def command(key: str, on: str, scale: str, out: Path) -> list[str]:
    """Return the command line of a step's process."""
    return [sys.executable, "-m", "fa_lib.commands.record.steps", key, on, scale, str(out)]


def _name():
    """Return the GPU's name as a folder's; in the plan of a machine without one, a placeholder."""
    return re.sub(r"\W+", "_", torch.cuda.get_device_name()) if torch.cuda.is_available() else "<the GPU>"


def _make(step, on, scale, out, seconds):
    """Run a step in a process with its own group, its output in <out>/log/; return its status, seconds and words."""
    log = out / "log" / f"{step.key}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    root = str(CHECKOUT or PACKAGE.parent)
    env = os.environ | {"TQDM_DISABLE": "1", "PYTHONUNBUFFERED": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    env["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [env.get("PYTHONPATH")])])
    words = command(step.key, on, scale, out)
    started, status = time.monotonic(), ""
    with open(log, "w") as file:
        process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, env=env, start_new_session=True)
        try:
            status = "failed" if process.wait(timeout=seconds) else "done"
        except subprocess.TimeoutExpired:
            status = "out of time"
        finally:
            _end(process)
    outcome = dict(status=status, seconds=round(time.monotonic() - started, 1))
    if status != "done":
        outcome["words"] = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
    return outcome


def _end(process):
    """End a step's process and all that it started: first by SIGINT, so that training writes its checkpoint."""
    for number, seconds in ((signal.SIGINT, 15), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=seconds)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
