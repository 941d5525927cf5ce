"""Does `assert_attention_close` alarm on right kernels, and see wrong ones? `python -m benchmarks.tolerances` writes
data/tolerances.csv: small shapes, 1,000 seeds of each right kernel, 100 of each wrong one
(--seeds, --wrong).
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import pandas as pd
import torch

from attention_check.tolerance import tolerance
from fa_lib import kernels
from fa_lib.execution.files import replacing
from fa_lib.execution.paths import ROOT
from fa_lib.kernels.algorithm import Algorithm
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import BF16, FP16, FP32, Format, truncated

TABLE = ROOT / "data" / "tolerances.csv"
BLOCK = 16  # keys of a tile: with 256 keys, 16 tiles
RIGHT = ("uniform", "normal", "peaked", "flat", "repeated maxima", "one-signed V")
WRONG = ("uniform", "normal")
SHAPES = ((16, 256, False), (32, 97, False), (48, 48, True), (1, 256, False))  # queries, keys, causal
ROWS = 64  # queries that wrong kernels are asked for, with 256 keys


@dataclass(frozen=True)
class Kernel:
    """A kernel, and what it declares.

    Attributes:
        label: as the table has it. fmt: of the inputs. run: called run(q, k, v, **options).
        precision: that is declared. given: more arguments of `tolerance`.
    """

    label: str
    fmt: Format
    run: Callable
    precision: Precision
    given: dict


def right() -> Iterator[Kernel]:
    """Kernels that do what they declare."""
    tiling = Tiling(64, BLOCK)
    for fmt in (BF16, FP16, FP32):
        p = Precision.kernel(fmt)
        emulated = partial(kernels.tiled, precision=p, tiling=tiling)
        yield Kernel("torch's flash on CPU", fmt, kernels.flash, p, {})
        yield Kernel("tiled, FA2", fmt, emulated, p, {})
        yield Kernel("tiled, FA1", fmt, partial(emulated, algorithm="fa1"), p, {})
        yield Kernel("tiled, last tile first", fmt, partial(emulated, algorithm=Algorithm("fa2", reverse=True)), p, {})
        yield Kernel("tiled, 4 splits", fmt, partial(emulated, algorithm=Algorithm("fa2", splits=4)), p, {})
        own = Precision.materialized(fmt)
        given = dict(algorithm="baseline")
        yield Kernel("Baseline", fmt, partial(kernels.reference, precision=own), own, given)
        yield Kernel("PyTorch's unfused operations", fmt, kernels.unfused, own, given)
    for fmt in (BF16, FP16):  # a kernel that declares that it carries 16 bits is right as well
        p = Precision.uniform(fmt)
        for algorithm in ("fa1", "fa2"):
            run = partial(kernels.tiled, precision=p, tiling=tiling, algorithm=algorithm)
            label = f"every step in the format, declared, {algorithm.upper()}"
            yield Kernel(label, fmt, run, p, dict(algorithm=algorithm, block=BLOCK))


def wrong() -> Iterator[Kernel]:
    """Kernels that declare FP32 sums, and round otherwise, or mistake an option."""
    for fmt, low in ((BF16, BF16), (FP16, FP16), (FP32, BF16), (FP32, FP16)):
        p = Precision.kernel(fmt)

        def emulated(algorithm="fa2", p=p, **steps):
            return partial(kernels.tiled, precision=replace(p, **steps), tiling=Tiling(64, BLOCK), algorithm=algorithm)

        yield Kernel(f"O carried in {low}", fmt, emulated(accumulator=low), p, {})
        yield Kernel(f"l carried in {low}", fmt, emulated(row_sum=low), p, {})
        yield Kernel(f"O and l carried in {low}", fmt, emulated(accumulator=low, row_sum=low), p, {})
        yield Kernel(f"O and l carried in {low}, FA1", fmt, emulated("fa1", accumulator=low, row_sum=low), p, {})
        yield Kernel(f"scores in {low}", fmt, emulated(scores=low), p, {})
        if fmt != FP32:
            yield Kernel(f"P truncated to {low}", fmt, emulated(probs=truncated(low)), p, {})
            yield Kernel("no scale", fmt, partial(kernels.flash, scale=1.0), p, {})
            yield Kernel("causal, not asked for", fmt, partial(kernels.flash, causal=True), p, {})


def worst(kernel: Kernel, distribution: str, seed: int, shape: tuple[int, int, bool]) -> float:
    """The largest error of a call over its bound."""
    n_q, n_kv, causal = shape
    q, k, v = (kernel.fmt(x).to(kernel.fmt.dtype) for x in draw(distribution, seed, (1, 1, n_q, 64), (1, 1, n_kv, 64)))
    options = dict(causal=True) if causal else {}
    given = {name: x for name, x in kernel.given.items() if name != "block"}
    if "block" in kernel.given:
        given["tiles"] = -(-n_kv // kernel.given["block"])
    about = tolerance(q, k, v, precision=kernel.precision, **given, **options)
    return max(x.max().item() for x in about.times(kernel.run(q, k, v, **options)))


def measured(seeds: int, seeds_wrong: int) -> pd.DataFrame:
    """A row for each set, kernel, format and kind of inputs. A right kernel's seed is one call, of a distribution and a
    shape that take turns. times: the largest error over its bound, of wrong kernels its median; a number that stands by
    itself has no alarm among the right kernels, and only alarms among the wrong ones; else the calls that alarm are in
    brackets."""
    rows, settings = [], [(distribution, shape) for distribution in RIGHT for shape in SHAPES]
    for kernel in right():
        turns = ((seed, *settings[seed % len(settings)]) for seed in range(seeds))
        found = [worst(kernel, distribution, seed, shape) for seed, distribution, shape in turns]
        alarms = sum(not x <= 1 for x in found)
        more = f" ({alarms} of {seeds:,})" if alarms else ""
        rows.append(("right", kernel.label, f"{kernel.fmt}", "six kinds", f"{max(found):.2f}{more}"))
        print(*rows[-1], flush=True)
    for kernel, distribution in product(wrong(), WRONG):
        found = torch.tensor([worst(kernel, distribution, seed, (ROWS, 256, False)) for seed in range(seeds_wrong)])
        seen = int((found > 1).sum())
        more = "" if seen == seeds_wrong else f" ({seen} of {seeds_wrong})"
        rows.append(("wrong", kernel.label, f"{kernel.fmt}", distribution, f"{found.median().item():.3g}{more}"))
        print(*rows[-1], flush=True)
    return pd.DataFrame(rows, columns=["set", "kernel", "fmt", "inputs", "times"])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--wrong", type=int, default=100)
    given = parser.parse_args()
    with replacing(TABLE) as path:
        measured(given.seeds, given.wrong).to_csv(path, index=False)


if __name__ == "__main__":
    main()
