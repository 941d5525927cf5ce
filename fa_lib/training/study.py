"""The study: arms that differ in exactly one thing from a twin, and how far their weights drift apart."""

import hashlib
import json
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from fa_lib.check.model import Probe
from fa_lib.execution.sweep import sweep
from fa_lib.training.arm import PRECISIONS, Arm
from fa_lib.training.distances import compare
from fa_lib.training.model import Config, TextToImage, noised, sample
from fa_lib.training.preflight import able, describe
from fa_lib.training.run import train
from fa_lib.training.run_folder import load_weights

_BASELINE, _FP32 = Arm(), Arm(precision="32-true")
ARMS = {
    "baseline": _BASELINE,
    "rerun": _BASELINE,
    "flash": replace(_BASELINE, kernel="flash"),
    "flash_emulated": replace(_BASELINE, kernel="stepwise"),  # or the exact "every_step", where its time allows
    "perturb": replace(_BASELINE, perturb=1e-7),
    "data_order": replace(_BASELINE, order=1),
    "init": replace(_BASELINE, init=1),
    "fp32": _FP32,
    "flash_fp32": replace(_FP32, kernel="flash"),
    "fp16": replace(_FP32, precision="16-mixed-unscaled"),
    "fp16_scaled": replace(_FP32, precision="16-mixed"),
}


@dataclass(frozen=True)
class Pair:
    """Two arms that differ in one thing."""

    arm: str
    twin: str
    label: str


PAIRS = {
    "rerun": Pair("rerun", "baseline", "the same run again"),
    "flash": Pair("flash", "baseline", "Flash vs Baseline"),
    "flash_emulated": Pair("flash_emulated", "baseline", "Flash carried in BF16 vs Baseline"),
    "perturb": Pair("perturb", "baseline", "initial weights moved by 1e-7"),
    "data_order": Pair("data_order", "baseline", "another order of the data"),
    "init": Pair("init", "baseline", "another initialisation"),
    "fp16": Pair("fp16", "fp32", "FP16 vs FP32, no loss scaling"),
    "fp16_scaled": Pair("fp16_scaled", "fp32", "FP16 vs FP32, scaled"),
    "bf16": Pair("baseline", "fp32", "BF16 vs FP32"),
    "flash_fp32": Pair("flash_fp32", "fp32", "Flash vs Baseline, both in FP32"),
}


def named(what, name, table):
    """The entry of a table, or an error that says what there is."""
    if name not in table:
        raise ValueError(f"{what}: got {name!r}; accepted are {', '.join(table)}")
    return table[name]


def arm_named(name, kernel_of=()):
    """The Arm of a name, its kernel replaced where `kernel_of` (arm -> kernel) has one."""
    arm, kernel_of = named("arm", name, ARMS), dict(kernel_of)
    for other in kernel_of:
        named("arm", other, ARMS)
    return replace(arm, kernel=kernel_of.get(name, arm.kernel))


def study(pairs, seeds, steps, every, *, config="small", changes=(), kernel_of=(), source="shapes", device="cpu",
          executor=None, folder=""):  # fmt: skip
    """Train every arm that some pairs need, and compare the weights.

    Args:
        pairs: names in PAIRS. seeds: how many, from 0.
        steps, every: of a run, and steps between comparisons. source: of data, as `train`.
        config, changes: as `Config.load`.
        kernel_of: arm -> name of a kernel, where it is not the arm's own.
        executor: as `sweep`.
        folder: that holds the runs; what is finished there is not trained again, and what was interrupted goes on.

    Returns:
        (differences, runs): tables. differences: pair, seed, step, the columns of `distances`. runs: arm, seed and
        the columns of `train_arm`.

    Raises:
        ValueError: before anything is trained, where an argument does not fit.
    """
    wanted = {name: named("pair", name, PAIRS) for name in pairs}
    # the slow precisions first, so that no process is left alone with one at the end
    names = {name for pair in wanted.values() for name in (pair.arm, pair.twin)}
    names = sorted(names, key=lambda name: (not ARMS[name].precision.startswith(("16", "32")), list(ARMS).index(name)))
    numbers = Config.load(config, **dict(changes))
    for name in names:
        arm = arm_named(name, kernel_of)
        describe(arm, 0, numbers, steps, every, source, device=device)
        able(arm.kernel, numbers, PRECISIONS[arm.precision], device)
    common = dict(config=numbers, kernel_of=dict(kernel_of), steps=steps, every=every, source=source, device=device)
    runs = sweep(train_arm, dict(seed=range(seeds), arm=names, folder=str(folder)) | common, executor=executor)
    table = sweep(compare, dict(job=jobs(pairs, runs)), executor=executor)
    return table.drop(columns="job"), runs.drop(columns=[*common, "folder"])


