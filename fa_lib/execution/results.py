"""What a notebook writes: its table, its rows of the ledger, its figures, and where they came from."""

import importlib.metadata
import json
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fa_lib.execution.files import replacing
from fa_lib.execution.paths import CHECKOUT, RECORDED, STYLE

if TYPE_CHECKING:  # jobs and `fa-lib dev figures` write no table, and need not wait for pandas
    import pandas as pd
    from matplotlib.figure import Figure

STARTED = time.perf_counter()
LIBRARIES = "torch numpy numba gfloat scipy pandas matplotlib diffusers transformers".split()
QUERY = ("name", "driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit", "temperature.gpu")


def save(
    out: str | Path, name: str, parameters: dict, table: "pd.DataFrame", claims: Sequence[dict] = (),
    figures: Any = (), more: Any = (), pool: Executor | None = None,
) -> None:  # fmt: skip
    """Write a notebook's results below `out`, or nothing where `out` is empty.

    Args:
        out: folder: data/results/ and figures/ are made in it. `make figures` sets it.
        name: the notebook's, as "02_precision".
        parameters: name -> value that the table was made with, for the provenance.
        table: tidy pandas.DataFrame.
        claims: rows of `claims.claim`.
        figures: name -> matplotlib Figure, written as PNG and SVG.
        more: name -> further table, written as <notebook>.<name>.csv, or dataclasses, as <notebook>.<name>.json.
        pool: the executor of `pools.workers`; the devices of its jobs go to the provenance.
    """
    if not out:
        return
    import pandas as pd

    results = Path(out) / "data" / "results"
    for suffix, each in {"": table, **{f".{key}": each for key, each in dict(more).items()}}.items():
        if isinstance(each, pd.DataFrame):
            write_table(results / f"{name}{suffix}.csv", each, 7)
        else:
            write_json(results / f"{name}{suffix}.json", [asdict(one) for one in each])
    if claims:
        write_table(results / f"{name}.claims.csv", pd.DataFrame(claims), 6)
    write_json(results / f"{name}.provenance.json", provenance(parameters, pool))
    for figure_name, figure in dict(figures).items():
        save_figure(figure, Path(out) / "figures" / figure_name)


def write_table(path: Path, table: "pd.DataFrame", digits: int) -> None:
    """Write a table as CSV, numbers with so many digits, whole or not at all."""
    with replacing(path) as to:
        table.to_csv(to, index=False, float_format=f"%.{digits}g")


def write_json(path: Path, record: Any) -> None:
    """Write a record as JSON, whole or not at all."""
    with replacing(path) as to:
        to.write_text(json.dumps(record, indent=1) + "\n")


def save_figure(figure: "Figure", path: str | Path) -> None:
    """Write a figure as `path`.png and `path`.svg. Without dates and versions inside, the same data on the same machine
    gives the same bytes, whatever the reader's matplotlibrc and backend."""
    from matplotlib import style  # here: most processes draw nothing, and it takes half a second

    for kind, backend, metadata in (("png", "agg", {"Software": None}), ("svg", "svg", {"Date": None})):
        with replacing(Path(f"{path}.{kind}")) as temporary, style.context(STYLE):
            figure.savefig(temporary, metadata=metadata, backend=backend)


def recorded(name: str) -> dict[str, "pd.DataFrame"]:
    """Read the tables of this name that other devices left (`benchmarks.record`): device -> table."""
    import pandas as pd

    found = sorted(RECORDED.glob(f"*/data/results/{name}.csv"))
    return {path.parents[2].name.replace("_", " "): pd.read_csv(path) for path in found}


def provenance(parameters: dict, pool: Executor | None = None) -> dict:
    """Describe where results came from: a dict of parameters, python, versions, device (`described`), jobs (the devices
    of the jobs of an executor, where there are any), commit, seconds (since this file was loaded)."""
    jobs = getattr(pool, "devices", [])
    return {
        "parameters": {key: list(value) if isinstance(value, range) else value for key, value in parameters.items()},
        "python": platform.python_version(),
        "versions": versions(),
        "device": described(),
        **({"jobs": jobs} if jobs else {}),
        "commit": commit(),
        "seconds": round(time.perf_counter() - STARTED, 1),
    }


def versions() -> dict[str, str]:
    """Return library -> version for those of LIBRARIES that are installed."""
    installed = {}
    for library in LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            installed[library] = importlib.metadata.version(library)
    return installed


def described() -> dict:
    """Describe the device at this time: as `device`; with a GPU also cuda and capability, and by QUERY what nvidia-smi
    says: driver, clocks (MHz), power limit (W) and temperature (°C), as texts."""
    found = device()
    if torch.cuda.is_available():
        found |= dict(cuda=torch.version.cuda, capability=torch.cuda.get_device_capability())
    words = ["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
    try:
        line = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return found
    return found | dict(zip(QUERY, (word.strip() for word in line.split(","))))


def device() -> dict:
    """Describe the machine that computes, in the same way at any time: machine, system, threads and instructions
    (torch's), and gpu (its name) where there is one."""
    cpu = {"machine": platform.machine(), "system": platform.system(), "threads": torch.get_num_threads()}
    cpu["instructions"] = torch.backends.cpu.get_cpu_capability()
    return cpu | ({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {})


def commit() -> str:
    """Return the checkout's commit, and whether its code was changed since; or a text that says why there is none."""
    if CHECKOUT is None:
        return f"fa_lib {importlib.metadata.version('fa_lib')}, not a checkout"
    try:
        found = git("rev-parse", "--show-toplevel", "HEAD")
    except OSError:
        return "unknown: no git here"
    top, _, head = found.stdout.strip().rpartition("\n")
    if found.returncode or not os.path.samefile(top, CHECKOUT):  # or it lies in another repository
        return "not a git checkout"
    return head + (" with uncommitted changes" if uncommitted("fa_lib", "instruments", "notebooks") else "")


def uncommitted(*paths: str) -> list[str]:
    """List the files below paths of the checkout, or git's pathspecs, that are not as its commit has them."""
    lines = git("status", "--porcelain", "--untracked-files=all", "--", *paths).stdout.splitlines()
    return [line[3:] for line in lines]


def git(*words: str) -> subprocess.CompletedProcess:
    """Run git in the checkout, as if no other repository were named."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # of another repository
    env = own | {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"}  # a commit of the reader's may be under way
    return subprocess.run(["git", *words], cwd=CHECKOUT, capture_output=True, text=True, env=env)
