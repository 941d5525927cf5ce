"""The study: arms that differ in exactly one thing from a twin, and how far their weights drift from each other."""

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from fa_lib import kernels
from fa_lib.execution.fingerprint import digest
from fa_lib.execution.lookup import lookup
from fa_lib.execution.sweep import sweep
from fa_lib.training.arm import ARMS, PAIRS, arm_named
from fa_lib.training.config import Config, RunSpec
from fa_lib.training.distances import Job, compare
from fa_lib.training.half_products import half_products
from fa_lib.training.model import TextToImage, noised
from fa_lib.training.run import check_kernel, repeatable, settings_of, train


@dataclass(frozen=True)
class StudySpec:
    """What all runs of a study have in common.

    Attributes:
        seeds: how many, from 0.
        steps, every, config, device: as of a RunSpec.
        kernel_of: arm -> name of a kernel, where it is not the arm's own.
    """

    seeds: int
    steps: int
    every: int
    config: Config
    kernel_of: Mapping[str, str] = field(default_factory=dict)
    device: str = "cpu"

    def run(self, arm: str, seed: int) -> RunSpec:
        """Build the RunSpec of one run of the study.

        Raises:
            ValueError: there is no such arm.
        """
        return RunSpec(arm_named(arm, self.kernel_of), seed, self.config, self.steps, self.every, self.device)


def study(pairs: Iterable[str], spec: StudySpec, folder: str | Path,
          executor: Executor | None = None, cache: str | Path = "") -> tuple[pd.DataFrame, pd.DataFrame]:  # fmt: skip
    """Train every arm that the pairs need, and compare the weights.

    Args:
        pairs: keys of PAIRS.
        spec: what all runs have in common.
        folder: of the runs. A finished run is not trained again, and an interrupted one goes on.
        executor: as `sweep`.
        cache: as `sweep`, of the comparisons.

    Returns:
        (differences, runs), DataFrames. differences: pair, seed, step, the keys of `distances`. runs: seed, arm and
        the keys of `train_arm`.

    Raises:
        ValueError: before anything is trained, where an argument does not fit.
    """
    chosen = {name: lookup("pair", name, PAIRS) for name in pairs}
    # the slow precisions first, so that no process is left with one at the end
    names = {name for pair in chosen.values() for name in (pair.arm, pair.twin)}
    names = sorted(names, key=lambda name: (not ARMS[name].precision.startswith(("16", "32")), list(ARMS).index(name)))
    for name in names:
        run = spec.run(name, 0)
        settings_of(run)
        with repeatable(spec.device):
            check_kernel(run.arm.kernel, kernels.get(run.arm.kernel), spec.config, run.dtype, spec.device)
    fixed = dict(spec=spec, folder=str(folder))
    runs = sweep(train_arm, dict(seed=range(spec.seeds), arm=names), fixed=fixed, executor=executor)
    runs = runs.drop(columns=["folder", *asdict(spec)])
    table = sweep(compare, dict(job=jobs(chosen, runs)), executor=executor, cache=cache)
    return table.drop(columns=["folder", "twin"]), runs


def train_arm(arm: str, seed: int, spec: StudySpec, folder: str) -> dict:
    """Train one run of the study, a cell of its sweep, in a subfolder of `folder`.

    Returns:
        dict: kernel, precision, dtype (attention's), status, loss (mean of the last tenth), skipped (steps, by the
        loss scaler), seconds, at (its folder).
    """
    run = spec.run(arm, seed)
    run_folder = Path(folder) / f"{arm}-{seed}-{digest(settings_of(run))[:12]}"
    result = train(run, run_folder)
    losses = result["losses"]
    return dict(
        kernel=run.arm.kernel, precision=run.arm.precision, dtype=result["dtype"], status=result["status"],
        loss=float(np.mean(losses[-max(1, spec.steps // 10) :])), skipped=result["skipped"],
        seconds=result["seconds"], at=str(run_folder),
    )  # fmt: skip


def jobs(pairs: Iterable[str], runs: pd.DataFrame) -> list[Job]:
    """List the comparisons of pairs (keys of PAIRS). runs: of `study`, with the arms of each pair."""
    folders = {(row.arm, row.seed): row.at for row in runs.itertuples()}
    return [
        Job(pair, int(seed), folders[PAIRS[pair].arm, seed], folders[PAIRS[pair].twin, seed])
        for pair in pairs
        for seed in runs.seed.unique()
    ]


def timing(
    config: Config, names: Sequence[str] = ("unfused", "flash"), repeats: int = 30, device: str = "cpu"
) -> pd.DataFrame:
    """Time forward + backward passes of the model in BF16, kernels in turn.

    Args:
        config: of the model. names: of the kernels, for `kernels.get`.
        repeats: passes for each kernel. device: "cpu" or "cuda".

    Returns:
        DataFrame: kernel, repeat, seconds. On a CPU they are CPU seconds of one thread, so that other programs do not
        count.
    """
    models, rows = {name: TextToImage(config, kernels.get(name), 0).to(device) for name in names}, []
    images = torch.randint(256, (config.batch, 3, config.image_size, config.image_size), dtype=torch.uint8)
    noisy, timesteps, velocity = (x.to(device) for x in noised(images, 0, 0))
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    clock = time.perf_counter if device == "cuda" else time.process_time
    with repeatable("cpu"), half_products(torch.bfloat16, device):  # one thread, as `train` does
        for repeat in range(-1, repeats):  # the first one warms up
            for name, model in models.items():
                tokens = model.tokens(["small red circle top left"] * config.batch).to(device)
                wait()
                start = clock()
                with torch.autocast(device, dtype=torch.bfloat16):
                    loss = (model(noisy, timesteps, tokens).float() - velocity).square().mean()
                loss.backward()
                wait()
                rows.append(dict(kernel=name, repeat=repeat, seconds=clock() - start))
                model.zero_grad()
    table = pd.DataFrame(rows)
    return table[table.repeat >= 0]


def faster(times: pd.DataFrame) -> pd.DataFrame:
    """Divide Flash's median seconds by Baseline's.

    Args:
        times: of `timing`, with columns size and process.

    Returns:
        DataFrame: a row for each process, a column for each size.
    """
    median = times.groupby(["process", "size", "kernel"], sort=False).seconds.median().unstack()
    return (median["flash"] / median["unfused"]).unstack()
