"""Does attention's rounding make training unstable? The spike study: its arms, and a run.

docs/paper/spike_plan.md was written before the runs. A run trains the decoder at a learning rate at which Baseline in
BF16 spikes in some of its seeds. Runs of one seed have the same initial weights and the same batches in every arm.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fa_lib.numerics.wasserstein import wasserstein
from fa_lib.training.data import generator
from fa_lib.training.decoder import Decoder, Sizes, batch, text
from fa_lib.training.decoder_attention import BF16, FP32, Arithmetic

SIZES, STEPS, RATE, WARMUP, MOMENTUM = Sizes(), 240, 0.25, 20, 0.9
EVERY, BEFORE, RISE = 4, 10, 0.4  # steps between probes; probes looked back on; nats
EARLIER, WITHIN = 20, 60  # steps: a replay changes the kernel so long before the spike, and looks so far


@dataclass(frozen=True)
class Arm:
    """What a run's attention computes in; mixed: the rest of the model is in BF16 mixed precision, else in FP32."""

    how: Arithmetic
    label: str
    mixed: bool = True
    nudge: float = 0.0


FLASH = Arithmetic()
MAIN = {
    "fp32": Arm(Arithmetic(tiled=False, inputs=FP32), "all in FP32", mixed=False),
    "baseline": Arm(Arithmetic(tiled=False), "Baseline in BF16"),
    "flash": Arm(FLASH, "Flash in BF16, sums in FP32 (as shipped)"),
    "flash_bf16": Arm(replace(FLASH, steps=BF16, sum_bits=8), "Flash, every step in BF16"),
    "flash_delta": Arm(replace(FLASH, delta_bits=24), "Flash, delta from an FP32 O"),
}
DOSES = {f"sums_{bits}": Arm(replace(FLASH, sum_bits=bits), f"O and l in {bits} bits") for bits in (8, 7, 6, 5, 4, 3)}
DOSES |= {f"delta_{n}": Arm(replace(FLASH, delta_bits=n), f"delta from an O of {n} bits") for n in (7, 6, 5, 4, 3)}
ARMS = MAIN | DOSES
REPLAYS = {  # what a replay changes: the kernel, or, as controls, every weight by a relative 1e-6 or 1e-3
    "exact": Arm(Arithmetic(tiled=False, inputs=FP32), "attention in FP32"),
    "flash": MAIN["flash"],
    "flash_bf16": MAIN["flash_bf16"],
    "nudge_1e-6": Arm(MAIN["baseline"].how, "weights moved by 1e-6", nudge=1e-6),
    "nudge_1e-3": Arm(MAIN["baseline"].how, "weights moved by 1e-3, about what BF16 rounds", nudge=1e-3),
}


def train(arm: Arm, seed: int, then: Arm | None = None, at: int = STEPS,
          steps: int = STEPS, sizes: Sizes = SIZES, rate: float = RATE) -> tuple[Decoder, list[float]]:  # fmt: skip
    """Train the decoder with SGD: the rate grows over WARMUP steps and falls to 0 over the last half.

    Args:
        arm: of the run. seed: of the initial weights and of the batches.
        then: the arm from step `at` on; None: the same.
        steps, sizes, rate: of the training.

    Returns:
        (the model; the held-out loss in nats of four fixed windows after every EVERY steps). A run whose loss is not
        finite ends there.
    """
    torch.set_num_threads(1)
    model, probes = Decoder(sizes, arm.how, seed, arm.mixed), []
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=MOMENTUM, fused=True)
    source, held_out, _ = text()
    probe = batch(held_out, sizes, 98, count=4)
    for step in range(steps):
        if step == at and then is not None:
            model.how = then.how
            nudge(model, then.nudge, seed)
        optimizer.param_groups[0]["lr"] = rate * min(1, (step + 1) / WARMUP, 2 * (steps - step) / steps)
        loss = model.loss(batch(source, sizes, seed, step))
        if not math.isfinite(loss.item()):
            return model, [*probes, math.inf]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % EVERY == EVERY - 1:
            with torch.no_grad():
                probes.append(model.loss(probe).item())
    return model, probes


def nudge(model: Decoder, relative: float, seed: int) -> None:
    """Multiply every weight by 1 + relative * a standard normal number."""
    if relative:
        draw = generator(seed, 77)
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1 + relative * torch.randn(p.shape, generator=draw))


def rises(probes: Sequence[float]) -> list[float]:
    """Compute how far each probe is above the lowest of the BEFORE probes before it, in nats; NaN is infinite."""
    finite = [x if math.isfinite(x) else math.inf for x in probes]
    return [finite[i] - min(finite[max(0, i - BEFORE) : i]) for i in range(1, len(finite))]


def spike_step(probes: Sequence[float]) -> int | None:
    """Find the step of the first probe that is RISE above the lowest of those shortly before, or None."""
    found = (i for i, rise in enumerate(rises(probes), 1) if i >= BEFORE and rise > RISE)
    return next(((i + 1) * EVERY for i in found), None)


def run(arm: str, seed: int, folder: str) -> dict:
    """Train one arm of one seed, a cell of the study's sweep, and write its last weights below `folder`.

    Returns:
        dict: spike (its step, or 0), rise (the largest of `rises` behind the first BEFORE probes), held_out (loss in
        nats of 64 windows of held-out text), probes (a text of numbers).
    """
    model, probes = train(ARMS[arm], seed)
    with torch.no_grad():
        held_out = model.loss(batch(text()[1], model.sizes, 99, count=64)).item()
    torch.save(model.state_dict(), Path(folder) / f"{arm}-{seed}.pt")
    spike, rise = spike_step(probes) or 0, max(rises(probes)[BEFORE - 1 :], default=math.inf)
    return dict(spike=spike, rise=rise, held_out=held_out, probes=" ".join(f"{x:.4g}" for x in probes))


def replay(seed: int, spike: int, change: str) -> dict:
    """Train Baseline of a seed again, and change the kernel EARLIER steps before its spike: same weights, same batches,
    same momenta at that step.

    Returns:
        dict: averted (no spike within WITHIN steps after the one that Baseline had), rise (the largest until then).
    """
    _, probes = train(MAIN["baseline"], seed, REPLAYS[change], spike - EARLIER)
    probes = probes[: (spike + WITHIN) // EVERY]
    return dict(averted=spike_step(probes) is None, rise=max(rises(probes)[BEFORE - 1 :], default=math.inf))


def distance(arm: str, seed: int, folder: str) -> dict:
    """Compare a run's last weights with those of "flash" of the same seed.

    Returns:
        dict: relative_l2 (of all weights), wasserstein (between the values of each tensor, mean over tensors, over the
        mean absolute weight), largest (difference of a weight).
    """
    a, b = (torch.load(Path(folder) / f"{name}-{seed}.pt", weights_only=True) for name in (arm, "flash"))
    wide = [(a[name].double(), b[name].double()) for name in b]
    between = [wasserstein(x.flatten(), y.flatten()) for x, y in wide]
    squares = sum((x - y).square().sum() for x, y in wide) / sum(y.square().sum() for _, y in wide)
    size = sum(y.abs().mean() for _, y in wide) / len(wide)
    return dict(relative_l2=math.sqrt(squares), wasserstein=float(sum(between) / len(between) / size),
                largest=max((x - y).abs().max().item() for x, y in wide))  # fmt: skip
