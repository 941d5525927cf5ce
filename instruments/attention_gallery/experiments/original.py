"""FlashAttention-2's own CUDA kernels, run by `ptx_machine`, compared with the emulator: equal bits, and errors.

It needs the extra `gpu`. The table is recorded in data/gpu: notebook 01 draws it and computes nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fa_lib import kernels
from fa_lib.execution.lookup import lookup
from fa_lib.kernels.algorithm import Algorithm
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.shipped import fa2_cuda, fa2_splitkv
from fa_lib.numerics.formats import Format, round_to
from fa_lib.numerics.metrics import deviation, over_baseline


@dataclass(frozen=True)
class Call:
    """A call of flash_attn_func for which it has a special kernel.

    Attributes:
        key: as tables hold it; `fa_lib.plots.original` has its label.
        shape, kv_shape: heads and rows of Q, and of K and V. options: the call's, by the emulator's names.
        splits: parts that the keys are cut into.
    """

    key: str
    shape: tuple[int, int]
    kv_shape: tuple[int, int]
    options: dict[str, Any]
    splits: int = 1


CALLS = {call.key: call for call in (
    Call("uneven", (2, 113), (2, 203), {}),
    Call("uneven causal", (2, 113), (2, 203), dict(causal=True)),
    Call("shared", (4, 256), (1, 256), {}),
    Call("window", (2, 512), (2, 512), dict(window=(100, 20))),
    Call("softcap", (2, 256), (2, 256), dict(softcap=20.0)),
    Call("split", (2, 1), (2, 2048), {}, 4),
    Call("split causal", (2, 64), (2, 2048), dict(causal=True), 4),
)}  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """The model of FlashAttention-2 with one modelling choice undone.

    Attributes:
        key: as tables hold it; `fa_lib.plots.original` has its label.
        change: (model, fmt, head_dim, gpu) -> the changed arguments of `tiled`.
    """

    key: str
    change: Callable[[dict, Format, int, str], dict]


def _exact(model, fmt, head_dim, gpu):
    return fa2_cuda(fmt, head_dim)


def _other(model, fmt, head_dim, gpu):
    return fa2_cuda(fmt, head_dim, "H100" if gpu == "A100" else "A100") | dict(algorithm=model["algorithm"])


def _exact_exp2(model, fmt, head_dim, gpu):
    return model | dict(algorithm=replace(Algorithm.of(model["algorithm"]), exp2=torch.exp2))


def _divided(model, fmt, head_dim, gpu):
    return model | dict(algorithm=_scaled_first(model["algorithm"]))


def _scaled_first(algorithm):
    return replace(Algorithm.of(algorithm), scale_in_exponent=False, exp2=torch.exp2)


def _forwards(model, fmt, head_dim, gpu):
    return model | dict(algorithm=replace(Algorithm.of(model["algorithm"]), reverse=False))


def _not_rounded(model, fmt, head_dim, gpu):
    return model | dict(precision=replace(model["precision"], probs=model["precision"].accumulator))


CHOICES = {choice.key: choice for choice in (
    Choice("model", lambda model, *_: model),
    Choice("other", _other),
    Choice("exact", _exact),
    Choice("exact_exp2", _exact_exp2),
    Choice("divided", _divided),
    Choice("forwards", _forwards),
    Choice("not_rounded", _not_rounded),
)}  # fmt: skip


def original(
    fmt: Format | str, head_dim: int, causal: bool, gpu: str, distribution: str, n: int, seed: int, heads: int = 2
) -> list[dict]:
    """A cell: compare flash_fwd_kernel with its model in `tiled`.

    Args:
        fmt: FP16 or BF16. gpu: "A100" or "H100", whose sums the kernel has. distribution, seed: as of `inputs.draw`.
        n: queries and keys.

    Returns:
        rows: choice (of CHOICES), different (share of O's elements whose bits differ), ulps (largest distance, in ulp
        of the format at the golden value), lse_difference (of the kernel's log-sum-exp to the exact one), times_max and
        times_max_model (largest error over Baseline's).
    """
    fmt = Format.of(fmt)
    q, k, v = draw_in_format(fmt, distribution, seed, (1, heads, n, head_dim), (1, heads, n, head_dim))
    o, lse = _forward(q, k, v, causal=causal, gpu=gpu)
    golden = kernels.golden(q, k, v, inputs=fmt, causal=causal)
    base = deviation(stored(fmt, q, k, v, causal=causal), golden).max
    S = q.double() @ k.double().mT * head_dim**-0.5
    if causal:
        S = S.masked_fill(torch.ones_like(S, dtype=torch.bool).triu(1), -torch.inf)
    model = with_own_exp2(fa2_cuda(fmt, head_dim, gpu, causal=causal), gpu)
    rows = []
    for choice in CHOICES.values():
        emulated = kernels.tiled(q, k, v, causal=causal, **choice.change(model, fmt, head_dim, gpu))
        rows.append(dict(choice=choice.key, **distances(o, emulated, golden, fmt, base),
                         lse_difference=(lse.double() - S.logsumexp(-1)).abs().max().item()))  # fmt: skip
    return rows


def called(call: str, fmt: Format | str, head_dim: int, gpu: str, distribution: str, seed: int) -> list[dict]:
    """A cell: compare the kernel of a call with its model, which scales S first where there is a softcap.

    Args:
        call: a key of CALLS. fmt, head_dim, gpu, distribution, seed: as of `original`.

    Returns:
        one row: different, ulps, times_max and times_max_model, as of `original`.

    Raises:
        ValueError: there is no such call.
    """
    fmt, settings = Format.of(fmt), lookup("call", call, CALLS)
    q, k, v = draw_in_format(fmt, distribution, seed, (1, *settings.shape, head_dim), (1, *settings.kv_shape, head_dim))
    o, _ = _forward(q, k, v, gpu=gpu, splits=settings.splits, **settings.options)
    golden = kernels.golden(q, k, v, inputs=fmt, **settings.options)
    base = deviation(stored(fmt, q, k, v, **settings.options), golden).max
    causal = settings.options.get("causal", False)
    split = settings.splits > 1
    model = fa2_splitkv(fmt, head_dim, settings.splits, gpu) if split else fa2_cuda(fmt, head_dim, gpu, causal=causal)
    model = with_own_exp2(model, gpu)
    if "softcap" in settings.options:  # tiled caps no scores that are not scaled yet
        model |= dict(algorithm=_scaled_first(model["algorithm"]))
    return [distances(o, kernels.tiled(q, k, v, **model, **settings.options), golden, fmt, base)]


def gradients(
    fmt: Format | str, head_dim: int, causal: bool, gpu: str, distribution: str, n: int, seed: int, heads: int = 2
) -> list[dict]:
    """A cell: compare the backward kernels with the emulator, and with themselves when their blocks run in another
    order.

    Args:
        fmt, head_dim, causal, gpu, distribution, n, seed: as of `original`.

    Returns:
        rows: tensor ("dq", "dk", "dv"); times_max, the largest error over Baseline's; times_max_model, the emulator's,
        with exact sums and the forward kernel's tiles; different, the share of elements whose bits differ from the
        emulator's; by_order, the share of elements whose bits differ between the two orders of blocks.
    """
    from attention_check.gpu.flash_attn import Options, backward

    fmt = Format.of(fmt)
    q, k, v = draw_in_format(fmt, distribution, seed, (1, heads, n, head_dim), (1, heads, n, head_dim))
    dO = round_to(draw("normal", seed + 1000, (1, heads, n, head_dim))[0], fmt).to(fmt.dtype)
    o, lse = _forward(q, k, v, causal=causal, gpu=gpu)
    call = dO, (q, k, v), (o, lse), Options(causal)
    real, other = (backward(*call, gpu=gpu, seed=order) for order in (None, 2))

    def gradients_of(fn, **options):
        tensors = [x.double().requires_grad_() for x in (q, k, v)]
        return torch.autograd.grad(fn(*tensors, causal=causal, **options), tensors, dO.double())

    exact = gradients_of(kernels.reference, precision=Precision.uniform("FP64"))
    baseline = gradients_of(kernels.reference, precision=Precision.materialized(fmt))
    model = gradients_of(kernels.tiled, **fa2_cuda(fmt, head_dim, causal=causal))
    rows = []
    for name, a, again, g, b, m in zip(("dq", "dk", "dv"), real, other, exact, baseline, model):
        most = (b - g).abs().max().item()
        rows.append(dict(
            tensor=name, times_max=over_baseline((a.double() - g).abs().max().item(), most),
            times_max_model=over_baseline((m - g).abs().max().item(), most),
            different=(a.double() != m).double().mean().item(), by_order=(a != again).double().mean().item(),
        ))  # fmt: skip
    return rows


def with_own_exp2(model: dict, gpu: str) -> dict:
    """Give a model of the kernel the GPU's own 2^x, where it was measured."""
    from ptx_machine import special_unit

    if gpu not in special_unit.MEASURED:
        return model

    def exp2(y: Tensor) -> Tensor:
        return torch.from_numpy(special_unit.ex2(y.float().numpy())).double()

    return model | dict(algorithm=replace(Algorithm.of(model["algorithm"]), exp2=exp2))


def draw_in_format(fmt: Format, distribution: str, seed: int, shape, kv_shape) -> list[Tensor]:
    """Draw Q of `shape`, K and V of `kv_shape`, on the grid and in the dtype of a format."""
    return [round_to(x, fmt).to(fmt.dtype) for x in draw(distribution, seed, shape, kv_shape)]


def _forward(q, k, v, gpu, splits=1, **options):
    from attention_check.gpu.flash_attn import Options, forward  # an extra

    return forward(q, k, v, Options(**options), gpu=gpu, splits=splits)


def stored(fmt, q, k, v, **options):
    tensors = (x.double() for x in (q, k, v))
    return kernels.reference(*tensors, precision=Precision.materialized(fmt), **options)


def distances(o: Tensor, emulated: Tensor, golden: Tensor, fmt: Format, base: float) -> dict:
    difference = (o.double() - emulated.double()).abs()
    return dict(
        different=(difference > 0).double().mean().item(), ulps=(difference / fmt.ulp(golden)).max().item(),
        times_max=over_baseline(deviation(o, golden).max, base),
        times_max_model=over_baseline(deviation(emulated, golden).max, base),
    )  # fmt: skip
