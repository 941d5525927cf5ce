"""Torch's attention kernels and the package flash-attn, judged by the rule and compared with the model; the emulator's
speed."""

import math
import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path

import pandas as pd
import torch

from attention_check.isolation.calls import call_kernel
from attention_check.measure.shapes import measure_shapes
from fa_lib import kernels
from fa_lib.execution.results import save
from fa_lib.execution.sweep import sweep
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.shipped import fa2_cuda
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import Format, round_to
from fa_lib.numerics.metrics import deviation

KERNELS = ("torch_flash", "torch_cudnn", "torch_efficient", "torch_math", "torch_flex_compiled", "torch_varlen")
NAMES = [f"attention_gallery.torch_kernels:{key}" for key in KERNELS]
FLASH_ATTN = "attention_gallery.flash_attn_kernels:flash_attn"
SHAPES = {"cuda": ["97", "113 x 203", "causal 203", "GQA 384", "1024", "causal 2048"], "cpu": ["97", "causal 203"]}
WORKERS = 4  # processes; most of their time is the CPU's
ORDERS = {"first": False, "last": True}  # the tile of keys that is taken first -> Algorithm.reverse


def agreement(kernel: str, n: int, head_dim: int, fmt: str, distribution: str, seed: int, device: str) -> list[dict]:
    """A cell: count how many outputs of a kernel have the bits of FlashAttention-2's model, tiles in either order.

    Args:
        kernel: a name for `kernels.get`. n: queries and keys. distribution, seed: as of `inputs.draw`. device: torch's.

    Returns:
        rows: begins, a key of ORDERS; identical, the share of equal outputs; rmse, over the model's; outcome; problem.
    """
    form = Format.of(fmt)
    q, k, v = (round_to(x, form).to(device, form.dtype) for x in draw(distribution, seed, (1, 2, n, head_dim)))
    answer, golden = call_kernel(kernels.plain(kernel), q, k, v), kernels.golden(q, k, v, inputs=form)
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
    """Judge kernels by the rule, forward and backward, and compare them with the model; write both tables below `out`.

    The table <name>_rule has the columns of `measure_shapes`, <name>_rule.model those of `agreement`; name is
    "backends", or the first kernel's of `names`.

    Args:
        device: "cuda", or "cpu" for a rehearsal. cache: folder of finished cells. names: kernels; empty is NAMES.
    """
    names, full = list(names or NAMES), device == "cuda"
    dims, lengths = ([64, 128, 256], [1024, 4096]) if full else ([64], [256])
    fixed, axes = dict(device=device), dict(fmt=["BF16", "FP16"] if full else ["BF16"], seed=range(3 if full else 1))
    calls = dict(kernel=names, head_dim=dims, shape=SHAPES[device], distribution="normal") | axes
    sizes = dict(kernel=names, n=lengths, head_dim=dims, distribution=["uniform", "normal"]) | axes
    with ProcessPoolExecutor(WORKERS, multiprocessing.get_context("spawn")) as pool:  # CUDA is no friend of forks
        by_rule = sweep(measure_shapes, calls, fixed=fixed, cache=cache, executor=pool)
        agrees = sweep(agreement, sizes, fixed=fixed, cache=cache, executor=pool)
    print(by_rule.groupby(["kernel", "tensor"]).ratio.max().unstack().to_string())
    print(agrees.groupby(["kernel", "fmt", "head_dim", "begins"]).identical.mean().unstack().to_string())
    name = "backends" if names == NAMES else names[0].rpartition(":")[2]
    save(out, f"{name}_rule", calls | fixed, by_rule, more=dict(model=agrees))


def emulator_speed(device: str) -> pd.DataFrame:
    """Time an emulated forward pass, and its two products in float64, on the CPU and on a device.

    Returns:
        table: work ("emulated" or "products"), n, device, repeat, seconds.
    """

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
