"""Calls of FlashAttention-2's kernels and the gallery's, and the bytes that they leave in memory, on the machine and
on a GPU.

`keep` writes their launches; `on_gpu` runs these; `on_machine` makes the calls here. The FP32 sums of dQ are left out:
their order is not fixed.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from attention_gallery.catalogue import FEW_QUERIES, MODELLED
from fa_lib import kernels
from fa_lib.execution.paths import build
from fa_lib.kernels.inputs import draw
from fa_lib.numerics.formats import Format
from ptx_machine.cuda_driver import replay
from ptx_machine.launches import Launch, recording

FOLDER = build() / "launches"
GPU, ON = "H100", "A100"  # ON: of most kernels of the gallery
Shape = tuple[int, int, int]
CALLED = [("BF16", "normal", False), ("FP16", "uniform", True)]  # kernels of the gallery: format, inputs, causal
FULL = [("BF16", "normal", False), ("FP16", "normal", False)]
CAUSAL = [("BF16", "uniform", True), ("FP16", "uniform", True)]
OTHERWISE = {
    "flashinfer_cascade": FULL, "vllm_encoder": FULL, "xformers_split_k_a100": FULL, "sageattention_a100": FULL[:1],
    "fla_parallel": CAUSAL, "flash_attn_triton_package": CAUSAL,
}  # fmt: skip
SQUARE = ("vllm_encoder",)  # which takes as many queries as keys
SHORT = 16  # hexadecimal digits of a SHA-256
ATOMIC = ("dq_dk_dv_loop", 9)  # part of a kernel's name, and which memory it adds to in any order


@dataclass(frozen=True)
class Call:
    """A call of kernels.

    Attributes:
        key: its name. run: makes it on the machine.
    """

    key: str
    run: Callable[[], object]


def drawn(shape: Shape, kv_shape: Shape, fmt: str, distribution: str, seed: int) -> list[Tensor]:
    """Draw Q of a shape (heads, rows, head_dim), and K and V of another, each with a batch of 1 before it."""
    (q, _, _), (_, k, v) = (draw(distribution, seed + i, (1, *size)) for i, size in enumerate((shape, kv_shape)))
    return [x.to(Format.of(fmt).dtype) for x in (q, k, v)]


def flash(shape: Shape, kv_shape: Shape, fmt: str, distribution: str, seed: int, splits: int = 1,
          gradients: int | None = None, **options) -> None:  # fmt: skip
    """Call FlashAttention-2's forward kernel, and its backward kernels with dO of the seed `gradients`."""
    from attention_check.gpu.flash_attn import Options, backward, forward

    q, k, v = drawn(shape, kv_shape, fmt, distribution, seed)
    chosen = Options(**options)
    o, lse = forward(q, k, v, chosen, gpu=GPU, splits=splits)
    if gradients is not None:
        torch.manual_seed(gradients)
        backward(torch.randn_like(o), (q, k, v), (o, lse), chosen, gpu=GPU)


def of_gallery(
    key: str, shape: Shape, kv_shape: Shape, fmt: str, distribution: str, causal: bool, gpu: str = ""
) -> None:
    """Call a GPU kernel of the gallery, compiled for the gallery's GPU, or for another one."""
    entry = MODELLED[key]
    kernel = kernels.get(f"attention_gallery.{entry.module}:{key}", gpu=gpu) if gpu else kernels.get(entry.name)
    tensors = drawn(shape, kv_shape, fmt, distribution, 5)
    if entry.module == "llama_cuda":  # has caches of FP16, which hold these values of BF16 exactly
        tensors = [x.half() for x in tensors]
    kernel(*tensors, **(dict(causal=True) if causal else {}))


def _flash_calls() -> Iterator[Call]:
    for fmt, causal, d in product(("BF16", "FP16"), (False, True), (64, 128)):
        yield from _both(f"{fmt} {d}{' causal' if causal else ''}", (2, 512, d), (2, 512, d), fmt, 0, causal=causal)
    for name, q, kv, fmt, more in (
        ("113 queries, 203 keys", (2, 113, 64), (2, 203, 64), "BF16", {}),
        ("113 queries, 203 keys, causal", (2, 113, 64), (2, 203, 64), "BF16", dict(causal=True)),
        ("4 heads share 1", (4, 256, 64), (1, 256, 64), "BF16", {}),
        ("window 100, 20", (2, 512, 64), (2, 512, 64), "BF16", dict(window=(100, 20))),
        ("split in 4", (2, 1, 64), (2, 2048, 64), "BF16", dict(splits=4)),
        ("split in 4", (2, 1, 64), (2, 2048, 64), "FP16", dict(splits=4)),
        ("split in 4, causal", (2, 64, 64), (2, 2048, 64), "BF16", dict(splits=4, causal=True)),
    ):
        yield from _both(f"{fmt} {name}", q, kv, fmt, 0, **more)
    for name, q, kv, fmt, more in (  # these had been run here before an H100 ran them
        ("4,096 keys", (1, 256, 64), (1, 4096, 64), "BF16", {}),
        ("4,096 keys", (1, 256, 64), (1, 4096, 64), "FP16", {}),
        ("128, 2,048 keys", (1, 256, 128), (1, 2048, 128), "BF16", {}),
        ("128, 2,048 keys", (1, 256, 128), (1, 2048, 128), "FP16", {}),
        ("1,024 causal", (1, 1024, 64), (1, 1024, 64), "BF16", dict(causal=True, gradients=9)),
        ("1,024 causal", (1, 1024, 64), (1, 1024, 64), "FP16", dict(causal=True, gradients=9)),
        ("32", (2, 512, 32), (2, 512, 32), "BF16", dict(gradients=9)),
        ("96 causal, 2 heads share 1", (2, 384, 96), (1, 384, 96), "BF16", dict(causal=True)),
        ("256", (1, 256, 256), (1, 256, 256), "FP16", {}),
        ("40, 99 queries, 333 keys", (2, 99, 40), (2, 333, 40), "BF16", {}),
        ("128 split in 6", (2, 16, 128), (2, 4096, 128), "BF16", dict(splits=6)),
        ("window 64, 0", (2, 512, 64), (2, 512, 64), "FP16", dict(window=(64, 0))),
    ):
        yield from _both(f"{fmt} {name}", q, kv, fmt, None, **more)


