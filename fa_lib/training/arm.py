"""The study's arms, and its pairs: two arms that differ in exactly one thing."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fa_lib.experiments.variant import known
from fa_lib.training.spec import Arm

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
    """Two arms that differ in one thing.

    Attributes:
        arm, twin: keys of ARMS.
        label: as figures and the ledger show it.
    """

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


def arm_named(name: str, kernel_of: Mapping[str, str] | None = None) -> Arm:
    """The Arm of a name, its kernel replaced where `kernel_of` (arm -> kernel) has one.

    Raises:
        ValueError: there is no such arm.
    """
    arm, kernel_of = known("arm", name, ARMS), kernel_of or {}
    for other in kernel_of:
        known("arm", other, ARMS)
    return replace(arm, kernel=kernel_of.get(name, arm.kernel))
