"""A kernel f(q, k, v, causal=..., scale=...) examined from outside: every table of every check."""

from collections.abc import Callable
from dataclasses import replace

from attention_check.measure.checked_kernel import CheckedKernel
from attention_check.measure.measurements import Measurements
from attention_check.measure.plan import QUICK, CheckPlan
from attention_check.measure.reference_worker import prefetch
from attention_check.measure.tables import MEASURED, reference_tasks
from attention_check.measure.way import way_of
from fa_lib.kernels.kernel_ref import KernelRef


def examine(
    kernel: KernelRef | str | Callable, depth: CheckPlan = QUICK, device: str = "cpu", cache: str = "",
) -> Measurements:  # fmt: skip
    """Measure all that `judge_kernel` needs.

    Args:
        kernel: a KernelRef, the text of one, or a function.
        cache: as `sweep`.

    Returns:
        What was measured in BF16 and FP16, else in FP32; where the kernel has none of them, all but `asked` is empty.
        Splits are tried where an error breaks the rule and no sum is carried in low precision.

    Raises:
        ValueError: there is no such kernel. An error of the kernel's is a row; any other error is ours, and is raised.
    """
    kernel = kernel if callable(kernel) else KernelRef.of(kernel)
    likely = CheckedKernel.likely(kernel, depth, device=device)
    prefetch(reference_tasks(likely))  # while it is seen what the kernel can do
    way = way_of(kernel, device, depth.asked_queries, depth.asked_head_dims)
    checked = CheckedKernel.of(way, depth, device=device, cache=cache)
    found = Measurements(way.conventions, way.asked, arithmetic=depth.arithmetic)
    if not checked.judged:
        return found
    prefetch(reference_tasks(checked))
    for name, run in MEASURED.items():
        found = replace(found, **{name: run(checked, found)})
    return found
