"""The study that figures 7 and 8 are drawn from: hours on two cores, in parts, each of which can be interrupted.

A part is a set of pairs with the same seeds, steps and learning rate. What a part came to is written when it is done,
below data/recorded/; the runs' weights stay in a folder of the build.
"""

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from fa_lib.execution.files import replacing
from fa_lib.execution.lookup import lookup
from fa_lib.execution.paths import RECORDED
from fa_lib.execution.results import save
from fa_lib.execution.sweep import sweep
from fa_lib.training.arithmetic import arithmetic, difference
from fa_lib.training.arm import NUDGES, NUDGES_FP32
from fa_lib.training.config import Config
from fa_lib.training.distances import direction
from fa_lib.training.run_folder import steps_of, weights
from fa_lib.training.spectra import entropies
from fa_lib.training.study import StudySpec, jobs, samples, study

NAME = "study"  # of its tables
EARLY = 25  # steps whose weights are known by their bits
ROUNDS = (3, 5, 10)  # seeds of every part before any part has more: what is there at any time is a whole study


@dataclass(frozen=True)
class Part:
    """Some pairs, trained and compared.

    Attributes:
        key: as tables hold it.
        pairs: keys of `arm.PAIRS`. seeds: how many, from 0.
        steps, every: as of a RunSpec. lr: learning rate.
    """

    key: str
    pairs: tuple[str, ...]
    seeds: int
    steps: int = 300
    every: int = 25
    lr: float = 2e-3


_CONTEXT = ("flash", "perturb", "fp16", "fp16_scaled", "bf16", "init")
PARTS = {
    part.key: part
    for part in (
        Part("again", ("rerun",), 1),
        Part("main", (*_CONTEXT, "flash_small_tiles"), 10),
        Part("beside", ("flash_emulated", "flash_fp32", "perturb_fp32", "perturb_fp16", "data_order"), 5),
        Part("nudges", (*(f"perturb_1e{power}" for power in NUDGES),
                        *(f"perturb_fp32_1e{power}" for power in NUDGES_FP32)), 5),
        Part("reversed", ("reversed_keys", "reversed_keys_fp32"), 5),
        Part("lower_rate", _CONTEXT, 5, lr=5e-4),
        Part("long", ("flash", "perturb", "init"), 3, steps=3000, every=250),
    )
}  # fmt: skip
ALIKE = ("again", "main", "beside", "nudges", "reversed")
SHOWN = ("baseline", "flash", "perturb", "fp32", "fp16", "init")  # arms whose models draw
CAPTIONS, PICTURED = ("large red circle top left", "small blue square bottom right"), 3  # seeds that draw


def run_study_parts(
    keys: Sequence[str], config: Config, folder: Path, executor: Executor | None = None, out: Path = RECORDED / "cpu"
) -> dict[str, pd.DataFrame]:
    """Train and compare parts of the study, and write its tables after each, beside those of the parts before.

    Args:
        keys: of PARTS. config: of the models; the learning rate is the part's.
        folder: of the runs; what is finished there is not trained again, and what was interrupted goes on. All parts
            get 3 seeds first, then 5, then 10.
        out: below it are data/results/study.csv and its like.

    Returns:
        `recorded_tables`, of all parts that were ever made.

    Raises:
        ValueError: there is no such part, or an argument does not fit.
    """
    parts, by = [lookup("part", key, PARTS) for key in keys], _arithmetics(out)
    for one in [replace(each, seeds=min(seeds, each.seeds)) for seeds in ROUNDS for each in parts]:
        tables, runs = _tables(one, config, folder, executor)
        before = recorded_tables(out)
        whole = {}
        for name, table in tables.items():
            table.insert(0, "part", one.key)
            others = before[name][before[name].part != one.key] if before else pd.DataFrame()
            both = pd.concat([others, table], ignore_index=True)
            whole[name] = both.sort_values("part", key=lambda keys: keys.map(list(PARTS).index), kind="stable")
        made = {key: rows.seed.nunique() for key, rows in whole["differences"].groupby("part", sort=False)}
        by[one.key] = arithmetic()
        each_part = [asdict(PARTS[key]) | dict(seeds=made[key], arithmetic=by[key]) for key in made]
        parameters = dict(config=asdict(config), parts=each_part)
        save(out, NAME, parameters, whole.pop("differences"), more=whole, pool=executor)
        if one.key == "main":
            draw(runs, config, out)
    return recorded_tables(out)


def recorded_tables(out: Path = RECORDED / "cpu") -> dict[str, pd.DataFrame]:
    """The tables of the study that was recorded: differences (of `study.study`), runs (of `study.study`), signals (of
    `spectra.entropies`), bits (seed, arm, step, sha256: of the weights after each of the first steps), directions
    (pair, seed, the columns of `distances.direction`); each with its part. Empty where none was recorded."""
    at = out / "data" / "results"
    if not (at / f"{NAME}.csv").exists():
        return {}
    more = {name: pd.read_csv(at / f"{NAME}.{name}.csv") for name in ("runs", "signals", "bits", "directions")}
    return dict(differences=pd.read_csv(at / f"{NAME}.csv")) | more


def _arithmetics(out):
    """Part -> the `arithmetic` that the recorded study's runs of it were made by, on whatever machine.

    Raises:
        ValueError: its provenance does not say so.
    """
    path = out / "data" / "results" / f"{NAME}.provenance.json"
    if not path.exists():
        return {}
    parts = json.loads(path.read_text())["parameters"]["parts"]
    if lacking := [part["key"] for part in parts if "arithmetic" not in part]:
        raise ValueError(f"{path}: the parts {', '.join(lacking)} have no arithmetic; accepted is one for each part")
    return {part["key"]: part["arithmetic"] for part in parts}


