"""fa_lib beside other libraries that do a part of what it does: `make peers`, written to build/peers.md.

Both sides of a line get the same values, each counts with its fastest turn, and the results are compared: a library
that is faster and rounds otherwise is no peer. The process is held to one processor.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import flint
import gfloat.formats
import gmpy2
import ml_dtypes
import numpy as np
import ot
import pychop
import torch
from mmasim.nv_ptx.sim import MMA
from scipy.stats import wasserstein_distance

from benchmarks.bench import ratio
from fa_lib import BF16, FP64, kernels, round_to, wasserstein
from fa_lib.execution.files import replacing
from fa_lib.execution.machine import processor
from fa_lib.execution.paths import build
from ptx_machine.device import GPU

BITS = 200  # of MPFR and Arb


@dataclass(frozen=True)
class Line:
    """One library beside fa_lib.

    Attributes:
        task, peer: what is done, and by whom. size: how much of it.
        ours, theirs: seconds. agreement: of the two results, in words.
    """

    task: str
    peer: str
    size: str
    ours: float
    theirs: float
    agreement: str

    def __str__(self):
        times = self.theirs / self.ours
        return (
            f"| {self.task} | {self.peer} | {self.size} | {self.ours:.2g} | {self.theirs:.2g} | {times:.3g} | "
            f"{self.agreement} |"
        )


HEAD = (
    "| task | other library | size | fa_lib, s | other, s | other / fa_lib | the results |\n"
    "|---|---|---|---|---|---|---|"
)


def rounding(count: int = 1 << 20) -> Iterator[Line]:
    """float64 to BF16 and back, to nearest even."""
    x = torch.randn(count, dtype=torch.float64)
    a = x.numpy()
    chop = pychop.Chop(exp_bits=8, sig_bits=7)
    peers: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        f"ml_dtypes {ml_dtypes.__version__}": lambda x: x.astype(ml_dtypes.bfloat16).astype(np.float64),
        f"torch {torch.__version__}": lambda x: torch.from_numpy(x).bfloat16().double().numpy(),
        "gfloat": lambda x: gfloat.round_ndarray(gfloat.formats.format_info_bfloat16, x),
        f"pychop {pychop.__version__}": lambda x: np.asarray(chop(x)),
    }
    hard = hard_to_round()
    own_hard = round_to(torch.from_numpy(hard), BF16).numpy()
    for peer, theirs in peers.items():
        _, other, own = ratio(lambda f=theirs: f(a), lambda: round_to(x, BF16))
        differ = int((theirs(hard) != own_hard).sum())
        agreement = f"{differ:,} of {hard.size:,} hard values differ"
        yield Line("round float64 to BF16", peer, f"{count:,} values", own, other, agreement)


def hard_to_round(count: int = 1 << 16) -> np.ndarray:
    """float64 values at and beside the middle between two BF16 numbers, of all exponents: a rounding by way of FP32
    takes many of them for the middle itself. (5 count,)."""
    bits = np.random.default_rng(0).integers(1, 0x7F80, count).astype(np.uint32)
    low, high = ((bits + i << 16).view(np.float32).astype(np.float64) for i in (0, 1))
    middle = np.where(np.isfinite(high), (low + high) / 2, low)
    beside = np.concatenate([middle, *(middle * (1 + sign * 2.0**-e) for sign in (-1, 1) for e in (30, 50))])
    return np.where(np.random.default_rng(1).random(beside.size) < 0.5, beside, -beside)


def tensor_cores(rows: int = 1 << 16) -> Iterator[Line]:
    """Sums of 16 products of BF16 in FP32, as an H100's mma.sync makes them."""
    a, b = torch.randn(2, rows, 16).bfloat16()
    c = torch.randn(rows)
    ours, theirs = GPU.of("H100").core("bf16", "f32", "mma.sync"), MMA("Hopper", "m16n8k16.f32.bf16.bf16.f32")
    wide = a.double(), b.double(), c.double()
    _, other, own = ratio(lambda: theirs.dpa(a, b, c), lambda: ours(*wide), turns=3)
    same = torch.equal(ours(*wide), theirs.dpa(a, b, c).double().reshape(rows))
    yield Line("sum 16 products as an H100 does", "mmasim", f"{rows:,} sums", own, other, "equal" if same else "differ")


