"""The step `gallery`: attention kernels that run on this GPU, each judged in a separate process, and their table."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from attention_gallery.catalogue import ON_CUDA
from attention_gallery.commands.judging import JudgingSettings, judge_all, rows
from attention_gallery.commands.pages import RECORDED, summary_line
from fa_lib.execution.results import save

KEYS = {"cuda": tuple(ON_CUDA), "cpu": ("torch_flash", "torch_math")}  # device -> of its catalogue
DEPTH = {"cuda": "gpu", "cpu": "rehearsal"}
JOBS = {"cuda": 6, "cpu": 2}  # at a time: most of a kernel's time is a compiler's, on one core
LIMIT_S = 240  # of one kernel


def judged(device: str, out: Path, cells: str = "", keys: Sequence[str] = ()) -> pd.DataFrame:
    """Judge kernels, and write `pages.RECORDED`.csv below `out` whenever one is done. A kernel that is judged
    is not judged again. The findings of each are in <out>/gallery/<key>.json.

    Args:
        device: "cuda", or "cpu" for a rehearsal. cells: folder of finished cells.
        keys: which kernels of KEYS to judge; empty is all of them.

    Returns:
        table: `judging.rows` of all KEYS.
    """
    manner = JudgingSettings(f"{out / 'gallery'}", DEPTH[device], device, cells, LIMIT_S)

    def say(words):
        print(words, flush=True)
        save(out, RECORDED, dict(device=device, depth=manner.depth), rows(KEYS[device], manner))

    judge_all(keys or KEYS[device], manner, say, JOBS[device])
    table = rows(KEYS[device], manner)
    print(*map(summary_line, table.to_dict("records")), sep="\n")
    return table
