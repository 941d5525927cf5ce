"""The record of the spike study: which runs are there, which are made, and what they say together."""

from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from fa_lib.execution.fingerprint import hardware, of_function
from fa_lib.execution.paths import RECORDED
from fa_lib.execution.results import save
from fa_lib.execution.sweep import sweep
from fa_lib.training import spikes
from fa_lib.training.decoder import text

NAME = "stability"  # of its tables
FIRST, SEEDS, ROUND = 100, 100, 10  # the first seed, how many, and how many until the tables are written again


def cells(seeds: int) -> Iterator[list[tuple[str, int]]]:
    """Yield the runs of so many seeds, (arm, seed), in rounds; the first round has the doses, too."""
    last = FIRST + seeds
    for first in range(FIRST, last, ROUND):
        arms = spikes.ARMS if first == FIRST else spikes.MAIN
        yield [(arm, seed) for seed in range(first, min(first + ROUND, last)) for arm in arms]


def record(folder: Path, seeds: int = SEEDS, executor: Executor | None = None, out: Path = RECORDED / "cpu") -> None:
    """Make the runs that are not recorded yet, and write the tables after each round of ten seeds.

    Args:
        folder: of cached cells and weights; an interrupted round goes on from it.
        seeds: how many, from FIRST. executor: as `sweep`.
        out: the folder whose data/results/stability*.csv are written.
    """
    before, made_by = recorded(out), dict(code=of_function(spikes.run)[:12], processor=hardware()[1], text=text()[2])
    weights = folder / "weights"
    weights.mkdir(parents=True, exist_ok=True)
    here = dict(folder=str(weights))
    for round_ in cells(seeds):
        done = set() if not before else set(zip(before["runs"].arm, before["runs"].seed))
        if not (todo := [cell for cell in round_ if cell not in done]):
            continue
        arms = list(dict.fromkeys(arm for arm, _ in todo))
        grid = dict(seed=sorted({seed for _, seed in todo}), arm=arms)
        runs = sweep(spikes.run, grid, fixed=here, cache=folder / "cells", executor=executor)
        apart = sweep(spikes.distance, grid, fixed=here, executor=executor)
        runs = runs.merge(apart.drop(columns="folder"), on=["arm", "seed"]).drop(columns="folder")
        runs = runs.assign(**made_by)
        spiked = runs[(runs.arm == "baseline") & (runs.spike > 0)]
        again = [
            sweep(spikes.replay, dict(seed=[row.seed], spike=[row.spike], change=list(spikes.REPLAYS)),
                  cache=folder / "cells", executor=executor)
            for row in spiked.itertuples()
        ]  # fmt: skip
        tables = dict(runs=runs, replays=pd.concat(again) if again else pd.DataFrame())
        for name, old in before.items():
            tables[name] = pd.concat([old, tables[name]], ignore_index=True)
        parameters = dict(steps=spikes.STEPS, rate=spikes.RATE, warmup=spikes.WARMUP, momentum=spikes.MOMENTUM)
        parameters |= asdict(spikes.SIZES)
        save(out, NAME, parameters, tables["runs"], more=dict(replays=tables["replays"]), pool=executor)
        before = recorded(out)


def recorded(out: Path = RECORDED / "cpu") -> dict[str, pd.DataFrame]:
    """Read the recorded tables; empty where nothing was recorded.

    Returns:
        dict of DataFrames. runs: seed, arm, the keys of `spikes.run` and of `spikes.distance`, and by what they were
        made: code, processor, text. replays: seed, spike, change and the keys of `spikes.replay`.
    """
    folder = out / "data" / "results"
    if not (folder / f"{NAME}.csv").exists():
        return {}
    return dict(runs=pd.read_csv(folder / f"{NAME}.csv"), replays=pd.read_csv(folder / f"{NAME}.replays.csv"))
