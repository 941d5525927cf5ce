"""Where `make figures` spends its time: `make times` writes docs/operate/times.md from what runs left in build/."""

import os
import sys
from pathlib import Path

import nbformat
import torch

from fa_lib.commands.cli_dev import notebooks_of
from fa_lib.execution.files import replacing
from fa_lib.execution.machine import processor
from fa_lib.execution.notebooks import of_scale, outcome
from fa_lib.execution.paths import NOTEBOOKS, ROOT, build

HERE = Path(__file__).parent
SCALE = "paper"
HEAD = "| notebook | wall s | outside of its cells | its longest cell |\n|---|---|---|---|"


def seconds_of_cells(executed: Path) -> list[float]:
    """Of each code cell of a notebook that papermill ran."""
    cells = nbformat.read(executed, as_version=4).cells
    return [cell.metadata.papermill.duration or 0 for cell in cells if cell.cell_type == "code"]


def row(name: str, spent: dict, cells: list[float]) -> str:
    """A line of the table. spent: an outcome, with its seconds. cells: of `seconds_of_cells`."""
    outside = max(0.0, spent["seconds"] - sum(cells))
    return f"| {name} | {spent['seconds']:.0f} | {outside:.1f} | {max(cells):.0f} |"


def document(folder: Path) -> str:
    """benchmarks/times.md with its numbers. folder: `build()`, where `make figures` has run."""
    rows, spans, wall = [], [], 0.0
    for path in of_scale(notebooks_of(NOTEBOOKS, None), SCALE):
        spent = outcome(path, folder)
        if spent is None:
            raise ValueError(f"times: {path.stem} has not run at the scale {SCALE}; run `make figures` first")
        rows.append(row(path.stem, spent, seconds_of_cells(folder / path.name)))
        wall += spent["seconds"]
        end = (folder / f"{path.stem}.outcome.json").stat().st_mtime
        spans.append((end - spent["seconds"], end))
    machine = (
        f"{processor()}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"
    )
    total = f"| all | {wall:.0f} | | |"
    starts, ends = zip(*spans)
    elapsed = (max(ends) - min(starts)) / 60
    names = dict(machine=machine, table="\n".join([HEAD, *rows, total]), minutes=wall / 60, elapsed=elapsed)
    return (HERE / "times.md").read_text().format(**names)


if __name__ == "__main__":
    try:
        text = document(build())
    except ValueError as error:
        sys.exit(str(error))
    with replacing(ROOT / "docs" / "operate" / "times.md") as path:
        path.write_text(text)
