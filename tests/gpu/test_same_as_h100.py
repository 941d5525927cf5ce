"""Kernels leave the bytes in memory here that they left on an H100: FlashAttention-2's, and those of the gallery, in
`CALLS`. The FP32 sums of dQ are left out: their order is not fixed."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from functools import cache, partial
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from attention_check.gpu.flash_attn import Options, backward, forward
from attention_gallery.catalogue import FEW_QUERIES, MODELLED
from fa_lib import kernels
from fa_lib.kernels.inputs import draw
from fa_lib.numerics.formats import Format
from ptx_machine import Kernel

GPU = "H100"
Shape = tuple[int, int, int]
CALLED = [("BF16", "normal", False), ("FP16", "uniform", True)]  # kernels of the gallery: format, inputs, causal
FULL = [("BF16", "normal", False), ("FP16", "normal", False)]
CAUSAL = [("BF16", "uniform", True), ("FP16", "uniform", True)]
OTHERWISE = {
    "flashinfer_cascade": FULL, "vllm_encoder": FULL, "xformers_split_k_a100": FULL, "sageattention_a100": FULL[:1],
    "fla_parallel": CAUSAL, "flash_attn_triton_package": CAUSAL,
}  # fmt: skip
SQUARE = ("vllm_encoder",)  # which takes as many queries as keys
ATOMIC = ("dq_dk_dv_loop", 9)  # part of a kernel's name, and which memory it adds to in any order
SEEDS = {"uniform": 71, "normal": 72}  # of the calls that had been run here before an H100 ran them


def drawn(shape: Shape, kv_shape: Shape, fmt: str, distribution: str, seed: int) -> list[Tensor]:
    """Draw Q of a shape (heads, rows, head_dim), and K and V of another, each with a batch of 1 before it."""
    (q, _, _), (_, k, v) = (draw(distribution, seed + i, (1, *size)) for i, size in enumerate((shape, kv_shape)))
    return [x.to(Format.of(fmt).dtype) for x in (q, k, v)]


def flash(shape: Shape, kv_shape: Shape, fmt: str, distribution: str, seed: int, splits: int = 1,
          gradients: int | None = None, **options) -> None:  # fmt: skip
    """Call FlashAttention-2's forward kernel, and its backward kernels with dO of the seed `gradients`."""
    q, k, v = drawn(shape, kv_shape, fmt, distribution, seed)
    chosen = Options(**options)
    o, lse = forward(q, k, v, chosen, gpu=GPU, splits=splits)
    if gradients is not None:
        torch.manual_seed(gradients)
        backward(torch.randn_like(o), (q, k, v), (o, lse), chosen, gpu=GPU)


def of_gallery(key: str, shape: Shape, kv_shape: Shape, fmt: str, distribution: str, causal: bool) -> None:
    """Call a GPU kernel of the gallery."""
    entry = MODELLED[key]
    tensors = drawn(shape, kv_shape, fmt, distribution, 5)
    if entry.module == "llama_cuda":  # has caches of FP16, which hold these values of BF16 exactly
        tensors = [x.half() for x in tensors]
    kernels.get(entry.ref)(*tensors, **(dict(causal=True) if causal else {}))


def _flash_calls() -> Iterator[tuple[str, Shape, Shape, str, dict, int | None]]:
    """Yield name, shapes of Q and of K and V, format, options, and a seed; None: of SEEDS."""
    for fmt, causal, d in product(("BF16", "FP16"), (False, True), (64, 128)):
        yield f"{d}{' causal' if causal else ''}", (2, 512, d), (2, 512, d), fmt, dict(causal=causal), 0
    yield "113 queries, 203 keys", (2, 113, 64), (2, 203, 64), "BF16", {}, 0
    yield "113 queries, 203 keys, causal", (2, 113, 64), (2, 203, 64), "BF16", dict(causal=True), 0
    yield "4 heads share 1", (4, 256, 64), (1, 256, 64), "BF16", {}, 0
    yield "window 100, 20", (2, 512, 64), (2, 512, 64), "BF16", dict(window=(100, 20)), 0
    yield "split in 4", (2, 1, 64), (2, 2048, 64), "BF16", dict(splits=4), 0
    yield "split in 4", (2, 1, 64), (2, 2048, 64), "FP16", dict(splits=4), 0
    yield "split in 4, causal", (2, 64, 64), (2, 2048, 64), "BF16", dict(splits=4, causal=True), 0
    for fmt in ("BF16", "FP16"):
        yield "4,096 keys", (1, 256, 64), (1, 4096, 64), fmt, {}, None
        yield "128, 2,048 keys", (1, 256, 128), (1, 2048, 128), fmt, {}, None
        yield "1,024 causal", (1, 1024, 64), (1, 1024, 64), fmt, dict(causal=True, gradients=9), None
    yield "32", (2, 512, 32), (2, 512, 32), "BF16", dict(gradients=9), None
    yield "96 causal, 2 heads share 1", (2, 384, 96), (1, 384, 96), "BF16", dict(causal=True), None
    yield "256", (1, 256, 256), (1, 256, 256), "FP16", {}, None
    yield "40, 99 queries, 333 keys", (2, 99, 40), (2, 333, 40), "BF16", {}, None
    yield "128 split in 6", (2, 16, 128), (2, 4096, 128), "BF16", dict(splits=6), None
    yield "window 64, 0", (2, 512, 64), (2, 512, 64), "FP16", dict(window=(64, 0)), None