def draw(runs: pd.DataFrame, config: Config, out: Path = RECORDED / "cpu") -> None:
    """Keep what the trained models draw of CAPTIONS."""
    each = [samples(runs[(runs.seed == seed) & runs.arm.isin(SHOWN)], CAPTIONS, config) for seed in range(PICTURED)]
    images: dict[str, Any] = {arm: np.stack([of[arm].numpy() for of in each if arm in of]) for arm in each[0]}
    with replacing(out / "data" / "results" / f"{NAME}.samples.npz") as path, path.open("wb") as file:
        np.savez_compressed(file, **images)


def recorded_drawings(out: Path = RECORDED / "cpu") -> dict[str, torch.Tensor]:
    """What the recorded models drew: arm -> uint8 (seeds, captions, 3, size, size)."""
    with np.load(out / "data" / "results" / f"{NAME}.samples.npz") as samples:
        return {arm: torch.from_numpy(samples[arm]) for arm in samples}


def alike(table: pd.DataFrame) -> pd.DataFrame:
    """Of the recorded study, all that has the steps and the learning rate of the main part, without the column; what
    two parts share (a twin's run, trained for both) once."""
    rows = table[table.part.isin(ALIKE)].drop(columns="part")
    return rows[~rows.duplicated([name for name in rows if name != "seconds"])].reset_index(drop=True)


def part(table: pd.DataFrame, key: str) -> pd.DataFrame:
    """One part of the recorded study, without the column."""
    return table[table.part == key].drop(columns="part").reset_index(drop=True)


def same_bits(runs: pd.DataFrame, kept: pd.DataFrame) -> pd.DataFrame:
    """Whether runs made here have the bits of recorded ones.

    Args:
        runs: of `study.study`. kept: `recorded_tables()["bits"]` of one part.

    Returns:
        table: arm, seed, step, same; of the steps that both know.
    """
    here = pd.concat([bits(row.arm, row.seed, row.at) for row in runs.itertuples()], ignore_index=True)
    both = here.merge(kept, on=["arm", "seed", "step"], suffixes=("", "_kept"))
    return both.assign(same=both.sha256 == both.sha256_kept)[["arm", "seed", "step", "same"]]


def agreement(same: pd.DataFrame, out: Path = RECORDED / "cpu") -> str:
    """One sentence: how many weights made here have the bits of the recorded study's main part, and, where not all
    have, how this machine differs from the one that recorded it. Another machine is no error.

    Args:
        same: of `same_bits`. out: as of `run_study_parts`.

    Raises:
        ValueError: the recorded study has no main part.
    """
    words = f"{same.same.sum()} of {len(same)} weights made here have the bits of the recorded study"
    recorded = lookup("part", "main", _arithmetics(out))
    return words if same.same.all() else f"{words}; {difference(arithmetic(), recorded)}"


def bits(arm: str, seed: int, at: str) -> pd.DataFrame:
    """SHA-256 of the weights files of a run's first EARLY steps: arm, seed, step, sha256 (its first 16 digits)."""
    rows = [
        dict(arm=arm, seed=seed, step=step, sha256=hashlib.sha256(weights(at, step).read_bytes()).hexdigest()[:16])
        for step in steps_of(at)
        if step <= EARLY
    ]
    return pd.DataFrame(rows)


def _tables(part, config, folder, executor):
    """The tables of one part; and its runs, with their folders."""
    spec = StudySpec(part.seeds, part.steps, part.every, replace(config, lr=part.lr))
    differences, runs = study(part.pairs, spec, folder / "runs", executor, cache=folder / "cells")
    first = [bits(row.arm, row.seed, row.at) for row in runs.itertuples()]
    made = dict(differences=differences, runs=runs.drop(columns="at"))
    made |= dict(signals=signals(runs, config.heads, folder / "cells", executor))
    made |= dict(directions=directions(part.pairs, runs, folder / "cells", executor))
    return made | dict(bits=pd.concat(first, ignore_index=True)), runs


def directions(
    pairs: Sequence[str], runs: pd.DataFrame, cache: str | Path = "", executor: Executor | None = None
) -> pd.DataFrame:  # fmt: skip
    """`distances.direction` of some pairs, with pair and seed. Others: as `signals`."""
    table = sweep(direction, dict(job=jobs(pairs, runs)), cache=cache, executor=executor)
    return table.drop(columns=["folder", "twin", "heads"])


def signals(
    runs: pd.DataFrame, heads: int, cache: str | Path = "", executor: Executor | None = None
) -> pd.DataFrame:  # fmt: skip
    """`entropies` of every run, with its arm and seed. runs: of `study.study`. cache, executor: as `sweep`."""
    each = dict(run=[(row.arm, row.seed, row.at) for row in runs.itertuples()])
    table = sweep(signal, each, fixed=dict(heads=heads), cache=cache, executor=executor)
    return table.drop(columns=["run", "heads"])


def signal(run: tuple[str, int, str], heads: int) -> list[dict]:
    """A cell: `entropies` of a run (arm, seed, folder), with its arm and seed."""
    arm, seed, at = run
    return [dict(arm=arm, seed=seed) | row for row in entropies(at, heads)]