def _both(name, q, kv, fmt, seed, **more) -> Iterator[Call]:
    for distribution, other in (("uniform", 71), ("normal", 72)):
        at = other if seed is None else seed
        yield Call(f"flash-attn {name} {distribution}", partial(flash, q, kv, fmt, distribution, at, **more))


def _gallery_calls() -> Iterator[Call]:
    for key, entry in MODELLED.items():
        if not entry.module or key == "fa2_cuda" or entry.gpu != ON:  # others take tensor maps, which a driver makes
            continue
        for fmt, distribution, causal in OTHERWISE.get(key, CALLED):
            few = key in FEW_QUERIES and (causal or key != "flex_decode")
            n_q = 2 if few else 320 if causal or key in SQUARE else 160
            name = f"{key} {fmt} {distribution}{' causal' if causal else ''}"
            shapes = (2, n_q, 64), (2, 320, 64)
            yield Call(name, partial(of_gallery, key, *shapes, fmt, distribution, causal))
            if "triton" in entry.needs:  # its own code for Hopper, with wgmma
                yield Call(f"{name} {GPU}", partial(of_gallery, key, *shapes, fmt, distribution, causal, GPU))


CALLS = {call.key: call for call in (*_flash_calls(), *_gallery_calls())}


def launches(call: Call, folder: Path) -> list[Launch]:
    """Make a call, and return its launches; their files stay in a folder."""
    with recording(folder) as digests:
        call.run()
    return [Launch.load(folder / f"{digest}.npz") for digest in digests]


def results(key: str, number: int, launch: Launch, after: Sequence[np.ndarray]) -> list[dict]:
    """Make rows of what a launch wrote: call, launch and memory (which of them), dtype, bytes, sha."""
    rows = []
    for index, (before, data, dtype) in enumerate(zip(launch.memory, after, launch.dtypes)):
        if np.array_equal(before, data) or ATOMIC[0] in launch.entry and index == ATOMIC[1]:
            continue
        sha = hashlib.sha256(data.tobytes()).hexdigest()[:SHORT]
        rows.append(dict(call=key, launch=number, memory=index, dtype=dtype, bytes=data.size, sha=sha))
    return rows


def on_machine(keys: Iterable[str] = CALLS) -> pd.DataFrame:
    """Make calls on the machine: the rows of `results`."""
    rows = []
    for key in keys:
        with TemporaryDirectory() as folder:
            for number, launch in enumerate(launches(CALLS[key], Path(folder))):
                rows += results(key, number, launch, launch.on_machine(GPU))
    return pd.DataFrame(rows)


def keep(folder: Path) -> None:
    """Write the launches of all CALLS into a folder, <folder>/<call>/<launch>.npz, for a machine with a GPU."""
    for key, call in tqdm(CALLS.items(), unit="call"):
        place = folder / f"{list(CALLS).index(key)}"
        found = launches(call, place)
        (place / "call.json").write_text(json.dumps(dict(key=key, launches=[each.digest for each in found])))


def on_gpu(folder: Path, jobs: int = 8) -> pd.DataFrame:
    """Run the launches of `keep` on the GPU: the rows of `results`, and outcome; a launch that does not run has a row
    of its own."""
    rows = []
    for about in sorted(folder.glob("*/call.json")):
        call = json.loads(about.read_text())
        files = [about.parent / f"{digest}.npz" for digest in call["launches"]]
        outcomes = replay(files, about.parent / "after", jobs)
        for number, file in enumerate(files):
            launch, outcome = Launch.load(file), outcomes[file.stem]
            if outcome != "done":
                rows.append(dict(call=call["key"], launch=number, outcome=outcome))
                continue
            with np.load(about.parent / "after" / file.name) as changed:
                after = [changed[name] if (name := f"after{i}") in changed else x for i, x in enumerate(launch.memory)]
            rows += [row | dict(outcome=outcome) for row in results(call["key"], number, launch, after)]
    return pd.DataFrame(rows)


if __name__ == "__main__":
    keep(FOLDER)
