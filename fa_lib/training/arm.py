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


def small_tiles(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, mask: Tensor | None = None) -> Tensor:
    """Compute attention by `stepwise` in tiles of 8 keys. 256 tokens then make 32 tiles, which round as often as a
    sequence of 2,048 does in tiles of 64.

    Args:
        q: (batch, heads, n_q, head_dim).
        k, v: (batch, heads, n_kv, head_dim).
        scale, mask: as of `stepwise`.

    Returns:
        (batch, heads, n_q, head_dim), in q's dtype.
    """
    return stepwise(q, k, v, scale=scale, mask=mask, block_kv=8)


def reversed_keys(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, mask: Tensor | None = None) -> Tensor:
    """Compute Baseline's attention with the keys in reverse order: the same steps, as exact, but each sum rounds
    otherwise.

    Args:
        q: (batch, heads, n_q, head_dim).
        k, v: (batch, heads, n_kv, head_dim).
        scale, mask: as of `unfused`.

    Returns:
        (batch, heads, n_q, head_dim), in q's dtype.
    """
    return _in_order(torch.arange(k.shape[-2] - 1, -1, -1), q, k, v, scale, mask)


def shuffled_keys(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, mask: Tensor | None = None) -> Tensor:
    """Compute the same with the keys in a random order, one for each number of keys; as `reversed_keys`."""
    return _in_order(_shuffled(k.shape[-2], 0), q, k, v, scale, mask)


def shuffled_again(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, mask: Tensor | None = None
) -> Tensor:
    """Compute the same in a second random order; as `reversed_keys`."""
    return _in_order(_shuffled(k.shape[-2], 1), q, k, v, scale, mask)


def _in_order(order, q, k, v, scale, mask):
    """Baseline's attention with the keys in an order: int64 (n_kv,)."""
    order = order.to(k.device)
    mask = None if mask is None else mask.expand(*mask.shape[:-1], len(order)).index_select(-1, order)
    return unfused(q, k.index_select(-2, order), v.index_select(-2, order), scale=scale, mask=mask)


@cache
def _shuffled(count, seed):
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


_BASELINE, _FP32 = Arm(), Arm(precision="32-true")
ARMS = {
    "baseline": _BASELINE,
    "rerun": _BASELINE,
    "flash": replace(_BASELINE, kernel="flash"),
    "flash_emulated": replace(_BASELINE, kernel="stepwise"),  # or the exact "every_step", where its time allows
    "flash_small_tiles": replace(_BASELINE, kernel="fa_lib.training.arm:small_tiles"),
    "reversed_keys": replace(_BASELINE, kernel="fa_lib.training.arm:reversed_keys"),
    "shuffled_keys": replace(_BASELINE, kernel="fa_lib.training.arm:shuffled_keys"),
    "shuffled_again": replace(_BASELINE, kernel="fa_lib.training.arm:shuffled_again"),
    "perturb": replace(_BASELINE, perturb=1e-7),
    "data_order": replace(_BASELINE, order=1),
    "init": replace(_BASELINE, init=1),
    "fp32": _FP32,
    "flash_fp32": replace(_FP32, kernel="flash"),
    "reversed_keys_fp32": replace(_FP32, kernel="fa_lib.training.arm:reversed_keys"),
    "fp16": replace(_FP32, precision="16-mixed-unscaled"),
    "fp16_scaled": replace(_FP32, precision="16-mixed"),
    "perturb_fp32": replace(_FP32, perturb=1e-7),
    "perturb_fp16": Arm(precision="16-mixed", perturb=1e-7),
    **{f"perturb_1e{power}": replace(_BASELINE, perturb=10.0**power) for power in NUDGES},
    **{f"perturb_fp32_1e{power}": replace(_FP32, perturb=10.0**power) for power in NUDGES_FP32},
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
    "flash_small_tiles": Pair("flash_small_tiles", "baseline", "Flash carried in BF16, 32 tiles, vs Baseline"),
    "reversed_keys": Pair("reversed_keys", "baseline", "Baseline, keys in reverse order"),
    "shuffled_keys": Pair("shuffled_keys", "baseline", "Baseline, keys in a random order"),
    "shuffled_again": Pair("shuffled_again", "baseline", "Baseline, keys in a second random order"),
    "perturb": Pair("perturb", "baseline", "initial weights moved by 1e-7"),
    "data_order": Pair("data_order", "baseline", "another order of the data"),
    "init": Pair("init", "baseline", "another initialisation"),
    "fp16": Pair("fp16", "fp32", "FP16 vs FP32, no loss scaling"),
    "fp16_scaled": Pair("fp16_scaled", "fp32", "FP16 vs FP32, scaled"),
    "bf16": Pair("baseline", "fp32", "BF16 vs FP32"),
    "flash_fp32": Pair("flash_fp32", "fp32", "Flash vs Baseline, both in FP32"),
    "reversed_keys_fp32": Pair("reversed_keys_fp32", "fp32", "Baseline, keys in reverse order, in FP32"),
    "perturb_fp32": Pair("perturb_fp32", "fp32", "initial weights moved by 1e-7, in FP32"),
    "perturb_fp16": Pair("perturb_fp16", "fp16_scaled", "initial weights moved by 1e-7, in FP16, scaled"),
    **{key: Pair(key, "baseline", f"initial weights moved by 1e{power}")
       for power in NUDGES for key in [f"perturb_1e{power}"]},
    **{key: Pair(key, "fp32", f"initial weights moved by 1e{power}, in FP32")
       for power in NUDGES_FP32 for key in [f"perturb_fp32_1e{power}"]},
}  # fmt: skip


def arm_named(name: str, kernel_of: Mapping[str, str] | None = None) -> Arm:
    """Return the Arm of a name, with another kernel where `kernel_of` (arm -> kernel) has one.

    Raises:
        ValueError: there is no such arm.
    """
    arm, kernel_of = lookup("arm", name, ARMS), kernel_of or {}
    for other in kernel_of:
        lookup("arm", other, ARMS)
    return replace(arm, kernel=kernel_of.get(name, arm.kernel))
