"""Attention kernels: `kernels.tiled(q, k, v, ...)`, or by name, `kernels.get("tiled")`.

Every kernel is called `kernel(q, k, v, *, causal=False, scale=None, mask=None) -> o` on tensors of shape
(batch, heads, sequence, head_dim). The emulated ones also take a Precision, and `tiled` a Tiling. ON_DEMAND lists those
that are imported when they are first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from fa_lib.kernels.algorithm import Algorithm
from fa_lib.kernels.golden_pair import golden_pair
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.kernels.reference import golden, reference
from fa_lib.kernels.registry import available, emulates, get, plain, register
from fa_lib.kernels.tiled import rescales, tiled

if TYPE_CHECKING:
    from fa_lib.kernels.compiled import flash, refusal
    from fa_lib.kernels.eager import stepwise, unfused
    from fa_lib.kernels.presets import as_shipped, baseline, every_step

__all__ = [
    "Algorithm", "KernelRef", "as_shipped", "available", "baseline", "emulates", "every_step", "flash", "get",
    "golden", "golden_pair", "plain", "reference", "refusal", "register", "rescales", "stepwise", "tiled", "unfused",
]  # fmt: skip
ON_DEMAND = {  # name -> its module
    "flash": "compiled", "refusal": "compiled", "stepwise": "eager", "unfused": "eager", "as_shipped": "presets",
    "baseline": "presets", "every_step": "presets",
}  # fmt: skip


def __getattr__(name: str):
    if name not in ON_DEMAND:
        raise AttributeError(f"module 'fa_lib.kernels' has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(f"fa_lib.kernels.{ON_DEMAND[name]}"), name))
