"""A kernel f(q, k, v, causal=..., scale=...) examined from outside: every table of every check.

It is called, never read; whatever it does becomes a row."""

from collections.abc import Callable
from dataclasses import replace

from attention_check.checks import bounds, carry, errors, relations, repeats, rounding_mode, shapes
from attention_check.measure.checked_kernel import CheckedKernel
from attention_check.measure.measurements import Measurements
from attention_check.measure.plan import QUICK, CheckPlan
from attention_check.measure.way import way_of
from fa_lib.kernels.kernel_ref import KernelRef

MEASURED = {  # table of Measurements -> what measures it, in their order
    "lengths": errors.over_lengths, "sums": carry.measured, "shapes": shapes.measured, "inputs": errors.on_trouble,
    "bounds": bounds.measured, "repeats": repeats.measured, "relations": relations.measured,
    "rounding": rounding_mode.measured,
}  # fmt: skip


def examine(kernel: KernelRef | str | Callable, depth: CheckPlan = QUICK, device: str = "cpu") -> Measurements:
    """Measure all that `judge_kernel` needs.

    Args:
        kernel: a KernelRef, the text of one, or a function.

    Returns:
        What was measured in BF16 and FP16, else in FP32; where the kernel has none of them, all but `asked` is empty.

    Raises:
        ValueError: there is no such kernel. An error of the kernel's is a row; any other error is ours, and is raised.
    """
    kernel = kernel if callable(kernel) else KernelRef.of(kernel)
    way = way_of(kernel, device, depth.asked_queries, depth.asked_head_dims)
    checked = CheckedKernel.of(way, depth, device)
    found = Measurements(way.conventions, way.asked, arithmetic=depth.arithmetic)
    if not checked.judged:
        return found
    for name, measured in MEASURED.items():
        found = replace(found, **{name: measured(checked, found)})
    return found
