"""A kernel's outputs beside their own bounds, on every kind of inputs.

Where few keys have most of the weight, Baseline's own error is large, and the rule of two allows another attention."""

from collections.abc import Callable

from attention_check.isolation.calls import call_kernel
from attention_check.isolation.worker import Outcome
from attention_check.measure.capability import ALL_CAPABILITIES, Capabilities, kernel_fn
from attention_check.measure.closeness import Beside
from attention_check.measure.reference_cache import Inputs
from attention_check.measure.second_process import result
from attention_check.tolerance import Tolerance, tolerance
from fa_lib.kernels.inputs import DISTRIBUTIONS, UNEVEN
from fa_lib.kernels.kernel_ref import KernelRef


def bounds(
    kernel: KernelRef | str | Callable, judged: str, n: int, seed: int, head_dim: int, device: str = "cpu",
    able: Capabilities = ALL_CAPABILITIES,
) -> list[dict]:  # fmt: skip
    """A cell: of all DISTRIBUTIONS, the one on which an output is furthest beyond its bound (`closeness.Beside`).

    Args:
        judged: the format of inputs and output. n: keys, and queries. able: of the kernel: one that always masks,
            aligned top-left, is not asked for more keys than queries.

    Returns:
        one row, as `closeness.closeness`, with its distribution; rows and of count those of all DISTRIBUTIONS. No row
        where the kernel gave nothing that is finite.
    """
    fn = kernel_fn(kernel, able.causal)
    rows, of, worst = 0, 0, None
    for inputs in bounded_inputs(judged, n, seed, head_dim, device, able):
        distribution, (q, k, v) = inputs.distribution, inputs.tensors()
        answer = call_kernel(fn, q, k, v)
        if answer.outcome != Outcome.ANSWERED:
            continue
        found = Beside.of(answer.output, q, k, v, dict(causal=able.causal), result(tolerance_of, inputs))
        if not found.finite:
            continue
        rows, of, times = rows + int(found.over.sum()), of + found.over.numel(), found.times.max().item()
        if worst is None or times > worst[0]:
            worst = times, distribution, found
    if worst is None:
        return []
    times, distribution, found = worst
    return [dict(distribution=distribution, times=times, rows=rows, of=of) | found.cause()]


def bounded_inputs(judged: str, n: int, seed: int, head_dim: int, device: str, able: Capabilities) -> list[Inputs]:
    """The Inputs of `bounds`, in its order."""
    return [
        Inputs(judged, distribution, n, seed, head_dim=head_dim, causal=able.causal, device=device)
        for distribution in DISTRIBUTIONS if distribution != UNEVEN or not (able.causal and able.top_left)
    ]  # fmt: skip


def tolerance_of(inputs: Inputs) -> Tolerance:
    """The tolerance of a kernel that carries FP32, on some Inputs."""
    return tolerance(*inputs.tensors(), precision=inputs.fmt, causal=inputs.causal)
