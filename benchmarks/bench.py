"""What is promised of speed, each measured as a ratio in one run: `make bench`, written to build/bench.md.

The two sides of a ratio take turns, and each counts with its fastest turn: what else the machine does only slows.
"""

import operator
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import torch
from scipy.stats import wasserstein_distance

from attention_check.gpu.flash_attn import forward
from attention_check.isolation.isolated_kernel import isolated
from attention_check.measure.examine import examine
from fa_lib import BF16, Precision, Tiling, draw, kernels, round_to, wasserstein
from fa_lib.execution.files import replacing
from fa_lib.execution.machine import processor
from fa_lib.execution.paths import build
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.numerics.dots import EXACT
from fa_lib.numerics.tensor_cores import TensorCore


def ratio(ours, other, turns=5):
    """Fastest time of `ours` over the fastest of `other`, and the two in seconds."""
    times = []
    for _ in range(turns):
        for f in (ours, other):
            start = time.perf_counter()
            f()
            times.append(time.perf_counter() - start)
    a, b = min(times[::2]), min(times[1::2])
    return a / b, a, b


def tiled_to_its_products(products=EXACT, n=4096, heads=4):
    """`tiled`, uniform BF16, FA1, B_c = 64, products summed by `products`, over its two float64 products."""
    q, k, v = draw("uniform", 0, (1, heads, n, 64))
    p = replace(Precision.uniform(BF16), products=products)
    return ratio(
        lambda: kernels.tiled(q, k, v, tiling=Tiling(64, 64), precision=p, algorithm="fa1"), lambda: (q @ k.mT) @ v
    )


def tensor_core_to_its_products():
    """The same with products summed as an H100 sums them."""
    return tiled_to_its_products(TensorCore.of("H100", BF16))


def backward_to_its_products(n=4096, heads=4):
    """The backward pass of the same, over the five float64 matrix products it contains."""
    q, k, v = (x.requires_grad_() for x in draw("uniform", 0, (1, heads, n, 64)))
    o = kernels.tiled(q, k, v, tiling=Tiling(64, 64), precision=Precision.uniform(BF16), algorithm="fa1")
    dO = torch.ones_like(o)

    @torch.no_grad()
    def products():
        S, dP = q @ k.mT, dO @ v.mT
        return S.mT @ dO, dP @ k, dP.mT @ q

    return ratio(lambda: torch.autograd.grad(o, (q, k, v), dO, retain_graph=True), products, turns=3)


LONG = """
import ctypes, re, sys, time, torch
from fa_lib import BF16, Precision, Tiling, draw, kernels
from fa_lib.numerics.rounding_loops import nearest_loop
call = dict(tiling=Tiling(64, 64), precision=Precision.uniform(BF16), algorithm="fa1")
kernels.tiled(*draw("normal", 0, (1, 1, 1024, 64)), **call)
nearest_loop(True)  # numba's 140 MB come once a process, where much is rounded
n, heads = map(int, sys.argv[1:])
q, k, v = draw("normal", 0, (1, heads, n, 64))
ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back, else the peak would hide in it
open("/proc/self/clear_refs", "w").write("5")  # Linux forgets the peak so far
megabytes = lambda name: int(re.search(name + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
before, start = megabytes("VmRSS"), time.perf_counter()
o = kernels.tiled(q, k, v, **call)
print(time.perf_counter() - start, megabytes("VmHWM") - before - o.numel() * 8 / 2**20)
"""  # of N and heads: seconds, and megabytes beyond the inputs and the output


def long_sequence(n=65_536):
    """`tiled` on one head of N = 65,536, every score: megabytes beyond the inputs and the output, and seconds."""
    run = subprocess.run([sys.executable, "-c", LONG, str(n), "1"], capture_output=True, text=True, check=True)
    seconds, megabytes = map(float, run.stdout.split())
    assert megabytes > 0, f"memory was not measured: {megabytes} MB"
    return megabytes, seconds, float("nan")


def round_to_a_copy(count=1 << 24):
    """`round_to` BF16 over a float64 copy."""
    x = torch.randn(count, dtype=torch.float64)
    return ratio(lambda: round_to(x, BF16), x.clone)


