"""How a tensor core adds: the rule as a model, and how often a function equals it. (`probes` finds its numbers.)

An `mma` here is a function (a, b, c) -> d with d_i = c_i + sum_k a_ik b_ik: a, b float64 of shape (n, k) on the grid
of the input format, c float64 of shape (n,) on the result's grid, d float32 of shape (n,).

The model is `fa_lib.numerics.tensor_cores.TensorCore`, and its docstring the rule. Subnormal operands count as
normalised here: a Rule knows no format of inputs. Sources: arXiv 2511.10909 and 2512.07004, which measured it on V100
to B200.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from fa_lib.numerics.formats import FP16, FP32, FP64, Format
from fa_lib.numerics.tensor_cores import E8M13, TensorCore

Mma = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
RESULTS = {fmt.name: fmt for fmt in (FP32, E8M13, FP16)}
RESULT_BITS = {name: fmt.precision for name, fmt in RESULTS.items()}


@dataclass(frozen=True)
class Rule:
    """The rule's numbers for one instruction; a call, (a, b, c) -> d as of an `mma`, computes the model's sums.

    Attributes:
        block: products added in one step.
        fraction_bits: F, the bits that are kept below the largest exponent.
        result: a key of RESULTS: "FP32", "E8M13" (FP32's exponents, 13 fraction bits) or "FP16", the last rounded to
            nearest.
        order: the products' positions in the order in which they are added; None: 0, 1, 2 and so on.
        c_last: the products start from zero, and c is added to their sum in FP32, to nearest.
    """

    block: int
    fraction_bits: int
    result: str = "FP32"
    order: tuple[int, ...] | None = None
    c_last: bool = False

    def __call__(self, a, b, c):
        order = slice(None) if self.order is None else list(self.order)
        start = np.zeros_like(c) if self.c_last else c
        core = TensorCore("", FP64, self.block, self.fraction_bits, RESULTS[self.result], self.result == FP16.name)
        parts = (torch.from_numpy(np.array(x, np.float64)) for x in (a[:, order], b[:, order], start))
        d = core(*parts).numpy().astype(np.float32)
        return d + np.float32(c) if self.c_last else d


def correctly_rounded(a, b, c, result="FP32"):
    """Compute the exact sums, rounded once to FP32 or FP16, to nearest.

    Args:
        a, b: float64 (n, k). c: float64 (n,). result: "FP32" or "FP16", the format.

    Returns:
        d: float32 (n,).
    """

    def total(terms):
        near = math.fsum(terms)  # rounded to FP64; made odd where it is inexact, the next rounding is innocuous
        rest = math.fsum([*terms, -near])
        even = np.float64(near).view(np.int64) % 2 == 0
        return math.nextafter(near, math.copysign(math.inf, rest)) if rest and even else near

    return (
        np.array([total(row) for row in np.column_stack([a * b, c]).tolist()]).astype(_type(result)).astype(np.float32)
    )


def _type(result):
    return np.float16 if result == "FP16" else np.float32


# ---- vectors and verdict -------------------------------------------------------------------------------------------


def vectors(k, fmt, n, seed, result="FP32"):
    """Draw n random problems (a, b, c).

    Exponents of a and b spread over 1, 3, 9 or 25 values (where the format has them) around 1; in every third problem
    half of the products, except one, are the negatives of the other half; in half of the problems c is zero.

    Args:
        k: products. fmt: the format of a and b (anything `Format.of` takes). n: problems. seed: of the draw.
        result: the format of c, a key of RESULTS.

    Returns:
        a, b: float64 (n, k), on fmt's grid. c: float64 (n,), on the result's.
    """
    fmt, rng = Format.of(fmt), np.random.default_rng(seed)
    widest = 4 if result == "FP16" else 12
    spread = np.minimum(rng.choice([0, 1, 4, widest], n), min(-fmt.emin, fmt.emax - 1))

    def on_grid(shape, bits, reach):
        mantissas = rng.integers(2 ** (bits - 1), 2**bits, shape) * rng.choice([-1.0, 1.0], shape)
        return np.ldexp(mantissas, np.rint(rng.uniform(-1, 1, shape) * reach).astype(int) - bits + 1)

    a, b = (on_grid((n, k), fmt.precision, spread[:, None]) for _ in range(2))
    cancelling, half = np.arange(n) % 3 == 0, k // 2
    a[cancelling, 1:half] = a[cancelling, half + 1 : 2 * half]
    b[cancelling, 1:half] = -b[cancelling, half + 1 : 2 * half]
    places = rng.permuted(np.tile(np.arange(k), (n, 1)), axis=1)
    a, b = np.take_along_axis(a, places, 1), np.take_along_axis(b, places, 1)
    c = np.where(np.arange(n) // 3 % 2 == 0, 0.0, on_grid(n, 11 if result == "FP16" else 24, spread))
    return a, b, c


def verdict(mma: Mma, k, fmt, rule, n=10_000, seed=0):
    """Count how often an `mma` equals a model, and the correctly rounded sum, bit for bit, on `vectors`.

    Args:
        mma: (a, b, c) -> d; a, b: float64 (n, k); c: float64 (n,); d: float32 (n,). k: products.
        fmt: the format of a and b. rule: the model, a Rule. n, seed: as of `vectors`.

    Returns:
        dict: vectors, n; model, model_c_zero, model_c_not_zero and correctly_rounded, shares from 0 to 1 (model_c_zero:
        of the vectors whose c is zero); mean_ulp, the mean of |d| - |correctly rounded| in units in the last place of
        the result (FP32 or FP16), over the vectors whose sum is no smaller than its largest term: negative where d is
        too close to zero.
    """
    a, b, c = vectors(k, fmt, n, seed, rule.result)
    d, model, right = np.asarray(mma(a, b, c), np.float32), rule(a, b, c), correctly_rounded(a, b, c, rule.result)
    equal = d == model
    uncancelled = abs(right) >= np.maximum(abs(a * b).max(axis=1), abs(c))
    ulps = (abs(d.astype(np.float64)) - abs(right)) / np.spacing(abs(right).astype(_type(rule.result)))
    return {
        "vectors": n,
        "model": float(equal.mean()),
        "model_c_zero": float(equal[c == 0].mean()),
        "model_c_not_zero": float(equal[c != 0].mean()),
        "correctly_rounded": float((d == right).mean()),
        "mean_ulp": float(ulps[uncancelled].mean()),
    }


# On sm_90 mma.sync has no FP8 of its own. nvcc 13.0 converts to FP16 and makes two instructions of 16 products: first
# bytes 0 and 1 of each 4, from zero, then bytes 2 and 3; an FADD adds c at the end. (Seen in the machine code.)
PAIRS_OF_FOUR = tuple(k for first in (0, 2) for k in range(32) if k % 4 in (first, first + 1))
# H100 and H200, by the sources above: FP16, BF16, TF32 equal on all vectors measured there (TF32: of 4 products), FP8
# on all with c = 0. Not measured: the FP16 result (rounded as the sources say, block and F as with FP32), and FP8 of
# mma.sync (put together from FP16's row).
EXPECTED = {
    "mma_fp16": Rule(16, 25),
    "mma_bf16": Rule(16, 25),
    "mma_tf32": Rule(8, 25),
    "mma_e4m3": Rule(16, 25, order=PAIRS_OF_FOUR, c_last=True),
    "mma_e5m2": Rule(16, 25, order=PAIRS_OF_FOUR, c_last=True),
    "mma_fp16_fp16": Rule(16, 25, "FP16"),
    "wgmma_fp16": Rule(16, 25),
    "wgmma_bf16": Rule(16, 25),
    "wgmma_tf32": Rule(8, 25),
    "wgmma_e4m3": Rule(32, 13, "E8M13"),
    "wgmma_e5m2": Rule(32, 13, "E8M13"),
}
