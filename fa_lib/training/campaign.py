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

import pandas as pd
import torch

from fa_lib.execution.lookup import lookup
from fa_lib.execution.machine import model
from fa_lib.execution.paths import RECORDED
from fa_lib.execution.results import save
from fa_lib.execution.sweep import sweep
from fa_lib.training.arm import NUDGES, NUDGES_FP32
from fa_lib.training.config import Config
from fa_lib.training.distances import direction
from fa_lib.training.half_products import slow
from fa_lib.training.run_folder import steps_of, weights
from fa_lib.training.study import StudySpec, jobs, study

NAME = "study"  # of its tables
EARLY = 25  # steps whose weights are known by their bits
ROUNDS = (3, 5, 10)  # seeds of every part before any part has more: what is there at any time is a whole study


@dataclass(frozen=True)
class Part:
    """Some pairs, trained and compared.

    Attributes:
        key: as tables hold it.
        pairs: keys of `arm.PAIRS`. seeds: how many, from 0.
        steps, every: as of a RunSpec. lr, optimizer, weight_decay, noise: as of a Config.
    """

    key: str
    pairs: tuple[str, ...]
    seeds: int
    steps: int = 300
    every: int = 25
    lr: float = 2e-3
    optimizer: str = "adamw"
    weight_decay: float = 0.01
    noise: str = "shifted"


_CONTEXT = ("flash", "perturb", "fp16", "fp16_scaled", "bf16", "init")
PARTS = {
    part.key: part
    for part in (
        Part("again", ("rerun",), 1),
        Part("main", (*_CONTEXT, "flash_small_tiles"), 10),
        Part("beside", ("flash_emulated", "perturb_fp16", "data_order"), 5),
        Part("fp32", ("flash_fp32", "perturb_fp32", "reversed_keys_fp32"), 10),
        Part("fp32_nudge", ("perturb_fp32_1e-8",), 10),
        Part("nudges", (*(f"perturb_1e{power}" for power in NUDGES),
                        *(f"perturb_fp32_1e{power}" for power in NUDGES_FP32)), 5),
        Part("orders", ("reversed_keys", "shuffled_keys", "shuffled_again"), 10),
        Part("lower_rate", _CONTEXT, 5, lr=5e-4),
        Part("long", ("flash", "perturb", "init"), 3, steps=3000, every=250),
        Part("sgd", ("flash", "perturb", "perturb_1e-3"), 5, lr=0.1, optimizer="sgd", weight_decay=0.0),
        Part("first_recipe", ("flash", "fp16", "fp16_scaled", "bf16"), 5, lr=1e-3, noise="uniform"),
    )
}  # fmt: skip
# Written down before the parts sgd, first_recipe and orders (except for five seeds of reversed_keys) were run: they are
# read at the last step, 300, in the relative L2 distance (the first recipe in the Wasserstein distance, as its ratios
# were), and two distances are called equal where the 95 % interval of their ratio lies within MARGIN of 1.
MARGIN = 0.1
SAME_RECIPE = ("again", "main", "beside", "fp32", "fp32_nudge", "nudges", "orders")


def run_study_parts(
    keys: Sequence[str], config: Config, folder: Path, executor: Executor | None = None, out: Path = RECORDED / "cpu"
) -> dict[str, pd.DataFrame]:
    """Train and compare parts of the study, and write its tables after each part, beside those of the parts before.

    All parts get 3 seeds first, then 5, then 10.

    Args:
        keys: of PARTS.
        config: of the models; the learning rate is the part's.
        folder: of the runs. A finished run is not trained again, and an interrupted one goes on.
        executor: as `sweep`.
        out: the folder whose data/results/study*.csv are written.

    Returns:
        dict of DataFrames, as `recorded_tables`: all parts that were ever made.

    Raises:
        ValueError: there is no such part, or an argument does not fit.
    """
    parts, by = [lookup("part", key, PARTS) for key in keys], _arithmetics(out)
    for part in [replace(full_part, seeds=min(seeds, full_part.seeds)) for seeds in ROUNDS for full_part in parts]:
        tables = _tables(part, config, folder, executor)
        before = recorded_tables(out)
        complete = {}
        for name, table in tables.items():
            table.insert(0, "part", part.key)
            others = before[name][before[name].part != part.key] if before else pd.DataFrame()
            joined = pd.concat([others, table], ignore_index=True)
            complete[name] = joined.sort_values("part", key=lambda keys: keys.map(list(PARTS).index), kind="stable")
        seeds_of = {key: rows.seed.nunique() for key, rows in complete["differences"].groupby("part", sort=False)}
        by[part.key] = arithmetic()
        described_parts = [asdict(PARTS[key]) | dict(seeds=seeds_of[key], arithmetic=by[key]) for key in seeds_of]
        parameters = dict(config=asdict(config), parts=described_parts)
        save(out, NAME, parameters, complete.pop("differences"), more=complete, pool=executor)
    return recorded_tables(out)


def recorded_tables(out: Path = RECORDED / "cpu") -> dict[str, pd.DataFrame]:
    """Read the tables of the recorded study.

    Args:
        out: as of `run_study_parts`.

    Returns:
        dict of DataFrames, each with a column part; empty where no study was recorded. differences and runs: the
        columns of `study.study`. bits: arm, seed, step,
        sha256, of the weights after each of the first steps. directions: pair, seed and the columns of
        `distances.direction`.
    """
    folder = out / "data" / "results"
    if not (folder / f"{NAME}.csv").exists():
        return {}
    more = {name: pd.read_csv(folder / f"{NAME}.{name}.csv") for name in ("runs", "bits", "directions")}
    return dict(differences=pd.read_csv(folder / f"{NAME}.csv")) | more


