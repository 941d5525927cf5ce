"""`fa-lib check model` in two processes: the model runs and is judged in one, and the other reads the judgement.

A model's function may do anything to the process it runs in, its exit code included. The process of the command never
imports it.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from attention_check.isolation.isolated_kernel import signal_name
from attention_check.report.page_files import PageFiles
from fa_lib.execution import reader_modules
from fa_lib.execution.untrusted import Untrusted, first_line

INSIDE = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])["path"]
from attention_check.commands.model_process import inside
inside()
"""
LAST_S = 2.0  # for its last words: a child of its own may hold its output open


def check_model(function: str, out: str | Path, say: Callable[[str], Any], **given: Any) -> PageFiles:
    """Run `captured_reports.check_model` in another process, so that the function changes nothing in this one.

    Args:
        function: package.module:function, which runs the model. out: folder for the page.
        say: gets each line that the process prints. given: save, names and causal, as of the function.

    Returns:
        the judgement's files.

    Raises:
        ValueError: `captured_reports.check_model` raised, or the process ended before the model was judged.
    """
    files = PageFiles.of(out, function)
    files.clear()
    with TemporaryDirectory() as folder:
        problem = Path(folder) / "problem"
        options = {name: f"{x}" if isinstance(x, Path) else x for name, x in given.items()}
        # The library's imports find no file of the reader's.
        where = dict(path=sys.path, folders=reader_modules.folders())
        order = where | dict(problem=f"{problem}", given=options | dict(function=function, out=f"{out}"))
        process = subprocess.Popen(
            [sys.executable, "-P", "-u", "-c", INSIDE, json.dumps(order)], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="backslashreplace",
        )  # fmt: skip
        relay = threading.Thread(target=_relayed, args=(process.stdout, say), daemon=True)
        relay.start()
        try:
            code = process.wait()
        except BaseException:
            process.kill()
            raise
        relay.join(LAST_S)
        if problem.exists():
            raise ValueError(problem.read_text(errors="backslashreplace"))
    if not files.page.exists():
        ending = f"exit code {code}" if code >= 0 else signal_name(-code)
        raise ValueError(f"function: {function} ended its process, with {ending}, before it was judged")
    return files


def inside() -> None:
    """Judge a model in this process, as its first argument, JSON, says; write an error into the file that it names."""
    order = json.loads(sys.argv[1])
    for folder in order["folders"]:
        reader_modules.add(folder)
    try:
        from attention_check.commands import captured_reports

        captured_reports.check_model(**order["given"])
    except (ValueError, OSError, RuntimeError) as error:
        Path(order["problem"]).write_text(Untrusted(error))
    except BaseException as error:  # KeyboardInterrupt too, and whatever else a model raises
        name = first_line(type(error).__name__)
        Path(order["problem"]).write_text(f"function: {order['given']['function']} raises {name}")


def _relayed(stream, say):
    for line in stream:
        say(f"| {Untrusted(line.rstrip())}")
