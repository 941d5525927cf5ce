"""The field's rule for any kernel: its largest error is at most twice Baseline's."""

import torch

from fa_lib import kernels
from fa_lib.formats import FP32, Format, round_to
from fa_lib.inputs import draw
from fa_lib.metrics import deviation

ALLOWED = {"o": 2, "dq": 3, "dk": 3, "dv": 3}  # times Baseline's largest error: flash-attention's own tests
SHAPES = {  # n_q, n_kv, heads, kv_heads, options
    "97": (97, 97, 2, 2, {}),
    "113 x 203": (113, 203, 2, 2, {}),
    "256 x 97": (256, 97, 2, 2, {}),
    "causal 203": (203, 203, 2, 2, dict(causal=True)),
    "causal 113 x 203": (113, 203, 2, 2, dict(causal=True)),
    "GQA 384": (384, 384, 4, 2, {}),
    "causal MQA 384": (384, 384, 4, 1, dict(causal=True)),
    "window 512": (512, 512, 2, 2, dict(window=(64, 64))),
    "causal window 512": (512, 512, 2, 2, dict(causal=True, window=(100, 0))),
    "1024": (1024, 1024, 1, 1, {}),
    "causal 2048": (2048, 2048, 1, 1, dict(causal=True)),
    "4096": (4096, 4096, 1, 1, {}),
}


def yardstick(fmt, window=None):
    """The Baseline that errors are counted in: emulated, its sums exact beside the format. In FP32, whose sums a real
    kernel rounds too, torch's own operations (which have no window)."""
    return kernels.unfused if Format.of(fmt).precision >= FP32.precision and not window else kernels.baseline


def rule(shape, head_dim, distribution, fmt, seed, kernel="flash", gradients=True, device="cpu", beside=True):
    """The largest errors of a kernel, and of two emulated ones, in units of Baseline's own in the same format.

    flash-attention's tests ask for at most 2 for the output and 3 for the gradients.

    Args:
        shape: a name of SHAPES. distribution, seed: of Q, K and V; dO is normal.
        kernel: a registered kernel, or package.module:function.
        beside: whether the two emulated kernels stand beside it.

    Returns:
        rows: kernel (that one, "as shipped" and "every step": `kernels.as_shipped` and `kernels.every_step`), tensor
        ("o", "dq", "dk", "dv"), error, baseline, ratio, allowed, passed.
    """
    if shape not in SHAPES:
        raise ValueError(f"shape: got {shape!r}; accepted are {', '.join(SHAPES)}")
    fmt = Format.of(fmt)
    n_q, n_kv, heads, kv_heads, options = SHAPES[shape]
    drawn = draw(distribution, seed, (1, heads, n_q, head_dim), (1, kv_heads, n_kv, head_dim))
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
            allowed = 2 if tensor == "o" else 3
            row = dict(kernel=name, tensor=tensor, error=error, baseline=own, ratio=error / own, allowed=allowed)
            rows.append(row | {"passed": error <= allowed * own})
    return rows
