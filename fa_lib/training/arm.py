"""The study's arms, and its pairs: two arms that differ in exactly one thing."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from fa_lib.execution.lookup import lookup
from fa_lib.kernels.eager import stepwise, unfused
from fa_lib.training.config import Arm

NUDGES, NUDGES_FP32 = (-8, -6, -5, -4, -3), (-8, -6, -4)  # powers of 10, beside the 1e-7 of "perturb"
# Weights are FP32: of a nudge of 1e-8, less than their rounding, 1.2e-9 is left, in the few weights that it moves.


def small_tiles(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute attention by `stepwise` in tiles of 8 keys. 256 tokens then make 32 tiles, which round as often as a
    sequence of 2,048 does in tiles of 64.

    Args:
        q: (batch, heads, n_q, head_dim).
        k, v: (batch, heads, n_kv, head_dim).

    Returns:
        (batch, heads, n_q, head_dim), in q's dtype.
    """
    return stepwise(q, k, v, block_kv=8)


def reversed_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute Baseline's attention with the keys in reverse order: the same steps, as exact, but each sum rounds
    otherwise. Shapes: as of `small_tiles`."""
    return _in_order(torch.arange(k.shape[-2] - 1, -1, -1), q, k, v)


def shuffled_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute the same with the keys in a random order, one for each number of keys; as `reversed_keys`."""
    return _in_order(_shuffled(k.shape[-2], 0), q, k, v)


def shuffled_again(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute the same in a second random order; as `reversed_keys`."""
    return _in_order(_shuffled(k.shape[-2], 1), q, k, v)


def _in_order(order, q, k, v):
    """Baseline's attention with the keys in an order: int64 (n_kv,)."""
    order = order.to(k.device)
    return unfused(q, k.index_select(-2, order), v.index_select(-2, order))


@cache
def _shuffled(count, seed):
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


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


ARMS, PAIRS = {"baseline": Arm(), "fp32": Arm(precision="32-true")}, {}
for _key, _twin, _change, _label in (
    ("rerun", "baseline", {}, "the same run again"),
    ("flash", "baseline", dict(kernel="flash"), "Flash vs Baseline"),
    # stepwise, or the exact "every_step", where its time allows
    ("flash_emulated", "baseline", dict(kernel="stepwise"), "Flash carried in BF16 vs Baseline"),
    ("flash_small_tiles", "baseline", dict(kernel=f"{__name__}:small_tiles"),
     "Flash carried in BF16, 32 tiles, vs Baseline"),
    ("reversed_keys", "baseline", dict(kernel=f"{__name__}:reversed_keys"), "Baseline, keys in reverse order"),
    ("shuffled_keys", "baseline", dict(kernel=f"{__name__}:shuffled_keys"), "Baseline, keys in a random order"),
    ("shuffled_again", "baseline", dict(kernel=f"{__name__}:shuffled_again"),
     "Baseline, keys in a second random order"),
    ("perturb", "baseline", dict(perturb=1e-7), "initial weights moved by 1e-7"),
    ("data_order", "baseline", dict(order=1), "another order of the data"),
    ("init", "baseline", dict(init=1), "another initialisation"),
    ("fp16", "fp32", dict(precision="16-mixed-unscaled"), "FP16 vs FP32, no loss scaling"),
    ("fp16_scaled", "fp32", dict(precision="16-mixed"), "FP16 vs FP32, scaled"),
    ("bf16", "fp32", None, "BF16 vs FP32"),
    ("flash_fp32", "fp32", dict(kernel="flash"), "Flash vs Baseline, both in FP32"),
    ("reversed_keys_fp32", "fp32", dict(kernel=f"{__name__}:reversed_keys"),
     "Baseline, keys in reverse order, in FP32"),
    ("perturb_fp32", "fp32", dict(perturb=1e-7), "initial weights moved by 1e-7, in FP32"),
    ("perturb_fp16", "fp16_scaled", dict(perturb=1e-7), "initial weights moved by 1e-7, in FP16, scaled"),
    *((f"perturb_1e{power}", "baseline", dict(perturb=10.0**power), f"initial weights moved by 1e{power}")
      for power in NUDGES),
    *((f"perturb_fp32_1e{power}", "fp32", dict(perturb=10.0**power), f"initial weights moved by 1e{power}, in FP32")
      for power in NUDGES_FP32),
):  # fmt: skip
    if _change is not None:  # the arm of the pair bf16 is Baseline
        ARMS[_key] = replace(ARMS[_twin], **_change)
    PAIRS[_key] = Pair("baseline" if _change is None else _key, _twin, _label)


def arm_named(name: str, kernel_of: Mapping[str, str] | None = None) -> Arm:
    """Return the Arm of a name, with another kernel where `kernel_of` (arm -> kernel) has one.

    Raises:
        ValueError: there is no such arm.
    """
    arm, kernel_of = lookup("arm", name, ARMS), kernel_of or {}
    for other in kernel_of:
        lookup("arm", other, ARMS)
    return replace(arm, kernel=kernel_of.get(name, arm.kernel))
