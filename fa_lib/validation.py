"""The emulator held against real kernels, and the field's rule for any kernel: at most twice Baseline's error."""

from dataclasses import replace

import torch

from fa_lib import kernels
from fa_lib.formats import FP32, Format, round_to
from fa_lib.inputs import draw
from fa_lib.kernels.models import fa2_cuda, torch_cpu
from fa_lib.metrics import deviation
from fa_lib.tiling import Tiling


def agree(n, head_dim, heads, distribution, fmt, seed, device="cpu"):
    """How many outputs of torch's flash kernel and of its model in `tiled` are the same bits.

    Returns:
        rows, one per modelling choice ("model" is all of them): choice, identical (share of equal outputs), max_ulp
        (distance, in ulp of the format at the golden value), rmse and rmse_real (to the golden value).
    """
    fmt = Format.of(fmt)
    q, k, v = (round_to(x, fmt).to(device, fmt.dtype) for x in draw(distribution, seed, (1, heads, n, head_dim)))
    real = kernels.flash(q, k, v, backend="torch")
    golden = kernels.golden(q, k, v, inputs=fmt)
    model = torch_cpu(fmt, n) if device == "cpu" else fa2_cuda(fmt, head_dim)
    p = model["precision"]
    choices = {
        "model": model,
        "exponential exact": model | dict(exp=torch.exp),
        "P not rounded": model | dict(precision=replace(p, probs=p.accumulator)),
        "row sums of rounded P": model | dict(exp=lambda x: fmt(model["exp"](x))),
        "tile of 64 keys": model | dict(tiling=Tiling(64, 64)),
    }
    rows = []
    for choice, call in choices.items():
        o = kernels.tiled(q, k, v, **call)
        distance = (o.double() - real.double()).abs() / fmt.ulp(golden)
        rows.append({
            "choice": choice,
            "identical": (o == real).double().mean().item(),
            "max_ulp": distance.max().item(),
            "max_difference": (o.double() - real.double()).abs().max().item(),
            "rmse": deviation(o, golden).rmse,
            "rmse_real": deviation(real, golden).rmse,
        })  # fmt: skip
    return rows


def exponential(fmt="BF16", keys=64):
    """The exponential inside torch's flash kernel on CPU, made visible: one key scores 0 and all others x, so that the
    kernel's log-sum-exp, which it returns in FP32, is log(1 + (keys - 1) exp(x)).

    Returns:
        x: every value of `fmt` in [-4, -2**-10], where 64 FP32 additions leave exp(x) right to 1e-5.
        measured, modelled: relative errors of the kernel's exponential, and of its model's.
    """
    dtype = Format.of(fmt).dtype
    x = torch.arange(-(2**15), 0, dtype=torch.int32).to(torch.int16).view(dtype)
    x = x[(x >= -4) & (x <= -(2.0**-10))].sort().values
    q = torch.zeros(x.numel(), 1, 1, 16, dtype=dtype)
    k, v = torch.zeros(2, x.numel(), 1, keys, 16, dtype=dtype)
    q[..., 0] = 1
    k[:, 0, 1:, 0] = x[:, None]
    _, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, scale=1.0)
    x, exp = x.double(), torch_cpu(fmt, 1)["exp"]
    measured = (lse.double().flatten().exp() - exp(x.new_zeros(1))) / (keys - 1)
    return x, measured / x.exp() - 1, exp(FP32(x)) / x.exp() - 1


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
