"""FlashAttention-2's and -4's own CUDA kernels, run by `ptx_machine`, compared with the emulator: equal bits, errors.
`make original` writes data/gpu, in 40 minutes on two cores; finished cells stay in build/original, so that it goes on
where it was. Notebook 01 draws the tables and computes nothing.

It needs the extra `gpu`, and CuTe for FlashAttention-4.
"""

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from attention_check.gpu.flash_attn import Options, backward, forward
from attention_gallery.catalogue import MODELLED
from attention_gallery.flash_attn_4 import FLASH_ATTN_4, fa4
from benchmarks.record import FA2_BITS, FA2_CALLS, fa2_inputs, fa2_key
from benchmarks.record import MODELLED as FA2_GPUS
from benchmarks.tables import save_table
from fa_lib import kernels, sweep
from fa_lib.execution.files import replacing
from fa_lib.execution.lookup import lookup
from fa_lib.execution.machine import installed
from fa_lib.execution.paths import GPU, build
from fa_lib.execution.pools import workers
from fa_lib.kernels.algorithm import Algorithm
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.shipped import fa2_cuda, fa2_splitkv
from fa_lib.kernels.shipped_newer import fa4_cuda, fa4_hopper
from fa_lib.numerics.formats import Format, round_to
from fa_lib.numerics.metrics import deviation, over_baseline
from ptx_machine import special_unit
from ptx_machine.nvcc import version
from ptx_machine.sources import FLASH_ATTN


@dataclass(frozen=True)
class Call:
    """A call of flash_attn_func for which it has a special kernel.

    Attributes:
        key: as tables hold it; fa_lib.plots.original has its label.
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


def _with(model: dict, **changes: Any) -> dict:
    """A model whose algorithm has other choices."""
    return model | dict(algorithm=replace(Algorithm.of(model["algorithm"]), **changes))


SCALED_FIRST = dict(scale_in_exponent=False, exp2=torch.exp2)
# the model of FlashAttention-2 with one modelling choice undone: (model, fmt, head_dim, gpu) -> arguments of `tiled`;
# fa_lib.plots.original has the labels
CHOICES: dict[str, Callable[[dict, Format, int, str], dict]] = dict(
    model=lambda model, *_: model,
    other=lambda model, fmt, head_dim, gpu: (
        fa2_cuda(fmt, head_dim, "H100" if gpu == "A100" else "A100") | dict(algorithm=model["algorithm"])
    ),
    exact=lambda model, fmt, head_dim, gpu: fa2_cuda(fmt, head_dim),
    exact_exp2=lambda model, *_: _with(model, exp2=torch.exp2),
    divided=lambda model, *_: _with(model, **SCALED_FIRST),
    forwards=lambda model, *_: _with(model, reverse=False),
    not_rounded=lambda model, *_: (
        model | dict(precision=replace(model["precision"], probs=model["precision"].accumulator))
    ),
)


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
    (q, k, v), *truth = problem(fmt, distribution, seed, (1, heads, n, head_dim), causal=causal)
    o, lse = _forward(q, k, v, causal=causal, gpu=gpu)
    S = q.double() @ k.double().mT * head_dim**-0.5
    if causal:
        S = S.masked_fill(torch.ones_like(S, dtype=torch.bool).triu(1), -torch.inf)
    model = with_own_exp2(fa2_cuda(fmt, head_dim, gpu, causal=causal), gpu)
    rows = []
    for choice, change in CHOICES.items():
        emulated = kernels.tiled(q, k, v, causal=causal, **change(model, fmt, head_dim, gpu))
        rows.append(dict(choice=choice, **distances(o, emulated, fmt, *truth),
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
    shapes = (1, *settings.shape, head_dim), (1, *settings.kv_shape, head_dim)
    (q, k, v), *truth = problem(fmt, distribution, seed, *shapes, **settings.options)
    o, _ = _forward(q, k, v, gpu=gpu, splits=settings.splits, **settings.options)
    causal = settings.options.get("causal", False)
    split = settings.splits > 1
    model = fa2_splitkv(fmt, head_dim, settings.splits, gpu) if split else fa2_cuda(fmt, head_dim, gpu, causal=causal)
    model = with_own_exp2(model, gpu)
    if "softcap" in settings.options:  # tiled caps no scores that are not scaled yet
        model = _with(model, **SCALED_FIRST)
    return [distances(o, kernels.tiled(q, k, v, **model, **settings.options), fmt, *truth)]


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
    fmt = Format.of(fmt)
    (q, k, v), *_ = problem(fmt, distribution, seed, (1, heads, n, head_dim), causal=causal)
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


MODELS = {"H100": fa4_hopper, "B200": fa4_cuda}  # of FlashAttention-4


def flash_attention_4(
    fmt: Format | str, head_dim: int, causal: bool, gpu: str, distribution: str, n: int, seed: int, heads: int = 2
) -> list[dict]:
    """A cell: compare the kernel that flash_attn.cute.flash_attn_func chooses with its model in `tiled`.

    Args:
        fmt: FP16 or BF16. gpu: of MODELS, where the kernel runs. distribution, seed: as of `inputs.draw`. n: queries
            and keys.

    Returns:
        rows: choice ("model"; "exact": with exact sums; "exact_exp2": 2^x rounded correctly; "rescaled", on a B200:
        every new maximum rescales), different, ulps, times_max and times_max_model, as of `original`. None
        where the project takes a kernel of two blocks together, which is not modelled.
    """
    fmt = Format.of(fmt)
    (q, k, v), *truth = problem(fmt, distribution, seed, (1, heads, n, head_dim), causal=causal)
    try:
        o = fa4(q, k, v, causal, None, gpu=gpu)
    except NotImplementedError:
        return []
    described = MODELS[gpu]
    model = with_own_exp2(described(fmt, head_dim, gpu, causal=causal), gpu)
    exact = described(fmt, head_dim, causal=causal) | dict(algorithm=model["algorithm"])
    choices = dict(model=model, exact=exact, exact_exp2=_with(model, exp2=torch.exp2))
    if gpu == "B200":
        choices |= dict(rescaled=_with(model, threshold=0))
    return [
        dict(choice=key, **distances(o, kernels.tiled(q, k, v, causal=causal, **arguments), fmt, *truth))
        for key, arguments in choices.items()
    ]


def with_own_exp2(model: dict, gpu: str) -> dict:
    """Give a model of the kernel the GPU's own 2^x, where it was measured."""
    if gpu not in special_unit.MEASURED:
        return model

    def exp2(y: Tensor) -> Tensor:
        return torch.from_numpy(special_unit.ex2(y.float().numpy())).double()

    return _with(model, exp2=exp2)


