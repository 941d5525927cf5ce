"""What a notebook's run left: a list of files with checksums, and a digest of what they were made from.

An outcome is stale where the notebook's code, its parameters, the fa_lib that it imports, the libraries or the
processor changed, where other devices left other tables of it, which its figures draw too, or where a file is gone or
altered. No clock is asked.
"""

import hashlib
import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import nbformat

from fa_lib.execution import fingerprint
from fa_lib.execution.files import replacing
from fa_lib.execution.paths import RECORDED
from fa_lib.execution.results import versions


def made_from(notebook: Path, parameters: dict) -> str:
    """A digest of what a notebook's results depend on.

    Args:
        notebook: its path. parameters: those that its run is given.
    """
    cells = nbformat.read(notebook, as_version=4).cells
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    used = fingerprint.of_notebook(code, parameters, notebook.parent)
    gpu = "cuda" in parameters.values()  # its run is what others draw: it waits for no table of another device
    of = [notebook.stem, *(["study"] if parameters.get("study_recorded") else [])]  # `training.campaign`'s
    tables = [] if gpu else sorted(path for name in of for path in RECORDED.glob(f"*/data/results/{name}*.csv"))
    recorded = [_checksum(path) for path in tables]
    return fingerprint.digest([code, parameters, used, versions(), fingerprint.hardware(gpu), recorded])


def write(path: Path, source: str, files: Iterable[Path], into: Path, **spent: float) -> None:
    """Write the outcome of a run.

    Args:
        path: of the outcome. source: of `made_from`. files: paths below the folder `into`. spent: seconds, and
            cpu_seconds (of its kernel and their processes on this machine).
    """
    held = {str(file): _checksum(Path(into) / file) for file in files}
    with replacing(path) as temporary:
        spent = {name: round(value, 1) for name, value in spent.items()}
        temporary.write_text(json.dumps(dict(made_from=source, files=held, **spent), indent=1) + "\n")


def fresh(path: Path, source: str, into: Path) -> bool:
    """Whether the outcome at `path` was made from `source`, and all its files are as it left them."""
    held = read(path)
    if held is None or held["made_from"] != source:
        return False
    return all(_checksum(Path(into) / file) == checksum for file, checksum in held["files"].items())


def seconds(path: Path) -> float | None:
    """Those that the run of an outcome took; None where that is not known."""
    held = (read(path) or {}).get("seconds")
    return held if isinstance(held, (int, float)) and 0 < held < float("inf") else None


def read(path: Path) -> dict | None:
    """made_from and files of an outcome; None where there is none, or a damaged one."""
    try:
        held = json.loads(Path(path).read_text())
        return held if isinstance(held["files"], dict) and "made_from" in held else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def copy(files: Iterable, source: Path, target: Path) -> None:
    """Copy files, paths below the folder `source`, below the folder `target`: each whole or as it was."""
    for file in files:
        with replacing(Path(target) / file) as temporary:
            shutil.copyfile(Path(source) / file, temporary)


def _checksum(path):
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
