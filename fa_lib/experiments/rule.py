"""The field's rule for any kernel: its largest error is at most twice Baseline's, three times for gradients."""

from collections.abc import Callable, Sequence

import torch

from fa_lib import kernels
from fa_lib.experiments.variant import Call, by_key, known
from fa_lib.formats import FP32, Format, round_to
from fa_lib.inputs import draw
from fa_lib.metrics import deviation, over_baseline

ALLOWED = {"o": 2, "dq": 3, "dk": 3, "dv": 3}  # times Baseline's largest error: flash-attention's own tests

BESIDE = {"as_shipped": "as shipped", "every_step": "every step"}  # kernels to hold another against: key -> label

CALLS = by_key((
    Call("97", 97, 97),
    Call("113 x 203", 113, 203),
    Call("256 x 97", 256, 97),
    Call("causal 203", 203, 203, options=dict(causal=True)),
    Call("causal 113 x 203", 113, 203, options=dict(causal=True)),
    Call("GQA 384", 384, 384, 4, 2),
    Call("causal MQA 384", 384, 384, 4, 1, options=dict(causal=True)),
    Call("window 512", 512, 512, options=dict(window=(64, 64))),
    Call("causal window 512", 512, 512, options=dict(causal=True, window=(100, 0))),
    Call("1024", 1024, 1024, 1, 1),
    Call("causal 2048", 2048, 2048, 1, 1, options=dict(causal=True)),
    Call("4096", 4096, 4096, 1, 1),
))  # fmt: skip


def yardstick(fmt: Format | str, window: tuple[int, int] | None = None) -> Callable:
    """The Baseline that errors are counted in: emulated, its sums exact beside the format. In FP32, whose sums a real
    kernel rounds too, torch's own operations (which have no window)."""
    return kernels.unfused if Format.of(fmt).precision >= FP32.precision and not window else kernels.baseline


def rule(
    shape: str,
    head_dim: int,
    distribution: str,
    fmt: Format | str,
    seed: int,
    names: Sequence[str] = ("flash", *BESIDE),
    gradients: bool = True,
    device: str = "cpu",
) -> list[dict]:
    """A cell: the largest errors of kernels in units of Baseline's own in the same format, on one draw.

    Args:
        shape: a key of CALLS. distribution, seed: of Q, K and V; dO is normal.
        names: of kernels: registered, or package.module:function.

    Returns:
        rows: kernel, tensor ("o", "dq", "dk", "dv"; without `gradients` only "o"), error, baseline, ratio
        (`metrics.over_baseline`), allowed (of ALLOWED), passed.

    Raises:
        ValueError: a shape that CALLS lacks, or no such kernel.
    """
    call, fmt = known("shape", shape, CALLS), Format.of(fmt)
    q, k, v = (round_to(x, fmt).to(device) for x in draw(distribution, seed, *call.shapes(head_dim)))
    dO = round_to(draw("normal", seed + 1, q.shape)[0], fmt).to(device)

    def results(fn, dtype=fmt.dtype, **arguments):
        x = [t.to(dtype).requires_grad_(gradients) for t in (q, k, v)]
        o = fn(*x, **arguments, **call.options)
        return [o.detach(), *(torch.autograd.grad(o, x, dO.to(dtype)) if gradients else ())]

    golden = results(kernels.golden, torch.float64, inputs=fmt)
    baseline = results(yardstick(fmt, call.options.get("window")))
    rows = []
    for name in dict.fromkeys(names):
        for tensor, x, base, exact in zip(ALLOWED, results(kernels.plain(name)), baseline, golden):
            error, own, allowed = deviation(x, exact).max, deviation(base, exact).max, ALLOWED[tensor]
            row = dict(kernel=name, tensor=tensor, error=error, baseline=own, ratio=over_baseline(error, own))
            rows.append(row | dict(allowed=allowed, passed=error <= allowed * own))
    return rows