def wasserstein_to_scipy(count=10_000_000):
    """scipy's Wasserstein distance over ours, float32 pairs."""
    a, b = torch.randn(2, count)
    assert np.isclose(wasserstein(a, b), wasserstein_distance(a.double().numpy(), b.double().numpy()), rtol=1e-9)
    return ratio(lambda: wasserstein_distance(a.numpy(), b.numpy()), lambda: wasserstein(a, b), turns=2)


IMPORT = "import time; s = time.perf_counter(); import torch{}; print(time.perf_counter() - s)"


def import_to_torchs():
    """fa_lib's kernels, torch with them, over `import torch`; `import fa_lib` alone imports neither."""

    def seconds(more):
        done = subprocess.run([sys.executable, "-c", IMPORT.format(more)], capture_output=True, text=True, check=True)
        return float(done.stdout)

    pairs = [(seconds(", fa_lib.kernels"), seconds("")) for _ in range(5)]
    ours, torchs = (min(times) for times in zip(*pairs))
    return ours / torchs, ours, torchs


def apart_to_here(kernel="examples.my_kernel:attention"):
    """`examine` at QUICK of a kernel in a separate process, with the time until that is there, over the same here.
    Run from the repository's root."""

    def apart():
        with isolated(KernelRef.of(kernel)) as subject:
            examine(subject)

    return ratio(apart, lambda: examine(kernel), turns=3)


def original_kernel(n=4096):
    """Seconds of FlashAttention-2's own kernel on one thread, compiled and read before; NaN without nvcc."""
    q, k, v = (torch.randn(1, 1, n, 64).bfloat16() for _ in range(3))
    threads, times = torch.get_num_threads(), []
    torch.set_num_threads(1)
    try:
        for _ in range(3):
            start = time.perf_counter()
            forward(q, k, v, gpu="A100", splits=1)
            times.append(time.perf_counter() - start)
    except FileNotFoundError:  # the extra `gpu` is not installed
        times.append(float("nan"))
    finally:
        torch.set_num_threads(threads)
    return min(times), min(times), float("nan")


SIZE = "N = 4096, 4 heads, d = 64, B_c = 64"
BENCHMARKS = (
    ("tiled FA1 / its two float64 matrix products", SIZE, tiled_to_its_products, "<= 1.5"),
    ("the same with an H100's sums / its two products", SIZE, tensor_core_to_its_products, "<= 40"),
    ("its backward pass / its five float64 products", SIZE, backward_to_its_products, "<= 2.5"),
    ("MB beyond inputs and output", "tiled FA1, N = 65,536, 1 head, d = 64, B_c = 64", long_sequence, "< 160"),
    ("round_to BF16 / float64 copy", "16.8 M values", round_to_a_copy, "<= 1.5"),
    ("scipy's wasserstein_distance / wasserstein", "10 M float32 pairs", wasserstein_to_scipy, ">= 50"),
    ("a check of a kernel in a separate process / in this one", "QUICK, examples.my_kernel", apart_to_here, "<= 1.3"),
    ("import fa_lib.kernels / import torch", "fastest of 5", import_to_torchs, "<= 1.3"),
    ("s, FlashAttention-2's own CUDA kernel", "N = 4096, 1 head, d = 64, A100, one thread", original_kernel, "<= 30"),
)


KEPT = {"<": operator.lt, "<=": operator.le, ">=": operator.ge}


def holds(value, promised):
    """In words, whether a value is as promised: "<= 1.5"; "" where nothing is."""
    if not promised or np.isnan(value):
        return "not measured" if promised else ""
    word, limit = promised.split()
    return "yes" if KEPT[word](value, float(limit)) else "**no**"


def main():
    threads, code = torch.get_num_threads(), torch.backends.cpu.get_cpu_capability()
    lines = [
        f"Made by `make bench`: {processor()}, {code}, {threads} threads, torch {torch.__version__}.\n",
        "| ratio | size | promised | measured | kept | seconds |\n|---|---|---|---|---|---|",
    ]
    print(*lines, sep="\n")
    for name, size, benchmark, promised in BENCHMARKS:
        value, ours, other = benchmark()
        seconds = f"{ours:.3f}" + ("" if np.isnan(other) else f" / {other:.3f}")
        kept = holds(value, promised)
        lines.append(f"| {name} | {size} | {promised} | {value:.2f} | {kept} | {seconds} |")
        print(lines[-1], flush=True)
    with replacing(build() / "bench.md") as path:
        path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