def problem(fmt: Format, distribution: str, seed: int, shape, kv_shape=None, **options):
    """Q of `shape`, K and V of `kv_shape`, in a format; the golden value; Baseline's largest error."""
    q, k, v = (round_to(x, fmt).to(fmt.dtype) for x in draw(distribution, seed, shape, kv_shape))
    golden = kernels.golden(q, k, v, inputs=fmt, **options)
    tensors = (x.double() for x in (q, k, v))
    baseline = kernels.reference(*tensors, precision=Precision.materialized(fmt), **options)
    return (q, k, v), golden, deviation(baseline, golden).max


def _forward(q, k, v, gpu, splits=1, **options):
    return forward(q, k, v, Options(**options), gpu=gpu, splits=splits)


def distances(o: Tensor, emulated: Tensor, fmt: Format, golden: Tensor, base: float) -> dict:
    difference = (o.double() - emulated.double()).abs()
    return dict(
        different=(difference > 0).double().mean().item(), ulps=(difference / fmt.ulp(golden)).max().item(),
        times_max=over_baseline(deviation(o, golden).max, base),
        times_max_model=over_baseline(deviation(emulated, golden).max, base),
    )  # fmt: skip


OF_ALL = dict(fmt=["BF16", "FP16"], head_dim=[64, 128], gpu=["A100", "H100"], distribution=["uniform", "normal"])
GRIDS = {
    "original": (original, OF_ALL | dict(causal=[False, True], n=[512, 2048], seed=range(3))),
    "calls": (called, OF_ALL | dict(call=[*CALLS], head_dim=[64], seed=range(3))),
    "flash_attention_4": (
        flash_attention_4,
        OF_ALL | dict(causal=[False, True], gpu=["H100", "B200"], n=[200, 1024], seed=range(3)),
    ),
    "gradients": (gradients, OF_ALL | dict(causal=[False, True], gpu=["A100"], n=[512], seed=range(3))),
}


def keep_bits(path: Path) -> None:
    """Write the machine's outputs of FlashAttention-2, (1, 1, n, head_dim) by `fa2_key`; `benchmarks.record` compares a
    GPU's with them."""
    outputs = {}
    for gpu, (fmt, distribution, causal) in product(FA2_GPUS.values(), FA2_CALLS):
        o, _ = forward(*fa2_inputs(fmt, distribution), Options(causal), gpu=gpu, splits=1)
        outputs[fa2_key(gpu, fmt, distribution, causal)] = o.contiguous()
    with replacing(path) as temporary:
        save_file(outputs, temporary)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=GPU, help="folder of the tables")
    parser.add_argument("--tables", nargs="+", choices=GRIDS, default=[*GRIDS])
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    given = parser.parse_args()
    for name in given.tables:
        cell, grid = GRIDS[name]
        with workers(given.processes) as pool:
            table = sweep(cell, grid, cache=build() / "original", executor=pool)
        if name == "flash_attention_4":
            package, of = FLASH_ATTN_4, "wheel"
            compiler = {dist: installed(dist) for dist in MODELLED["fa4_hopper"].needs}
        else:
            package, of, compiler = FLASH_ATTN, "source package", dict(nvcc=version(), arch="sm_80")
        about = dict(kernels=f"{package.name} {package.version}, its {of}", **compiler)
        save_table(given.out / name, table, grid, about, digits=6)
    if "original" in given.tables:
        keep_bits(given.out / FA2_BITS.name)


if __name__ == "__main__":
    main()