def _calls() -> Iterator[tuple[str, Callable]]:
    for name, shape, kv_shape, fmt, options, seed in _flash_calls():
        for distribution, other in SEEDS.items():
            inputs = shape, kv_shape, fmt, distribution, other if seed is None else seed
            yield f"flash-attn {fmt} {name} {distribution}", partial(flash, *inputs, **options)
    for key, entry in MODELLED.items():
        if not entry.module or key == "fa2_cuda" or entry.gpu != "A100":  # others take tensor maps
            continue
        for fmt, distribution, causal in OTHERWISE.get(key, CALLED):
            few = key in FEW_QUERIES and (causal or key != "flex_decode")
            n_q = 2 if few else 320 if causal or key in SQUARE else 160
            name = f"{key} {fmt} {distribution}{' causal' if causal else ''}"
            yield name, partial(of_gallery, key, (2, n_q, 64), (2, 320, 64), fmt, distribution, causal)


CALLS = dict(_calls())


def left_in_memory(key: str) -> pd.DataFrame:
    """Make a call of CALLS, and run each of its launches in an H100's arithmetic.

    Returns:
        DataFrame: a row for each tensor that a launch changes: call, launch and memory (numbers), sha (16 digits).
    """
    with replayed() as launches:
        CALLS[key]()
    rows = []
    for number, (entry, before, after) in enumerate(launches):
        for index, (old, new) in enumerate(zip(before, after)):
            if not np.array_equal(old, new) and not (ATOMIC[0] in entry and index == ATOMIC[1]):
                sha = hashlib.sha256(new.tobytes()).hexdigest()[:16]
                rows.append(dict(call=key, launch=number, memory=index, sha=sha))
    return pd.DataFrame(rows)


@contextmanager
def replayed() -> Iterator[list]:
    """Run each launch inside the context on a GPU first, and then as it is: its inputs are those of the call.

    Yields:
        list of (name of the kernel, bytes of its tensors before, and after it ran on GPU), in order.
    """
    launches, run, on_gpu = [], Kernel.__call__, cache(partial(Kernel, gpu=GPU))

    def launch(kernel, *sizes_and_arguments, unwritten=None, **more):
        memory = [span.data for span in kernel._parameters(sizes_and_arguments[3:])[1]]
        before = [data.copy() for data in memory]
        again = on_gpu(kernel.text, kernel.entry.name)
        Context().run(run, again, *sizes_and_arguments, unwritten=unwritten)  # outside `fake_cuda`
        launches.append((kernel.entry.name, before, [data.copy() for data in memory]))
        for data, old in zip(memory, before):
            data[:] = old
        return run(kernel, *sizes_and_arguments, unwritten=unwritten, **more)

    Kernel.__call__ = launch
    try:
        yield launches
    finally:
        Kernel.__call__ = run


FOLDER = Path(__file__).parents[2] / "data" / "recorded" / "NVIDIA_H100_80GB_HBM3" / "data" / "results"
ON_GPU = pd.concat([pd.read_csv(FOLDER / f"{name}.csv") for name in ("launches", "launches_gallery")])
MADE = ON_GPU.call.unique()
QUICK = [  # whose kernels other tests compile, too, or Triton in a second
    "flash-attn BF16 64 uniform", "flash-attn BF16 64 normal", "llama_cuda_decode BF16 normal",
    "vllm_unified FP16 uniform causal", "conch_paged BF16 normal", "lmdeploy_decode_int8 FP16 uniform causal",
]  # fmt: skip


@pytest.mark.parametrize("call", [key if key in QUICK else pytest.param(key, marks=pytest.mark.full) for key in MADE])
def test_a_kernel_leaves_an_h100s_bytes(call):
    due = ON_GPU.query("call == @call")
    both = due.merge(left_in_memory(call), on=["call", "launch", "memory"], how="left", suffixes=("_gpu", ""))
    assert len(both) == len(due) > 0
    assert both[both.sha != both.sha_gpu].empty
