"""The record of the spike study: which runs are there, which are made, and what they say together."""

import math
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from fa_lib.execution.fingerprint import hardware, of_function
from fa_lib.execution.paths import RECORDED
from fa_lib.execution.results import save
from fa_lib.execution.sweep import sweep
from fa_lib.training import spikes
from fa_lib.training.decoder import text

NAME = "stability"  # of its tables
FIRST, SEEDS, ROUND = 100, 100, 10  # the first seed, how many, and how many until the tables are written again
REPLAYED = ["seed", "spike", "change", "averted", "rise"]


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
        tables = dict(runs=runs, replays=pd.concat(again) if again else pd.DataFrame(columns=REPLAYED))
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


def rates(table: pd.DataFrame, column: str = "arm") -> pd.DataFrame:
    """Count spikes, or what was averted, with Wilson's 95 % intervals.

    Args:
        table: runs (a spike where `spike` is not 0) or replays (`averted`), of `recorded`.
        column: of the groups: "arm" of runs, "change" of replays.

    Returns:
        DataFrame: column, count, of, rate, low, high; in the table's order.
    """
    happened = table.spike.gt(0) if column == "arm" else table.averted.astype(bool)
    rows = []
    for key, group in happened.groupby(table[column], sort=False):
        ends = stats.binomtest(int(group.sum()), len(group)).proportion_ci(method="wilson")
        rows.append({column: key, "count": group.sum(), "of": len(group), "rate": group.mean()}
                    | dict(low=ends.low, high=ends.high))  # fmt: skip
    return pd.DataFrame(rows)


def paired(runs: pd.DataFrame, twin: str = "flash") -> pd.DataFrame:
    """Compare the plan's arms with `twin`, seed by seed.

    Returns:
        DataFrame: arm; only, twin_only (seeds in which one of the two spikes); of (seeds); difference, low, high (of
        the two spike rates, with Wald's 95 % interval for pairs; an estimate, the plan has no test of it); spikes_p
        (McNemar's exact test); rise (median of the differences of the largest rises, in nats); rises_p (Wilcoxon's
        signed-rank test); both p corrected by Holm over the arms, and NaN until all SEEDS are recorded, as the plan has
        it.
    """
    main = runs[runs.arm.isin(spikes.MAIN)]
    by_arm = {name: main.pivot(index="seed", columns="arm", values=name) for name in ("spike", "rise")}
    complete, rows = len(by_arm["rise"].dropna()) >= SEEDS, []
    for arm in (name for name in spikes.MAIN if name != twin):
        one, other = (by_arm["spike"][name].gt(0) for name in (arm, twin))
        only, twin_only = int((one & ~other).sum()), int((other & ~one).sum())
        change = (by_arm["rise"][arm] - by_arm["rise"][twin]).dropna()
        difference, share = (only - twin_only) / len(change), (only + twin_only) / len(change)
        half = 1.96 * math.sqrt((share - difference**2) / len(change))
        p = [stats.binomtest(only, only + twin_only).pvalue if only + twin_only else 1.0, stats.wilcoxon(change)[1]]
        rows.append(dict(arm=arm, only=only, twin_only=twin_only, of=len(change), difference=difference,
                         low=difference - half, high=difference + half, spikes_p=p[0], rise=change.median(),
                         rises_p=p[1]))  # fmt: skip
    table = pd.DataFrame(rows)
    for name in ("spikes_p", "rises_p"):
        table[name] = holm(table[name]) if complete else np.nan
    return table


def holm(p: pd.Series) -> pd.Series:
    """Correct p-values for their number, by Holm's method."""
    ordered = p.sort_values()
    return (ordered * np.arange(len(p), 0, -1)).cummax().clip(upper=1).reindex(p.index)


def responses(runs: pd.DataFrame) -> pd.DataFrame:
    """Select the doses: how a run with fewer bits differs from `flash` of the same seed.

    Returns:
        DataFrame: the columns of runs; kind ("sums" or "delta"), bits, excess (held-out loss in nats over that of
        `flash`). `flash` itself is delta's 8 bits.
    """
    twin = runs[runs.arm == "flash"].set_index("seed").held_out
    doses = runs[runs.arm.str.fullmatch(r"(sums|delta)_\d+") | ((runs.arm == "flash") & runs.seed.lt(FIRST + ROUND))]
    parts = doses.arm.replace("flash", "delta_8").str.split("_")
    excess = doses.held_out - doses.seed.map(twin)
    doses = doses.assign(kind=parts.str[0], bits=parts.str[1].astype(int), excess=excess)
    return doses.sort_values(["kind", "bits", "seed"])
