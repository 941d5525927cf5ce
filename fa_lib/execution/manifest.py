"""What a notebook's run left: a list of files with checksums, and a digest of what they were made from.

An outcome is stale where the notebook's code, its parameters, the fa_lib that it imports, the libraries or the
processor changed, where the tables of READ changed or other devices left other tables of it, which its figures draw
too, or where a file is gone or altered. The files' dates do not count.
"""

import hashlib
import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import nbformat

from fa_lib.execution import fingerprint
from fa_lib.execution.files import replacing
from fa_lib.execution.paths import RECORDED, ROOT
from fa_lib.execution.results import versions

READ = {  # notebook -> the folder of data/ that other commands write and it draws
    "01_kernels": "gpu", "06_inside_a_model": "heads", "14_gallery": "gallery", "19_blame": "blame",
}  # fmt: skip


def made_from(notebook: Path, parameters: dict) -> str:
    """Compute a digest of what a notebook's results depend on.

    Args:
        notebook: its path. parameters: name -> value, as its run gets them.
    """
    cells = nbformat.read(notebook, as_version=4).cells
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    imports = fingerprint.of_notebook(code, parameters, notebook.parent)
    gpu = "cuda" in parameters.values()  # its run is what others draw: it waits for no table of another device
    names = [notebook.stem, *(["study"] if parameters.get("study_recorded") else [])]  # `training.campaign`'s
    tables = [] if gpu else sorted(path for name in names for path in RECORDED.glob(f"*/data/results/{name}*.csv"))
    if notebook.stem in READ:
        tables += sorted((ROOT / "data" / READ[notebook.stem]).glob("*.csv"))
    recorded = [_checksum(path) for path in tables]
    return fingerprint.digest([code, parameters, imports, versions(), fingerprint.hardware(gpu), recorded])


def write(path: Path, source: str, files: Iterable[Path], into: Path, **spent: float) -> None:
    """Write the outcome of a run.

    Args:
        path: where it is written. source: the digest of `made_from`. files: paths below the folder `into`.
        spent: seconds, and cpu_seconds (of the kernel and its processes on this machine).
    """
    checksums = {str(file): _checksum(Path(into) / file) for file in files}
    with replacing(path) as temporary:
        spent = {name: round(value, 1) for name, value in spent.items()}
        temporary.write_text(json.dumps(dict(made_from=source, files=checksums, **spent), indent=1) + "\n")


def fresh(path: Path, source: str, into: Path) -> bool:
    """Say whether an outcome is up to date.

    Args:
        path: the outcome's. source: the digest of `made_from` now. into: the folder of its files.

    Returns:
        whether it was made from `source`, and all its files are as the run left them.
    """
    outcome = read(path)
    if outcome is None or outcome["made_from"] != source:
        return False
    return all(_checksum(Path(into) / file) == checksum for file, checksum in outcome["files"].items())


def seconds(path: Path) -> float | None:
    """Read how many seconds the run of an outcome took; None where the outcome does not say."""
    value = (read(path) or {}).get("seconds")
    return value if isinstance(value, (int, float)) and 0 < value < float("inf") else None


def read(path: Path) -> dict | None:
    """Read an outcome.

    Returns:
        dict: made_from (a digest), files (path -> checksum), and as `write` got them seconds and cpu_seconds. None
        where there is no outcome, or a damaged one.
    """
    try:
        outcome = json.loads(Path(path).read_text())
        return outcome if isinstance(outcome["files"], dict) and "made_from" in outcome else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def copy(files: Iterable, source: Path, target: Path) -> None:
    """Copy files from below the folder `source` to below the folder `target`; each is whole or as it was.

    Args:
        files: paths relative to both folders.
    """
    for file in files:
        with replacing(Path(target) / file) as temporary:
            shutil.copyfile(Path(source) / file, temporary)


def _checksum(path):
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
