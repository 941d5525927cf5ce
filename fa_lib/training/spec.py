"""What one training run is: its arm, sizes, length, data, and what it runs on."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from fa_lib.training.config import Config

# The dtype attention then runs in. "16-mixed-unscaled" is Fabric's 16-mixed without loss scaling.
PRECISIONS = {
    "64-true": torch.float64,
    "32-true": torch.float32,
    "bf16-mixed": torch.bfloat16,
    "16-mixed": torch.float16,
    "16-mixed-unscaled": torch.float16,
}
OPTIMIZERS: dict[str, Any] = {  # of a Config: functions of the parameters, lr, weight_decay
    "adamw": partial(torch.optim.AdamW, fused=True),
    "sgd": partial(torch.optim.SGD, momentum=0.9, fused=True),
}


@dataclass(frozen=True)
class Arm:
    """What a run does. Two arms that differ in one field differ in one thing.

    Attributes:
        kernel: of every attention call, a name for `kernels.get`.
        precision: a key of PRECISIONS.
        init, order: which initial weights, which order of the data.
        perturb: every initial weight is moved by this, relative, times a standard normal number.
    """

    kernel: str = "unfused"
    precision: str = "bf16-mixed"
    init: int = 0
    order: int = 0
    perturb: float = 0.0


@dataclass(frozen=True)
class RunSpec:
    """One training run.

    Attributes:
        arm: what it does.
        seed: of data, noise and initial weights.
        config: sizes of the model and of its training.
        steps: of the optimizer. every: steps between two weights files (and see `run_folder.checkpoints`).
        source: "shapes", or a data set as `data.load` takes it, then with streaming. Of data a run's folder knows the
            place, not the content: after a change to a folder of images, train into another folder.
        device: "cpu" or "cuda".
        devices: processes; each takes its share of the batch. Where torchrun or srun started several, their number.
        strategy: of several processes, "ddp" or, for a model that fits no device, "fsdp".
    """

    arm: Arm
    seed: int
    config: Config
    steps: int
    every: int
    source: str = "shapes"
    streaming: bool = False
    device: str = "cpu"
    devices: int = 1
    strategy: str = "ddp"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that attention runs in."""
        return PRECISIONS[self.arm.precision]
