"""Attention kernels: `kernels.tiled(q, k, v, ...)`, or by name, `kernels.get("tiled")`.

Every kernel is called `kernel(q, k, v, *, causal=False, scale=None, mask=None) -> o` on tensors of shape
(batch, heads, sequence, head_dim). The emulated ones also take a Precision, and `tiled` a Tiling.
"""

from fa_lib.kernels.algorithm import Algorithm
from fa_lib.kernels.eager import stepwise, unfused
from fa_lib.kernels.flash import flash, refusal
from fa_lib.kernels.golden_pair import golden_pair
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.kernels.layouts import LAYOUTS
from fa_lib.kernels.presets import as_shipped, baseline, every_step
from fa_lib.kernels.reference import golden, reference
from fa_lib.kernels.registry import available, emulates, get, plain, read_as, register
from fa_lib.kernels.tiled import rescales, tiled

__all__ = [
    "LAYOUTS", "Algorithm", "KernelRef", "as_shipped", "available", "baseline", "emulates", "every_step", "flash",
    "get", "golden", "golden_pair", "plain", "read_as", "reference", "refusal", "register", "rescales", "stepwise",
    "tiled", "unfused",
]  # fmt: skip