def train_arm(arm, seed, config, kernel_of, steps, every, source, device, folder):
    """A cell of the study: one run, in a folder of its own below `folder`.

    Returns:
        dict: kernel, precision, dtype (attention's), status, loss (mean of the last tenth), skipped (steps, by the
        loss scaler), zeros and zeros_qk (share of exactly zero gradients at the first step, in the transformer and in
        the Q and K projections of its self-attention), seconds, at (its folder).
    """
    what = arm_named(arm, kernel_of)
    settings = describe(what, seed, config, steps, every, source, device=device)
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    at = Path(folder) / f"{arm}-{seed}-{digest}"
    result = train(what, seed, config, steps, at, every=every, source=source, device=device)
    losses = result["losses"]
    _, zeros, zeros_qk = (result["zero_gradients"] or [[0, np.nan, np.nan]])[0]  # none where step 0 diverged
    return dict(
        kernel=what.kernel, precision=what.precision, dtype=result["dtype"], status=result["status"],
        loss=float(np.mean(losses[-max(1, steps // 10) :])), skipped=result["skipped"], zeros=zeros, zeros_qk=zeros_qk,
        seconds=result["seconds"], at=str(at),
    )  # fmt: skip


def jobs(pairs, runs):
    """(pair, seed, folder, folder of the twin) of some pairs, whose arms the table of runs must hold."""
    at = {(row.arm, row.seed): row.at for row in runs.itertuples()}
    return [
        (pair, seed, at[PAIRS[pair].arm, seed], at[PAIRS[pair].twin, seed])
        for pair in pairs
        for seed in runs.seed.unique()
    ]


def watch(seed, config, steps, at, names, device="cpu"):
    """Baseline's run, and at each attention call of the steps `at` other kernels on the same inputs: the paper's second
    technique. The training is that of the arm "baseline", bit for bit.

    Args:
        seed, steps, device: as `train`. config: a name for `Config.load`.
        at: steps, as a text, "0 1 2 5 10". names: of the other kernels, "flash stepwise".

    Returns:
        rows of `Probe`, with step, layer and kind ("self" or "cross").
    """
    model, chosen = Config.load(config), {int(step) for step in at.split()}
    probe = Probe(names.split(), queries=None, baseline=None)  # every row; what runs is Baseline itself
    if not chosen <= set(range(steps)):
        raise ValueError(f"at: got {at!r}; accepted are steps from 0 to {steps - 1}")
    for name in names.split():
        able(name, model, PRECISIONS[ARMS["baseline"].precision], device)

    def at_step(step):
        def each_call(place, q, k, v, o, **options):
            probe(q, k, v, o, dict(step=step, layer=place[0], kind=place[1]), **options)

        return each_call if step in chosen else None

    with tempfile.TemporaryDirectory() as folder:
        train(ARMS["baseline"], seed, model, steps, folder, every=steps, device=device, watch=at_step)
    if probe.skipped:
        raise RuntimeError(f"names: {'; '.join(' '.join(what) for what in probe.skipped)}")
    return probe.rows


def samples(runs, captions, config, seed=0):
    """What the trained models of some runs draw: the same captions, noise and kernel (Baseline in FP32) for all.

    Args:
        runs: rows of the study's runs.

    Returns:
        dict of arm -> uint8 (len(captions), 3, size, size).
    """
    model, out = TextToImage(config, "unfused", 0), {}
    for row in runs.itertuples():
        last = max(Path(row.at).glob("weights-*.safetensors"))
        held = load_weights(last)
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(held[name])
        out[row.arm] = sample(model, captions, seed)
    return out


def timing(config, names=("unfused", "flash"), precision="bf16-mixed", repeats=30, device="cpu"):
    """Seconds of forward + backward of the model, kernels in turn: a table of kernel, repeat, seconds."""
    dtype, rows = PRECISIONS[precision], []
    models = {name: TextToImage(config, name, 0).to(device) for name in names}
    images = torch.randint(256, (config.batch, 3, config.image_size, config.image_size), dtype=torch.uint8)
    noisy, timesteps, velocity = (x.to(device) for x in noised(images, 0, 0))
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    for repeat in range(-1, repeats):  # the first one warms up
        for name, model in models.items():
            tokens = [t.to(device) for t in model.tokens(["small red circle top left"] * config.batch)]
            wait()
            started = time.perf_counter()
            with torch.autocast(device, dtype=dtype, enabled=dtype != torch.float32):
                loss = (model(noisy, timesteps, *tokens).float() - velocity).square().mean()
            loss.backward()
            wait()
            rows.append(dict(kernel=name, repeat=repeat, seconds=time.perf_counter() - started))
            model.zero_grad()
    table = pd.DataFrame(rows)
    return table[table.repeat >= 0]
