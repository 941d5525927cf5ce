"""Torch's other attention kernels, and the package flash-attn, behind f(q, k, v, causal, scale); and their tables."""

import inspect
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from fa_lib import kernels
from fa_lib.check.attempt import attempt
from fa_lib.check.kernel import ruled
from fa_lib.execution.results import save
from fa_lib.execution.sweep import sweep
from fa_lib.formats import Format, round_to
from fa_lib.inputs import draw
from fa_lib.kernels.known import fa2_cuda
from fa_lib.metrics import deviation
from fa_lib.precision import Precision
from fa_lib.tiling import Tiling

NAMES = [f"fa_lib.record.backends:{name}" for name in ("flash", "cudnn", "efficient", "math_backend", "flex", "varlen")]
SHAPES = {"cuda": ["97", "113 x 203", "causal 203", "GQA 384", "1024", "causal 2048"], "cpu": ["97", "causal 203"]}
ORDERS = {"first": False, "last": True}  # the tile of keys that is taken first -> Algorithm.reverse


def flash(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    return kernels.flash(q, k, v, causal=causal, scale=scale)


def cudnn(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    return _held_to(SDPBackend.CUDNN_ATTENTION, q, k, v, causal, scale)


def efficient(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    return _held_to(SDPBackend.EFFICIENT_ATTENTION, q, k, v, causal, scale)


def math_backend(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    return _held_to(SDPBackend.MATH, q, k, v, causal, scale)


def _held_to(backend, q, k, v, causal, scale):
    """scaled_dot_product_attention by one backend; its `is_causal` aligns top-left, so other lengths get a mask."""
    n_q, n_kv = q.shape[-2], k.shape[-2]
    own = causal and n_q == n_kv
    mask = None if own or not causal else torch.ones(n_q, n_kv, dtype=torch.bool, device=q.device).tril(n_kv - n_q)
    with sdpa_kernel(backend):
        grouped = q.shape[-3] != k.shape[-3]
        return scaled_dot_product_attention(q, k, v, mask, is_causal=own, scale=scale, enable_gqa=grouped)


@cache
def _compiled():
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def flex(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    """flex_attention, compiled: Triton's kernel on CUDA."""
    from torch.nn.attention.flex_attention import create_block_mask

    n_q, n_kv, mask = q.shape[-2], k.shape[-2], None
    if causal:

        def seen(b, h, i, j):
            return i + (n_kv - n_q) >= j

        mask = create_block_mask(seen, None, None, n_q, n_kv, device=q.device)
    return _compiled()(q, k, v, block_mask=mask, scale=scale, enable_gqa=q.shape[-3] != k.shape[-3])


def varlen(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    """torch.nn.attention.varlen, sequences of one length packed one behind another; causality aligns bottom-right."""
    from torch.nn.attention.varlen import varlen_attn

    batch, heads, n_q, d = q.shape
    n_kv = k.shape[-2]
    packed = [x.transpose(1, 2).reshape(-1, x.shape[1], d) for x in (q, k, v)]
    ends = [torch.arange(0, batch * n + 1, n, dtype=torch.int32, device=q.device) for n in (n_q, n_kv)]
    has = inspect.signature(varlen_attn).parameters  # they differ between torch 2.11 and 2.13
    how = dict(is_causal=causal) if "is_causal" in has else dict(window_size=(-1, 0 if causal else -1))
    if scale is not None:
        how["scale"] = scale
    o = varlen_attn(*packed, *ends, n_q, n_kv, **how)
    return o.reshape(batch, n_q, heads, d).transpose(1, 2)


def flash_attn(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    """The package's kernel."""
    return kernels.flash(q, k, v, backend="flash_attn", causal=causal, scale=scale)


def agreement(kernel: str, n: int, head_dim: int, fmt: str, distribution: str, seed: int, device: str) -> list[dict]:
    """A cell: how many outputs of a kernel are the bits of FlashAttention-2's model, tiles in either order.

    Returns:
        rows: begins (at the first or the last tile), identical (share), rmse over the model's, outcome, problem.
    """
    form = Format.of(fmt)
    q, k, v = (round_to(x, form).to(device, form.dtype) for x in draw(distribution, seed, (1, 2, n, head_dim)))
    answer, golden = attempt(kernels.plain(kernel), q, k, v), kernels.golden(q, k, v, inputs=form)
    model, rows = fa2_cuda(form, head_dim), []
    for begins, reverse in ORDERS.items():
        row = dict(begins=begins, identical=math.nan, rmse=math.nan, outcome=answer.outcome, problem=answer.problem)
        if answer.o is not None:
            o = kernels.tiled(q, k, v, **model | dict(algorithm=replace(model["algorithm"], reverse=reverse)))
            times = deviation(answer.o, golden).rmse / deviation(o, golden).rmse
            row |= dict(identical=(o == answer.o).double().mean().item(), rmse=times)
        rows.append(row)
    return rows


def judged(device: str, out: Path, cache: str = "", names: Sequence[str] = ()) -> None:
    """Every kernel by the rule, forward and backward, and against the model: two tables below `out`."""
    names, full = list(names or NAMES), device == "cuda"
    dims, lengths = ([64, 128, 256], [1024, 4096]) if full else ([64], [256])
    fixed, given = dict(device=device), dict(fmt=["BF16", "FP16"] if full else ["BF16"], seed=range(3 if full else 1))
    calls = dict(kernel=names, head_dim=dims, shape=SHAPES[device], distribution="normal") | given
    by_rule = sweep(ruled, calls, fixed=fixed, cache=cache)
    sizes = dict(kernel=names, n=lengths, head_dim=dims, distribution=["uniform", "normal"]) | given
    agrees = sweep(agreement, sizes, fixed=fixed, cache=cache)
    print(by_rule.groupby(["kernel", "tensor"]).ratio.max().unstack().to_string())
    print(agrees.groupby(["kernel", "fmt", "head_dim", "begins"]).identical.mean().unstack().to_string())
    name = "backends" if names == NAMES else names[0].rpartition(":")[2]
    save(out, f"{name}_rule", calls | fixed, by_rule, more=dict(model=agrees))


def emulator_speed(device: str) -> pd.DataFrame:
    """Seconds of one emulated forward pass by device, and of its two float64 products: work, n, device, seconds."""

    def emulated(q, k, v):
        return kernels.tiled(q, k, v, tiling=Tiling(64, 64), precision=Precision.uniform("BF16"), algorithm="fa1")

    def products(q, k, v):
        return (q @ k.mT) @ v

    rows = []
    for n in (2048, 8192) if device == "cuda" else (512,):
        for on in dict.fromkeys(("cpu", device)):
            tensors = [x.to(on) for x in draw("uniform", 0, (1, 4, n, 64))]
            for repeat, work in product(range(4), (emulated, products)):  # the first one warms up
                started = time.perf_counter()
                work(*tensors)
                if on == "cuda":
                    torch.cuda.synchronize()
                seconds = time.perf_counter() - started
                rows.append(dict(work=work.__name__, n=n, device=on, repeat=repeat, seconds=seconds))
    table = pd.DataFrame(rows)
    return table[table.repeat > 0]
