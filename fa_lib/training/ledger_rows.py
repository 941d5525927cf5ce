"""What the tables of trainings say to the statements of the ledger: rows of `claims.claim`, one function a topic."""

from collections.abc import Mapping

import pandas as pd

from fa_lib.execution.claims import claim
from fa_lib.training.arm import PAIRS
from fa_lib.training.distances import MEASURES, at_end, slopes
from fa_lib.training.growth import late
from fa_lib.training.spikes import MAIN

Rows = list[dict[str, str]]


def of_divergence(table: pd.DataFrame, predicted: pd.DataFrame, config: str) -> Rows:
    """Of figure 7: whether distances grow, and whether a pair's first step predicts its last.

    Args:
        table: of `study`. predicted: of `growth.predicted`. config: of the model, in words.
    """
    final = table.step.max()
    last = predicted[predicted.step == final].set_index(["pair", "seed"])
    rows = [
        claim(f"fig7-{metric}-grows", f"{config}, {final} steps, BF16", late(table, metric)["flash"])
        for metric in ("wasserstein", "max")
    ]
    for pair, values in (last.predicted / last.measured).groupby("pair", sort=False):
        rows.append(claim("fig7-predicted", f"{config}, {final} steps, {PAIRS[pair].label}", values))
    return rows


OTHER_RECIPES = {"lower_rate": "a quarter of the learning rate", "first_recipe": "the first recipe"}  # part -> words


def of_context(table: pd.DataFrame, recipes: Mapping[str, pd.DataFrame], config: str, warmup: int) -> Rows:
    """Of figure 8: Flash beside another initialisation, low precision and a nudge.

    Args:
        table: of `study`. recipes: of training, in words -> `distances.times_less` of it; "" is the table's own.
        config: of the model, in words. warmup: its steps.
    """
    final = table.step.max()
    where, rows = f"{config}, {final} steps", []
    for metric in ("relative_wasserstein", "wasserstein_all", "max", "relative_l2"):
        slope = slopes(table, metric, warmup)
        excess = (slope["flash"] - slope["init"]) / slope["init"].abs()
        id = "fig8-slope-init" if metric == "relative_wasserstein" else "fig8-slope-others"  # the one chosen before
        rows.append(claim(id, f"{where}, {MEASURES[metric]}", excess))
    for id, column in (("fig8-low-precision", "ratio"), ("fig8-low-slopes", "slopes")):
        for recipe, less in recipes.items():
            setting = f"{where}, {recipe}" if recipe else where
            for pair, values in less[column].groupby("pair", sort=False):
                rows.append(claim(id, f"{setting}, {PAIRS[pair].label}", values))
    primary, *others = MEASURES
    for measure in others:
        for pair, values in recipes[""][measure].groupby("pair", sort=False):
            rows.append(claim("fig8-low-precision", f"{where}, {MEASURES[measure]}, {PAIRS[pair].label}", values))
    for measure in (primary, *others):
        reach = at_end(table, measure)
        setting = where if measure == primary else f"{where}, {MEASURES[measure]}"
        rows.append(claim("fig8-nudge", setting, (reach["perturb"] / reach["flash"]).dropna()))
    return rows


def of_losses(ratios: pd.Series, where: str) -> Rows:
    """Of `distances.losses`: Flash's loss over Baseline's, beside that of other pairs. where: config and steps."""
    pairs = ("flash", "flash_small_tiles", "perturb", "init")
    return [claim("fig8-loss", f"{where}, {PAIRS[pair].label}", ratios[pair]) for pair in pairs]


def of_speed(here: pd.Series, setting: str, on_gpus: Mapping[str, Mapping[str, pd.Series]]) -> Rows:
    """Of times of forward and backward, Flash over Baseline.

    Args:
        here: measured by the notebook. setting: in words.
        on_gpus: device -> size -> recorded ratios, as of `study.faster`.
    """
    rows = [claim("fig8-faster", setting, here)]
    for gpu, by_size in on_gpus.items():
        for size, ratios in by_size.items():
            where = f"{size}, torch's flash on {gpu}, BF16, {len(ratios)} processes"
            rows.append(claim("fig8-faster-gpu", where, ratios))
    return rows


def of_spikes(runs: pd.DataFrame) -> Rows:
    """Of figure 20: which arms spike more often than Flash. runs: of `spike_record.recorded`."""
    spiked = runs[runs.arm.isin(MAIN)].pivot(index="seed", columns="arm", values="spike").gt(0).astype(int)
    return [claim("stability-spikes", MAIN[arm].label, spiked[arm] - spiked.flash) for arm in MAIN if arm != "flash"]
