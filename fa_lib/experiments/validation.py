"""The emulator compared with real kernels, bit for bit."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fa_lib import kernels
from fa_lib.kernels.algorithm import Algorithm
from fa_lib.kernels.compiled import flash
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.shipped import fa2_cuda, torch_cpu
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import FP32, Format, round_to
from fa_lib.numerics.metrics import deviation


def _rounded_sums(model, fmt):
    exp = model["algorithm"].exp  # a scale in the exponent has an exponential of its own
    return dict(algorithm=replace(model["algorithm"], exp=lambda x: fmt(exp(x)), scale_in_exponent=False))


CHOICES: dict[str, tuple[str, Callable[[dict, Format], dict]]] = {
    # modelling choices, each undone: key -> label, and (model, fmt) -> the arguments of `tiled` that differ
    "model": ("model", lambda model, fmt: {}),
    "exact_exp": ("exponential exact", lambda model, fmt: dict(algorithm=replace(model["algorithm"], exp=torch.exp))),
    "exact_probs": (
        "P not rounded",
        lambda model, fmt: dict(precision=replace(model["precision"], probs=model["precision"].accumulator)),
    ),
    "rounded_sums": ("row sums of rounded P", _rounded_sums),
    "tile_64": ("tile of 64 keys", lambda model, fmt: dict(tiling=Tiling(64, 64))),
}


def agree(
    n: int, head_dim: int, heads: int, distribution: str, fmt: Format | str, seed: int, device: str = "cpu"
) -> list[dict]:
    """A cell: count how many outputs of torch's flash kernel and of its model in `tiled` are the same bits.

    Args:
        n: keys, and queries; on a CPU up to 1,024, since its kernel takes more alike (CUDA's may split keys then).
        distribution, seed: as of `inputs.draw`. fmt: a 16-bit format, or FP32. device: torch's.

    Returns:
        rows: choice (of CHOICES; "model" has all of them), identical (share of equal outputs), max_ulp (distance, in
        ulp of the format at the golden value), max_difference, rmse and rmse_real (to the golden value).
    """
    fmt = Format.of(fmt)
    shapes = (1, heads, min(n, 1024) if device == "cpu" else n, head_dim), (1, heads, n, head_dim)
    q, k, v = (round_to(x, fmt).to(device, fmt.dtype) for x in draw(distribution, seed, *shapes))
    real = flash(q, k, v, backend="torch")
    golden = kernels.golden(q, k, v, inputs=fmt)
    model = torch_cpu(fmt, q.shape[-2]) if device == "cpu" else fa2_cuda(fmt, head_dim)
    model["algorithm"] = Algorithm.of(model["algorithm"])
    rows = []
    for key, (_, change) in CHOICES.items():
        o = kernels.tiled(q, k, v, **model | change(model, fmt))
        distance = (o.double() - real.double()).abs() / fmt.ulp(golden)
        rows.append(dict(
            choice=key, identical=(o == real).double().mean().item(), max_ulp=distance.max().item(),
            max_difference=(o.double() - real.double()).abs().max().item(), rmse=deviation(o, golden).rmse,
            rmse_real=deviation(real, golden).rmse,
        ))  # fmt: skip
    return rows


def exponential(fmt: Format | str = "BF16", keys: int = 64) -> tuple[Tensor, Tensor, Tensor]:
    """Measure the exponential inside torch's flash kernel on CPU. One key scores 0 and all others x, so that the
    kernel's log-sum-exp, which it returns in FP32, is log(1 + (keys - 1) exp(x)).

    Args:
        fmt: a 16-bit format of torch's. keys: how many.

    Returns:
        x: float64 (values,), every value of `fmt` in [-4, -2**-10], where 64 FP32 additions leave exp(x) right to 1e-5.
        measured, modelled: float64 (values,), relative errors of the kernel's exponential, and of its model's.
    """
    dtype = Format.of(fmt).dtype
    assert dtype is not None  # torch's kernel takes its own dtypes only
    x = torch.arange(-(2**15), 0, dtype=torch.int32).to(torch.int16).view(dtype)
    x = x[(x >= -4) & (x <= -(2.0**-10))].sort().values
    q = torch.zeros(x.numel(), 1, 1, 16, dtype=dtype)
    k, v = torch.zeros(2, x.numel(), 1, keys, 16, dtype=dtype)
    q[..., 0] = 1
    k[:, 0, 1:, 0] = x[:, None]
    _, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, scale=1.0)
    x, exp = x.double(), torch_cpu(fmt, 1)["algorithm"].exp
    measured = (lse.double().flatten().exp() - exp(x.new_zeros(1))) / (keys - 1)
    return x, measured / x.exp() - 1, exp(FP32(x)) / x.exp() - 1