def arithmetic() -> dict[str, str]:
    """Name what the bits of a training step on a CPU depend on, beside the code: torch's version, the processor, the
    instructions that torch's own loops use, and the formats whose products `half_products` sums in FP32."""
    summed = [name for name, dtype in (("BF16", torch.bfloat16), ("FP16", torch.float16)) if slow(dtype)]
    return dict(
        torch=torch.__version__, processor=model(), instructions=torch.backends.cpu.get_cpu_capability(),
        summed_in_fp32=" ".join(summed) or "none",
    )  # fmt: skip


def _arithmetics(out):
    """Read which `arithmetic` the recorded study's runs were made by: part -> dict. Parts can come from other machines.

    Raises:
        ValueError: its provenance does not say so.
    """
    path = out / "data" / "results" / f"{NAME}.provenance.json"
    if not path.exists():
        return {}
    parts = json.loads(path.read_text())["parameters"]["parts"]
    if incomplete := [part["key"] for part in parts if "arithmetic" not in part]:
        raise ValueError(f"{path}: the parts {', '.join(incomplete)} have no arithmetic; accepted is one for each part")
    return {part["key"]: part["arithmetic"] for part in parts}


def same_recipe(table: pd.DataFrame) -> pd.DataFrame:
    """Select the rows of the parts that have the main part's steps and learning rate.

    Args:
        table: one of `recorded_tables`.

    Returns:
        DataFrame with its columns but part. Rows that two parts share (a twin's run, trained for both) come once.
    """
    rows = table[table.part.isin(SAME_RECIPE)].drop(columns="part")
    differing = "seconds", "zeros", "zeros_qk"  # the counts of zeros are those of older runs alone
    return rows[~rows.duplicated([name for name in rows if name not in differing])].reset_index(drop=True)


def select_study(table: pd.DataFrame, key: str) -> pd.DataFrame:
    """Select the rows of one part of a recorded table: a DataFrame with its columns but part."""
    return table[table.part == key].drop(columns="part").reset_index(drop=True)


def same_bits(runs: pd.DataFrame, kept: pd.DataFrame) -> pd.DataFrame:
    """Compare the weights of runs made on this machine with those of recorded runs, bit by bit.

    Args:
        runs: of `study.study`.
        kept: `recorded_tables()["bits"]` of one part.

    Returns:
        DataFrame: arm, seed, step, same (bool); of the steps that both have.
    """
    joined = bits(runs).merge(kept, on=["arm", "seed", "step"], suffixes=("", "_kept"))
    return joined.assign(same=joined.sha256 == joined.sha256_kept)[["arm", "seed", "step", "same"]]


def agreement(same: pd.DataFrame, out: Path = RECORDED / "cpu") -> str:
    """Say in one sentence how many weights files made here have the bits of the recorded study's main part, and, where
    not all have, what is known of both machines. Another machine is no error: oneDNN and MKL choose their code by the
    processor.

    Args:
        same: of `same_bits`.
        out: as of `run_study_parts`.

    Raises:
        ValueError: the recorded study has no main part.
    """
    words = f"{same.same.sum()} of {len(same)} weights made here have the bits of the recorded study"
    recorded = lookup("part", "main", _arithmetics(out))
    both = [", ".join(f"{name} {text}" for name, text in names.items()) for names in (recorded, arithmetic())]
    return words if same.same.all() else f"{words}; recorded: {both[0]}; here: {both[1]}"


def bits(runs: pd.DataFrame) -> pd.DataFrame:
    """Hash the weights files of the first EARLY steps of runs.

    Args:
        runs: of `study.study`.

    Returns:
        DataFrame: arm, seed, step, sha256 (its first 16 digits).
    """
    files = [(row, step) for row in runs.itertuples() for step in steps_of(row.at) if step <= EARLY]
    rows = [
        (row.arm, row.seed, step, hashlib.sha256(weights(row.at, step).read_bytes()).hexdigest()[:16])
        for row, step in files
    ]
    return pd.DataFrame(rows, columns=["arm", "seed", "step", "sha256"])


def _tables(part, config, folder, executor):
    """The tables of one part."""
    recipe = replace(config, lr=part.lr, optimizer=part.optimizer, weight_decay=part.weight_decay, noise=part.noise)
    spec, cells = StudySpec(part.seeds, part.steps, part.every, recipe), folder / "cells"
    differences, runs = study(part.pairs, spec, folder / "runs", executor, cache=cells)
    tables = dict(differences=differences, runs=runs.drop(columns="at"))
    return tables | dict(directions=directions(part.pairs, runs, cells, executor), bits=bits(runs))


def directions(pairs: Sequence[str], runs: pd.DataFrame, cache: str | Path = "",
               executor: Executor | None = None) -> pd.DataFrame:  # fmt: skip
    """Compute `distances.direction` of pairs.

    Args:
        pairs: keys of `arm.PAIRS`.
        runs: of `study.study`.
        cache, executor: as `sweep`.

    Returns:
        DataFrame: pair, seed, score, steps, aligned.
    """
    table = sweep(direction, dict(job=jobs(pairs, runs)), cache=cache, executor=executor)
    return table.drop(columns=["folder", "twin"])
