"""How far the weights of two training runs are from each other, over training.

Chosen before any run was looked at, and not changed since. (What was changed once after a first look is the training
itself, its learning rate, noise levels, batch and steps, so that 300 steps draw something.)
    primary metric: the Wasserstein distance between the values of each weight tensor, mean over tensors, divided by
        the mean absolute weight of those tensors in the twin ("relative_wasserstein");
    window of slopes: from the end of the learning rate's warm-up to the last step, a least-squares line per seed;
    "x times less": the ratio of the distances at the last step, per seed; the ratio of slopes is reported beside it.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from fa_lib.numerics.wasserstein import wasserstein
from fa_lib.training.arm import PAIRS
from fa_lib.training.run_folder import load_weights, missing_of, read_result, steps_of, weights

LOW_PRECISION = ("fp16", "fp16_scaled", "bf16")
MEASURES = {  # of a distance between two runs' weights: column -> words. The first was chosen beforehand.
    "relative_wasserstein": "Wasserstein distance per tensor",
    "wasserstein_by_size": "Wasserstein distance weighted by tensor size",
    "wasserstein_all": "Wasserstein distance of all values at once",
    "max": "largest difference of a weight",
    "mean": "mean difference of a weight",
    "relative_l2": "L2 distance",
}


@dataclass(frozen=True)
class Job:
    """Two runs to be compared.

    Attributes:
        pair: a key of PAIRS. seed: of both runs.
        folder, twin: folders of the run, and of the run that it is compared with.
    """

    pair: str
    seed: int
    folder: str
    twin: str


def compare(job: Job) -> list[dict]:
    """Compare two runs at each checkpoint that both have.

    Returns:
        list of dicts: step, and the keys of `distances`.

    Raises:
        ValueError: weights of a run that has ended are gone or damaged.
    """
    for folder in (job.folder, job.twin):
        if sentence := (path := Path(folder) / "run.json").exists() and missing_of(folder, read_result(path)):
            raise ValueError(sentence)
    rows = []
    for step in sorted(set(steps_of(job.folder)) & set(steps_of(job.twin))):
        a, b = (load_weights(weights(folder, step)) for folder in (job.folder, job.twin))
        rows.append(dict(step=step) | distances(a, b))
    return rows


def distances(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> dict[str, float]:
    """Measure how far weights a are from weights b.

    Args:
        a, b: name -> tensor; for each name both have one shape.

    Returns:
        dict. wasserstein: of each tensor's values, mean over tensors. wasserstein_by_size: the same, weighted by size.
        wasserstein_all: of all values at once. relative_wasserstein: the first, divided by the mean absolute weight of
        a tensor of b, mean over tensors. max, mean: of the absolute differences, element by element. relative_l2: of
        a - b, divided by that of b. key_bias: the share of the first that the biases of key projections make.

    Raises:
        ValueError: a and b have other names or shapes.
    """
    if {n: x.shape for n, x in a.items()} != {n: x.shape for n, x in b.items()}:
        raise ValueError("a: got other names or shapes than b; accepted are weights of one model")
    per_tensor = {n: wasserstein(a[n], b[n]) for n in a}
    sizes = np.array([x.numel() for x in a.values()])
    flat_a, flat_b = (torch.cat([w[n].reshape(-1).double() for n in a]) for w in (a, b))
    difference, wassersteins = (flat_a - flat_b).abs(), np.array(list(per_tensor.values()))
    return dict(
        wasserstein=wassersteins.mean(),
        wasserstein_by_size=(wassersteins * sizes).sum() / sizes.sum(),
        wasserstein_all=wasserstein(flat_a, flat_b),
        relative_wasserstein=wassersteins.mean() / np.mean([b[n].double().abs().mean().item() for n in b]),
        max=difference.max().item(),
        mean=difference.mean().item(),
        relative_l2=(difference.norm() / flat_b.norm()).item(),
        key_bias=sum(w for n, w in per_tensor.items() if n.endswith("to_k.bias")) / max(wassersteins.sum(), 1e-300),
    )


def direction(job: Job) -> dict | list:
    """Measure whether two runs move apart in one direction over training (arXiv 2510.04212's drift, as one number).

    With x_t the difference of the two runs' updates between two checkpoints and e_t = x_t / |x_t|,
    A = |sum e_t| / sqrt(T): 1 in the mean for T steps that have nothing to do with each other, sqrt(T) for T steps in
    one direction, however their lengths differ.

    Returns:
        dict: score (A), steps (T), aligned (A / sqrt(T)); [] for a run that left fewer than two weights files.
    """
    differences = []
    settings = read_result(Path(job.folder) / "run.json")["settings"]
    for step in steps_of(job.folder):
        if step % settings["every"] and step != settings["steps"]:  # an early one
            continue
        a, b = (load_weights(weights(folder, step)) for folder in (job.folder, job.twin))
        differences.append(torch.cat([(a[name].double() - b[name].double()).reshape(-1) for name in sorted(a)]))
    if len(differences) < 2:
        return []
    x = torch.stack(differences).diff(dim=0)  # (T, weights)
    lengths = x.norm(dim=1, keepdim=True)  # (T, 1)
    score = (x / lengths.where(lengths > 0, 1.0)).sum(0).norm().item() / len(x) ** 0.5
    return dict(score=score, steps=len(x), aligned=score / len(x) ** 0.5)


def slopes(table: pd.DataFrame, metric: str, start: int) -> pd.Series:
    """Fit a least-squares line to a metric over the steps from `start`.

    Args:
        table: of `study.study`: pair, seed, step, and the metric's column.

    Returns:
        Series, slope per step, by pair and seed.
    """
    groups = table[table.step >= start].groupby(["pair", "seed"], sort=False)
    fitted = {key: np.polyfit(g.step, g[metric], 1)[0] for key, g in groups if len(g) > 1}
    return pd.Series(fitted).rename_axis(["pair", "seed"])


def at_end(table: pd.DataFrame, metric: str) -> pd.Series:
    """Select a metric at the last step.

    Args:
        table: of `study.study`: pair, seed, step, and the metric's column.

    Returns:
        Series by pair and seed, without the runs that diverged.
    """
    return table[table.step == table.step.max()].set_index(["pair", "seed"])[metric]


def less_by_step(table: pd.DataFrame) -> pd.DataFrame:
    """Compute how many times less than low precision Flash moves the weights, at each checkpoint.

    Args:
        table: of `study.study`.

    Returns:
        DataFrame: pair (of LOW_PRECISION), seed, step, ratio.
    """
    distance = table[table.step > 0].set_index(["seed", "step", "pair"]).relative_wasserstein
    return _over_flash(distance).stack().rename("ratio").reset_index()


def _over_flash(values):
    """A column for each of LOW_PRECISION: its values over Flash's. values: a Series with a level pair."""
    wide = values.unstack("pair").reindex(columns=["flash", *LOW_PRECISION])
    return wide[[*LOW_PRECISION]].div(wide["flash"], axis=0)


def losses(runs: pd.DataFrame) -> pd.Series:
    """Divide the loss of each pair's arm by its twin's.

    Args:
        runs: of `study.study`: arm, seed, status, loss.

    Returns:
        Series by pair and seed, of the runs that did not diverge.
    """
    loss = runs[runs.status == "done"].set_index(["arm", "seed"]).loss.unstack("seed")
    pairs = {key: pair for key, pair in PAIRS.items() if {pair.arm, pair.twin} <= set(loss.index)}
    rows = {key: loss.loc[pair.arm] / loss.loc[pair.twin] for key, pair in pairs.items()}
    return pd.concat(rows, names=["pair", "seed"]).dropna()


def times_less(table: pd.DataFrame, start: int) -> pd.DataFrame:
    """Compute how many times less than low precision Flash moves the weights.

    Args:
        table: of `study.study`.
        start: the first step of the slopes.

    Returns:
        DataFrame by pair (of LOW_PRECISION) and seed, without the runs that diverged: ratio, of the primary metric at
        the last step; slopes, the ratio of slopes; and the ratio at the last step in each other one of MEASURES.
    """
    metric, *others = MEASURES
    columns = dict(ratio=at_end(table, metric), slopes=slopes(table, metric, start))
    columns |= {name: at_end(table, name) for name in others}
    ratios = {name: _over_flash(values) for name, values in columns.items()}
    rows = {pair: pd.DataFrame({name: wide[pair] for name, wide in ratios.items()}) for pair in LOW_PRECISION}
    return pd.concat(rows, names=["pair", "seed"]).dropna()  # of runs that diverged there is none


def by_measure(table: pd.DataFrame) -> pd.DataFrame:
    """Compute, in each of MEASURES at the last step, the distance of low precision over Flash's, and Flash's over that
    of a nudge of 1e-7.

    Args:
        table: of `study.study`.

    Returns:
        DataFrame indexed by measure and seed, with a column for each of LOW_PRECISION, and "flash" for Flash over the
        nudge.
    """
    rows = {}
    for measure in MEASURES:
        distance = at_end(table, measure)
        wide = distance.unstack("pair").reindex(columns=["flash", "perturb"])
        rows[measure] = _over_flash(distance).assign(flash=wide["flash"] / wide["perturb"])
    return pd.concat(rows, names=["measure", "seed"]).rename_axis(columns=None)
