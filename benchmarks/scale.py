"""What the study would take at the paper's scale, from unit costs measured here: `make scale` writes docs/scale.md."""

import io
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from fa_lib import kernels
from fa_lib.execution.files import replacing
from fa_lib.execution.paths import RESULTS, ROOT
from fa_lib.training import data
from fa_lib.training.arm import ARMS, PAIRS
from fa_lib.training.config import Config
from fa_lib.training.distances import distances
from fa_lib.training.model import TextToImage
from fa_lib.training.run import Run, train
from fa_lib.training.run_folder import checkpoints, load_weights, weights
from fa_lib.training.spec import Arm, RunSpec

KINDS = ("Baseline", "Flash", "FP32")  # the first two in BF16; Baseline's kernel in the last
CONFIGS = ("small", "large", "xlarge")
PEAK = {"BF16 and FP16": 312e12, "FP32": 19.5e12}  # FLOP/s of an A100, its data sheet's; FP32 without TF32
SHARES = (0.15, 0.40)  # of the peak that a training step gets: assumed
MEMORY = 80e9  # bytes of its memory
STEPS, EVERY = 100_000, 1_000  # of a long run


@dataclass(frozen=True)
class Model:
    """What a configuration counts, the same on any machine."""

    config: Config
    parameters: int
    flops: int  # of the matrix products of a step of Baseline, forward and backward
    kept: dict  # kind -> bytes an image keeps for the backward pass

    def devices(self, kind):
        """GPUs that the batch needs, a power of two, beside FP32 weights, gradients and Adam's two moments on each."""
        fit = (MEMORY - 16 * self.parameters) / self.kept[kind]
        return next(2**i for i in range(10) if self.config.batch / 2**i <= fit)

    def hours(self, steps, kind, share):
        """Of one GPU."""
        return self.flops * steps / (PEAK[kind] * share) / 3600


def count(name):
    """A step on tensors without values."""
    config = Config.load(name)
    of = {(kind, batch): _step(config, kind, batch) for kind in KINDS for batch in (1, 2)}
    # a second image adds what is kept of an image; autocast's copies of the weights are there once
    kept = {kind: of[kind, 2][2] - of[kind, 1][2] for kind in KINDS}
    parameters, flops, _ = of["Baseline", 1]
    return Model(config, parameters, flops * config.batch, kept)


