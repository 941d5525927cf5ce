"""What a notebook leaves behind: its table, its rows of the ledger, its figures, and where they came from."""

import importlib.metadata
import json
import os
import platform
import subprocess
import time
from pathlib import Path

import pandas as pd
import torch

from fa_lib.execution.files import replacing
from fa_lib.paths import RECORDED, ROOT

STARTED = time.perf_counter()


ELSEWHERE = []  # what the jobs of a cluster ran on


LIBRARIES = (
    "torch",
    "numpy",
    "numba",
    "gfloat",
    "scipy",
    "pandas",
    "matplotlib",
    "diffusers",
    "transformers",
    "lightning-fabric",
)


def save(out, name, parameters, table, claims=(), figures=(), more=(), verdict=None):
    """Write a notebook's results below `out`, or nothing where `out` is empty.

    Args:
        out: folder: data/results/ and figures/ are made in it. `make figures` sets it.
        name: of the notebook, "02_precision".
        parameters: what the table was made with, for the provenance.
        table: tidy pandas.DataFrame.
        claims: rows of `claims.claim`.
        figures: name -> matplotlib Figure, written as PNG and SVG.
        more: name -> further table, written as <notebook>.<name>.csv.
        verdict: of a report: what has `passed` and is words as a text, written as <notebook>.verdict.json.
    """
    if not out:
        return
    results = Path(out) / "data" / "results"
    for suffix, each in {"": table, **{f".{key}": each for key, each in dict(more).items()}}.items():
        with replacing(results / f"{name}{suffix}.csv") as path:
            each.to_csv(path, index=False, float_format="%.7g")
    if claims:
        with replacing(results / f"{name}.claims.csv") as path:
            pd.DataFrame(claims).to_csv(path, index=False, float_format="%.6g")
    if verdict is not None:
        with replacing(results / f"{name}.verdict.json") as path:
            path.write_text(json.dumps(dict(passed=verdict.passed, words=str(verdict)), indent=1) + "\n")
    with replacing(results / f"{name}.provenance.json") as path:
        path.write_text(json.dumps(provenance(parameters), indent=1) + "\n")
    for figure_name, figure in dict(figures).items():
        if figure is None:
            continue
        # without dates and versions inside, the same data gives the same bytes
        for suffix, metadata in ((".png", {"Software": None}), (".svg", {"Date": None})):
            with replacing(Path(out) / "figures" / (figure_name + suffix)) as path:
                figure.savefig(path, metadata=metadata)


def recorded(name):
    """device -> the table that `make record` left of a notebook there, for every device it has run on."""
    found = sorted(RECORDED.glob(f"*/data/results/{name}.csv"))
    return {path.parents[2].name.replace("_", " "): pd.read_csv(path) for path in found}


def provenance(parameters):
    """Versions, device, those of jobs elsewhere, parameters; since fa_lib was loaded seconds, and the commit then."""
    return {
        "parameters": {key: list(value) if isinstance(value, range) else value for key, value in parameters.items()},
        "python": platform.python_version(),
        "versions": {library: importlib.metadata.version(library) for library in LIBRARIES},
        "device": device(),
        **({"jobs": ELSEWHERE} if ELSEWHERE else {}),
        "commit": COMMIT,
        "seconds": round(time.perf_counter() - STARTED, 1),
    }


def device():
    """What the numbers were computed on."""
    cpu = {"machine": platform.machine(), "system": platform.system(), "threads": torch.get_num_threads()}
    cpu["instructions"] = torch.backends.cpu.get_cpu_capability()
    return cpu | ({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {})


def _commit():
    env = os.environ | {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"}  # a commit of the reader's may be under way

    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, env=env)

    try:
        head = git("rev-parse", "HEAD")
    except OSError:
        return "unknown: no git here"
    if head.returncode:
        return "not a git checkout"
    changed = git("status", "--porcelain", "--", "fa_lib", "notebooks").stdout.strip()
    return head.stdout.strip() + (" with uncommitted changes" if changed else "")


COMMIT = _commit()