INTERPRETED = """
import sys, time, torch
torch.set_num_threads(1)
from fa_lib import FP16, kernels
kernel = kernels.get("examples.triton_attention:attention", *sys.argv[2:])
q, k, v = torch.randn(3, 1, 4, int(sys.argv[1]), 64, generator=torch.Generator().manual_seed(0)).half()
kernel(q, k, v)
times = []
for _ in range(3):
    start = time.perf_counter(); o = kernel(q, k, v); times.append(time.perf_counter() - start)
o = o.double()
print(min(times), (o - kernels.golden(q, k, v, inputs=FP16)).abs().max().item())
"""


def triton(n: int = 256) -> Iterator[Line]:
    """A Triton kernel on a CPU: in an H100's arithmetic, and in Triton's own interpreter."""

    def run(*gpu: str, **environment: str) -> tuple[float, float]:
        words = [sys.executable, "-c", INTERPRETED, str(n), *gpu]
        done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **environment}, check=True)
        seconds, error = map(float, done.stdout.split())
        return seconds, error

    (own, our_error), (other, their_error) = run("H100"), run(TRITON_INTERPRET="1")
    agreement = f"error {our_error:.2g} and {their_error:.2g}"
    yield Line("run a Triton attention kernel", "Triton's interpreter", f"4 heads, N = {n}", own, other, agreement)


def golden(n: int = 1024, rows: int = 2) -> Iterator[Line]:
    """The golden value of attention, in float64 here and with 200 bits."""
    q, (k, v) = torch.randn(1, 1, rows, 64).double(), torch.randn(2, 1, 1, n, 64).double()
    ours = kernels.golden(q, k, v, inputs=FP64)[0, 0].numpy()
    lists = [x[0, 0].tolist() for x in (q, k, v)]
    peers = {f"MPFR (gmpy2 {gmpy2.version()})": by_mpfr, f"Arb (python-flint {flint.__version__})": by_arb}
    for peer, theirs in peers.items():
        _, other, own = ratio(lambda f=theirs: f(*lists), lambda: kernels.golden(q, k, v, inputs=FP64), turns=2)
        far = np.abs(ours - np.array(theirs(*lists))).max() / np.abs(ours).max()
        agreement = f"{far:.1g} of the largest apart"
        yield Line("the golden value", peer, f"{rows} queries, {n:,} keys", own, other, agreement)


def by_mpfr(q: list, k: list, v: list) -> list[list[float]]:
    """Attention in MPFR's numbers of BITS bits."""
    with gmpy2.context(gmpy2.get_context(), precision=BITS):
        scale, V = gmpy2.mpfr(len(q[0])) ** -0.5, [[gmpy2.mpfr(x) for x in row] for row in v]
        K = [[gmpy2.mpfr(x) for x in row] for row in k]
        found = []
        for row in q:
            S = [gmpy2.fsum([x * y for x, y in zip(row, key)]) * scale for key in K]
            m = max(S)
            P = [gmpy2.exp(s - m) for s in S]
            l = gmpy2.fsum(P)
            found.append([float(gmpy2.fsum([p * x for p, x in zip(P, column)]) / l) for column in zip(*V)])
        return found


def by_arb(q: list, k: list, v: list) -> list[list[float]]:
    """Attention in Arb's balls of BITS bits."""
    flint.ctx.prec = BITS
    S = flint.arb_mat(q) * flint.arb_mat(k).transpose() * (1 / flint.arb(len(q[0])).sqrt())
    P = flint.arb_mat([[x.exp() for x in row] for row in S.tolist()])
    O, l = (P * flint.arb_mat(v)).tolist(), [sum(row, flint.arb(0)) for row in P.tolist()]
    return [[float(x / total) for x in row] for row, total in zip(O, l)]


def distances(count: int = 1 << 20) -> Iterator[Line]:
    """The Wasserstein distance of two sets of FP32 numbers."""
    a, b = torch.randn(2, count)
    x, y = a.numpy(), b.numpy()
    ours = wasserstein(a, b)
    for peer, theirs in (
        ("scipy", lambda: wasserstein_distance(x, y)), (f"POT {ot.__version__}", lambda: ot.wasserstein_1d(x, y)),
    ):  # fmt: skip
        _, other, own = ratio(theirs, lambda: wasserstein(a, b), turns=3)
        far = abs(float(theirs()) / ours - 1)
        yield Line("the Wasserstein distance", peer, f"{count:,} pairs", own, other, f"{far:.1g} apart, relative")


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):  # Linux
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    lines = [f"Made by `make peers`: {processor()}, one core.\n", HEAD]
    print(*lines, sep="\n")
    for task in (rounding, tensor_cores, triton, golden, distances):
        for line in task():
            lines.append(str(line))
            print(line, flush=True)
    with replacing(build() / "peers.md") as path:
        path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
