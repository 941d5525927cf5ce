"""What a training run is made of: its arm, and the precisions there are."""

from dataclasses import dataclass

import torch

# The dtype attention then runs in. "16-mixed-unscaled" is Fabric's 16-mixed without loss scaling.
PRECISIONS = {
    "64-true": torch.float64,
    "32-true": torch.float32,
    "bf16-mixed": torch.bfloat16,
    "16-mixed": torch.float16,
    "16-mixed-unscaled": torch.float16,
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