def _step(config, kind, batch):
    """Parameters, FLOPs, bytes kept for the backward pass."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        model, held = TextToImage(config, kernels.flash if kind == "Flash" else kernels.unfused, 0), {}

        def keep(x):
            held[x.untyped_storage()._cdata] = x.untyped_storage().nbytes()
            return x

        tokens = torch.zeros(batch, config.text_bytes, dtype=torch.long)
        noisy = torch.zeros(batch, 3, config.image_size, config.image_size)
        keeping = torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x)
        with FlopCounterMode(display=False) as flops, keeping, torch.autocast("cpu", torch.bfloat16, kind != "FP32"):
            loss = model(noisy, torch.zeros(batch), tokens, torch.ones_like(tokens)).float().square().mean()
            loss.backward()
        return sum(p.numel() for p in model.parameters()), flops.get_total_flops(), sum(held.values())


def megabytes(name):
    return int(re.search(name + r":\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024


def measured(function, *args):
    """What it returns, its seconds, and the megabytes it took at its peak."""
    Path("/proc/self/clear_refs").write_text("5")  # Linux forgets the peak so far
    before, start = megabytes("VmRSS"), time.perf_counter()
    result = function(*args)
    return result, time.perf_counter() - start, megabytes("VmHWM") - before


def unit_costs(folder, name="large"):
    """Seconds and memory of what a run does beside its steps, on this machine."""
    saves, save = [], Run.save

    def timed(run):
        saves.append(measured(save, run)[1:])

    with mock.patch.object(Run, "save", timed):
        train(RunSpec(Arm(kernel="flash"), 0, Config.load(name, batch=1), steps=2, every=1), folder / "run")
    files = [weights(folder / "run", step) for step in (1, 2)]
    million = sum(x.numel() for x in load_weights(files[0]).values()) / 1e6
    _, compare, compared = measured(lambda: distances(*map(load_weights, files)))
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import fa_lib.training.study"], cwd=ROOT, check=True)
    start = time.perf_counter() - start
    return dict(
        save=saves[-1][0] / million,
        save_memory=saves[-1][1] / million,
        compare=compare / million,
        compare_memory=compared / million,
        file=files[0].stat().st_size / 1e6 / million,
        start=start,
        skip=skipped(folder),
    )


def skipped(folder, images=2000, batch=20):
    """Seconds for each image that a streaming run passes over when it goes on."""
    shard, held = folder / "shard.tar", io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (128, 128, 3), dtype=np.uint8)
    Image.fromarray(noise).save(held, "png")
    with tarfile.open(shard, "w") as tar:
        for i in range(images):
            for kind, content in (("png", held.getvalue()), ("txt", b"noise")):
                entry = tarfile.TarInfo(f"{i:06d}.{kind}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    stream, seconds = data.load(shard, 64, streaming=True), []
    for start in (0, images // batch - 1):
        since = time.perf_counter()
        next(stream.batches(batch, 0, start))
        seconds.append(time.perf_counter() - since)
    return (seconds[1] - seconds[0]) / (images - batch)


STUDIED = {name: PAIRS[name] for name in (
    "rerun", "flash", "flash_emulated", "perturb", "data_order", "init", "fp16", "fp16_scaled", "bf16", "flash_fp32",
)}  # fmt: skip
TRAINED = [ARMS[name] for name in dict.fromkeys(name for pair in STUDIED.values() for name in (pair.arm, pair.twin))]


@dataclass(frozen=True)
class Plan:
    """A study of figure 8: every arm of STUDIED, so many seeds."""

    name: str
    seeds: int
    steps: int
    every: int

    def runs(self):
        return len(TRAINED) * self.seeds

    def hours(self, model, share):
        """Of GPUs, all arms together; Flash carried in BF16 counts as Baseline."""
        of = {"32-true": "FP32"}
        kinds = [of.get(arm.precision, "BF16 and FP16") for arm in TRAINED]
        return self.seeds * sum(model.hours(self.steps, kind, share) for kind in kinds)

    def files(self):
        return self.runs() * len(checkpoints(self.steps, self.every))

    def comparisons(self):
        return len(STUDIED) * self.seeds * len(checkpoints(self.steps, self.every))


PLANS = (
    Plan("large", seeds=3, steps=2_000, every=250),
    Plan("large", seeds=10, steps=100_000, every=1_000),
    Plan("xlarge", seeds=3, steps=2_000, every=250),
    Plan("xlarge", seeds=3, steps=100_000, every=1_000),
    Plan("xlarge", seeds=10, steps=100_000, every=1_000),
)


def span(low, high):
    """Two numbers of two significant digits."""
    return " to ".join(f"{float(f'{x:.2g}'):,.{0 if x >= 10 else 1}f}" for x in (low, high))


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def counted(models):
    """The table that is the same on any machine."""
    rows = []
    for name, m in models.items():
        rows.append((
            f"`{name}`", f"{m.parameters / 1e6:,.1f}", m.config.tokens, m.config.batch, f"{m.flops / 1e12:,.3g}",
            *(f"{m.kept[kind] / 1e6:,.0f}" for kind in KINDS), " / ".join(str(m.devices(kind)) for kind in KINDS),
            f"{4 * m.parameters / 1e9:.2g}", f"{12 * m.parameters / 1e9:.2g}",
        ))  # fmt: skip
    head = ["configuration", "M parameters", "tokens", "batch", "TFLOP a step"]
    head += [f"MB an image keeps, {kind}" for kind in KINDS]
    return table([*head, "GPUs of 80 GB", "weights file, GB", "`resume.ckpt`, GB"], rows)


def planned(models, cost):
    rows = []
    for plan in PLANS:
        m = models[plan.name]
        million = m.parameters / 1e6
        compare = plan.comparisons() * cost["compare"] * million / 3600
        storage = plan.files() * cost["file"] * million / 1e6
        rows.append((
            f"`{plan.name}`", plan.seeds, f"{plan.steps:,}", plan.runs(),
            span(*(plan.hours(m, share) for share in SHARES[::-1])),
            f"{plan.files():,}", f"{storage:,.2g}", f"{plan.comparisons():,}", f"{compare:,.2g}",
        ))  # fmt: skip
    head = ["configuration", "seeds", "steps", "runs", "GPU hours", "weights files", "TB", "comparisons", "CPU hours"]
    return table(head, rows)


def document(models, cost):
    """benchmarks/scale.md with its numbers."""
    m, small = models["xlarge"], models["small"]
    million, slow = m.parameters / 1e6, [arm for arm in TRAINED if arm.precision == "32-true"]
    runs = pd.read_csv(RESULTS / "08_weights_in_context.runs.csv")
    step = runs[runs.status == "done"].groupby("arm").seconds.median() / 300
    hours, slow_hours = ([m.hours(STEPS, kind, share) for share in SHARES[::-1]] for kind in PEAK)
    full = [1 / PEAK["FP32" if arm in slow else "BF16 and FP16"] for arm in TRAINED]
    code = torch.backends.cpu.get_cpu_capability()
    names = dict(
        counted=counted(models), planned=planned(models, cost),
        peak=PEAK["BF16 and FP16"] / 1e12, peak_fp32=PEAK["FP32"] / 1e12, low=SHARES[0], high=SHARES[1],
        fsdp=MEMORY / 16 / 1e9, arms=len(TRAINED), pairs=len(STUDIED), slow=len(slow),
        slow_share=len(slow) * max(full) / sum(full),
        machine=f"{platform.machine()}, {os.cpu_count()} cores, {code}, torch {torch.__version__}",
        step=step.baseline, rate=small.flops / step.baseline / 1e9, emulated=step.flash_emulated / step.baseline,
        fp32=step.fp32 / step.baseline, skip=cost["skip"] * 1e6, **{n: cost[n] for n in cost if n != "skip"},
        hours=span(*hours), hours8=span(*(h / 8 for h in hours)), devices=m.devices("Baseline"),
        devices_fp32=m.devices("FP32"),
        slow_hours=span(*slow_hours),
        lost=span(*(h * 60 * EVERY / STEPS / 8 for h in hours)), write=cost["save"] * million,
        write_share=1 / (1 + hours[0] * 3600 * EVERY / STEPS / 8 / (cost["save"] * million)),
        files=(STEPS / EVERY + 1) * cost["file"] * million / 1e3, state=12 * million / 1e3,
        resumed=8 * 12 * million / 1e3,
        images=STEPS * m.config.batch / 1e6, passed=STEPS * m.config.batch * cost["skip"] / 60,
        host=cost["save_memory"] * million / 1e3, compared=cost["compare_memory"] * million / 1e3,
        steps=STEPS, every=EVERY,
    )  # fmt: skip
    return Path(__file__).with_suffix(".md").read_text().format(**names)


def main():
    models = {name: count(name) for name in CONFIGS}
    with tempfile.TemporaryDirectory() as folder:
        cost = unit_costs(Path(folder))
    with replacing(ROOT / "docs" / "scale.md") as path:
        path.write_text(document(models, cost))
    print(counted(models), planned(models, cost), cost, sep="\n")


if __name__ == "__main__":
    main()
