"""The field's rule for any kernel: its largest error is at most twice Baseline's."""

import torch

from fa_lib import kernels
from fa_lib.experiments.variant import Call, by_key, known
from fa_lib.formats import FP32, Format, round_to
from fa_lib.inputs import draw
from fa_lib.metrics import deviation, over_baseline

CALLS = by_key([
    Call("97", 97, 97),
    Call("113 x 203", 113, 203),
    Call("256 x 97", 256, 97),
    Call("causal 203", 203, 203, options=dict(causal=True)),
    Call("causal 113 x 203", 113, 203, options=dict(causal=True)),
    Call("GQA 384", 384, 384, heads=4),
    Call("causal MQA 384", 384, 384, heads=4, kv_heads=1, options=dict(causal=True)),
    Call("window 512", 512, 512, options=dict(window=(64, 64))),
    Call("causal window 512", 512, 512, options=dict(causal=True, window=(100, 0))),
    Call("1024", 1024, 1024, heads=1, kv_heads=1),
    Call("causal 2048", 2048, 2048, heads=1, kv_heads=1, options=dict(causal=True)),
    Call("4096", 4096, 4096, heads=1, kv_heads=1),
])  # fmt: skip
ALLOWED = {"o": 2, "dq": 3, "dk": 3, "dv": 3}  # times Baseline's largest error: flash-attention's own tests


def yardstick(fmt, window=None):
    """The Baseline that errors are counted in: emulated, its sums exact beside the format. In FP32, whose sums a real
    kernel rounds too, torch's own operations (which have no window)."""
    return kernels.unfused if Format.of(fmt).precision >= FP32.precision and not window else kernels.baseline


def rule(shape, head_dim, distribution, fmt, seed, kernel="flash", gradients=True, device="cpu", beside=True):
    """The largest errors of a kernel, and of two emulated ones, in units of Baseline's own in the same format.

    flash-attention's tests ask for at most 2 for the output and 3 for the gradients.

    Args:
        shape: a key of CALLS. distribution, seed: of Q, K and V; dO is normal.
        kernel: a registered kernel, package.module:function, or a function.
        beside: whether the two emulated kernels stand beside it.

    Returns:
        rows: kernel (that one, "as shipped" and "every step": `kernels.as_shipped` and `kernels.every_step`), tensor
        ("o", "dq", "dk", "dv"), error, baseline, ratio, allowed, passed.
    """
    call, fmt = known("shape", shape, CALLS), Format.of(fmt)
    drawn, options = draw(distribution, seed, *call.shapes(head_dim)), call.options
    q, k, v = (round_to(x, fmt).to(device) for x in drawn)
    dO = round_to(draw("normal", seed + 1, q.shape)[0], fmt).to(device)

    def results(fn, dtype=fmt.dtype, **arguments):
        x = [t.to(dtype).requires_grad_(gradients) for t in (q, k, v)]
        o = fn(*x, **arguments, **options)
        return [o.detach(), *(torch.autograd.grad(o, x, dO.to(dtype)) if gradients else ())]

    golden = results(kernels.golden, torch.float64, inputs=fmt)
    baseline = results(yardstick(fmt, options.get("window")))
    found = {
        kernel: results(kernels.plain(kernel)),
    }
    if beside:
        found |= {"as shipped": results(kernels.as_shipped), "every step": results(kernels.every_step)}
    rows = []
    for name, tensors in found.items():
        for tensor, x, base, exact in zip(("o", "dq", "dk", "dv"), tensors, baseline, golden):
            error, own = deviation(x, exact).max, deviation(base, exact).max
            allowed, ratio = ALLOWED[tensor], over_baseline(error, own)
            row = dict(kernel=name, tensor=tensor, error=error, baseline=own, ratio=ratio, allowed=allowed)
            rows.append(row | {"passed": ratio <= allowed})
    return rows
