"""What is promised of speed, each measured as a ratio in one run: `make bench`.

The two sides of a ratio take turns, and each counts with its fastest turn: what else the machine does only slows.
"""

import argparse
import platform
import time
from types import SimpleNamespace

import gfloat
import gfloat.formats
import numpy as np
import torch
from scipy.stats import wasserstein_distance

from fa_lib import BF16, Precision, Tiling, draw, kernels, round_to, wasserstein


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


def tiled_to_its_products(n=4096, heads=4):
    """`tiled`, uniform BF16, FA1, B_c = 64, over the two float64 matrix products it contains."""
    q, k, v = draw("uniform", 0, (1, heads, n, 64))
    p = Precision.uniform(BF16)
    return ratio(
        lambda: kernels.tiled(q, k, v, tiling=Tiling(64, 64), precision=p, algorithm="fa1"), lambda: (q @ k.mT) @ v
    )


def tiled_to_gfloat(n=1024, heads=4):
    """The same with gfloat's rounding over ours."""
    q, k, v = draw("uniform", 0, (1, heads, n, 64))
    p = Precision.uniform(BF16)
    info = gfloat.formats.format_info_bfloat16

    def slow(x):
        return torch.from_numpy(np.asarray(gfloat.round_ndarray(info, x.numpy())))

    by_gfloat = SimpleNamespace(**dict.fromkeys(p.__dataclass_fields__, slow))
    call = dict(tiling=Tiling(64, 64), algorithm="fa1")
    one, other = (lambda p=p: kernels.tiled(q, k, v, precision=p, **call) for p in (by_gfloat, p))
    with np.errstate(all="ignore"):
        assert torch.equal(one(), other())
        return ratio(one, other, turns=3)


def round_to_a_copy(count=1 << 24):
    """`round_to` BF16 over a float64 copy."""
    x = torch.randn(count, dtype=torch.float64)
    return ratio(lambda: round_to(x, BF16), x.clone)


def wasserstein_to_scipy(count=10_000_000):
    """scipy's Wasserstein distance over ours, float32 pairs."""
    a, b = torch.randn(2, count)
    assert np.isclose(wasserstein(a, b), wasserstein_distance(a.double().numpy(), b.double().numpy()), rtol=1e-9)
    return ratio(lambda: wasserstein_distance(a.numpy(), b.numpy()), lambda: wasserstein(a, b), turns=2)


BENCHMARKS = (
    ("tiled / its two float64 matrix products", "N = 4096, 4 heads, d = 64, B_c = 64", tiled_to_its_products, "<= 2.5"),
    ("tiled with gfloat's rounding / tiled", "N = 1024, 4 heads, d = 64, B_c = 64", tiled_to_gfloat, ">= 25"),
    ("round_to BF16 / float64 copy", "16.8 M values", round_to_a_copy, "<= 2"),
    ("scipy's wasserstein_distance / wasserstein", "10 M float32 pairs", wasserstein_to_scipy, ">= 30"),
)


def main():
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    threads, code = torch.get_num_threads(), torch.backends.cpu.get_cpu_capability()
    print(f"{platform.machine()}, {code}, {threads} threads, torch {torch.__version__}\n")
    print("| ratio | size | promised | measured | seconds |\n|---|---|---|---|---|")
    for name, size, benchmark, promised in BENCHMARKS:
        value, ours, other = benchmark()
        print(f"| {name} | {size} | {promised} | {value:.2f} | {ours:.3f} / {other:.3f} |", flush=True)


if __name__ == "__main__":
    main()
