"""Dot: how the products of a dot product are summed. Float64 in and out, values on the grids of their formats.

A matrix product of the emulator is, by default, the exact sum, rounded once (`EXACT`). Processors do otherwise: they
round each addition in order (`SEQUENTIAL`), or, as GPUs do, truncate (`tensor_cores.TensorCore`).
Float64's own last bits of an exact sum belong to the machine; `DOUBLE_DOUBLE` defines them.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from fa_lib.numerics.formats import Format, FormatLike

VANISHES, FEW = -746.0, 1 << 12  # below it exp(x) is 0 in float64; values that are not looked through for such


class Dot:
    """A way to sum the products of a dot product.

    Attributes:
        has_gradients: whether its products may be any of a backward pass, and not only Q Kᵀ and P V.
    """

    has_gradients: ClassVar[bool] = True

    def __call__(
        self, a: Float64[Tensor, "... k"], b: Float64[Tensor, "... k"], c: Float64[Tensor, "..."] | None = None
    ) -> Float64[Tensor, "..."]:
        """Compute c + sum_k a_k b_k; c None is 0. The tensors broadcast. A ValueError: one is no float64, or does not
        fit."""
        for name, x in (("a", a), ("b", b), ("c", c)):
            if x is not None and x.dtype != torch.float64:
                raise ValueError(f"{name}: got {x.dtype}; accepted is torch.float64, with values of the format")
        if a.shape[-1] != b.shape[-1]:
            raise ValueError(f"b: got {b.shape[-1]} factors; accepted are as many as a's, {a.shape[-1]}")
        a, b = torch.broadcast_tensors(a, b)
        c = a.new_zeros(a.shape[:-1]) if c is None else c.expand(a.shape[:-1])
        rows = a.reshape(-1, 1, a.shape[-1]), b.reshape(-1, a.shape[-1], 1), c.reshape(-1, 1, 1)
        return self._on_cpu(*rows).reshape(a.shape[:-1])

    def matmul(
        self, A: Float64[Tensor, "... m k"], B: Float64[Tensor, "... k n"], C: Float64[Tensor, "... m n"] | None = None
    ) -> Float64[Tensor, "... m n"]:
        """Compute C + A B, each element as `__call__` does; C None is 0."""
        lead = np.broadcast_shapes(A.shape[:-2], B.shape[:-2])  # torch's imports sympy, for a third of a second
        m, n = A.shape[-2], B.shape[-1]
        C = A.new_zeros(*lead, m, n) if C is None else C.expand(*lead, m, n)
        A, B, C = (x.expand(*lead, *x.shape[-2:]).reshape(-1, *x.shape[-2:]) for x in (A, B, C))
        return self._on_cpu(A, B, C).reshape(*lead, m, n)

    def _on_cpu(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return self.summed(a.cpu(), b.cpu(), c.cpu()).to(a.device)

    def scores(self, Q: Float64[Tensor, "... m d"], K: Float64[Tensor, "... n d"]) -> Float64[Tensor, "... m n"]:
        """Compute Q Kᵀ, float64 (..., m, n), of Q (..., m, d) and K (..., n, d). P V is a `matmul`: a Dot may quantise
        the operands of each product in its own way."""
        return self.matmul(Q, K.mT)

    def summed(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Compute c + a b (batch, m, n) of tensors on the CPU; a: (batch, m, k), b: (batch, k, n), c: (batch, m, n).

        Raises:
            NotImplementedError: the subclass does not define it.
        """
        raise NotImplementedError

    def totals(self, P: Tensor) -> Tensor:
        """Sum each row, (..., keys) -> (..., 1): exact, but for float64's own last bits."""
        return P.sum(-1, keepdim=True)

    def exp_(self, x: Tensor) -> Tensor:
        """Compute exp(x) of x's shape, and overwrite x. It is torch's exp, whose last bit of float64 changes with the
        processor's instructions."""
        if not x.is_cpu or x.numel() < FEW or not x.amin() < VANISHES:
            return torch.exp_(x)
        hidden = x < VANISHES  # on a CPU, torch takes twenty times as long and more where exp(x) is 0
        return x.masked_fill_(hidden, 0.0).exp_().masked_fill_(hidden, 0.0)


@dataclass(frozen=True)
class Exact(Dot):
    """The exact sum, but for float64's own last bits: whoever stores it rounds it, once."""

    def matmul(self, A: Tensor, B: Tensor, C: Tensor | None = None) -> Tensor:
        """Compute C + A B, (..., m, n), as `Dot.matmul`."""
        return A @ B if C is None else C + A @ B

    def summed(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Compute c + a b, (batch, m, n), as `Dot.summed`."""
        return c + a @ b


@dataclass(frozen=True)
class DoubleDouble(Dot):
    """The sum with twice float64's bits, added up in order and rounded to float64 once. Row sums too, and exp is good
    to 2**-98 before it is rounded; so that attention has the same bits on any machine, in FP64 and in FP32. What a
    softcap, merged splits, a folded scale and the backward pass take from torch (tanh, exp, exp2) stays the machine's.
    Factors of 2**996 and more overflow where they are split, and give NaN.
    """

    def summed(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Compute c + a b, (batch, m, n), as `Dot.summed`."""
        from fa_lib.numerics import double_double, sum_loops

        return sum_loops.threaded(double_double.rounded, a, b, c)

    def totals(self, P: Tensor) -> Tensor:
        """Sum each row, (..., keys) -> (..., 1), in double-double."""
        return self.matmul(P.new_ones(1, P.shape[-1]), P.mT).mT

    def exp_(self, x: Tensor) -> Tensor:
        """Compute exp(x) of x's shape, rounded from double-double; x is not overwritten."""
        from fa_lib.numerics import double_double

        values = x.cpu().contiguous().numpy()  # of any device: there is no other exp of so many bits
        high, _ = double_double.exp(values, np.zeros_like(values))
        return torch.from_numpy(high).to(x.device)


@dataclass(frozen=True)
class Ordered(Dot):
    """Every product and every addition is rounded to a format, in order, c first.

    Attributes:
        fmt: the Format.

    Raises:
        ValueError: the format is not rounded to nearest.
    """

    fmt: Format

    def __post_init__(self):
        if self.fmt.mode != "nearest":
            raise ValueError(f"fmt: got {self.fmt}, rounded {self.fmt.mode}; accepted is a format rounded to nearest")

    def summed(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Compute c + a b, (batch, m, n), as `Dot.summed`."""
        from fa_lib.numerics import sum_loops

        return sum_loops.threaded(sum_loops.sequential, a, b, c, self.fmt.grid)


EXACT, DOUBLE_DOUBLE = Exact(), DoubleDouble()


def SEQUENTIAL(fmt: FormatLike) -> Ordered:
    """Make the Dot that rounds each product and addition to fmt, in order: as one thread of a processor without fused
    multiply-add does."""
    return Ordered(Format.of(fmt))
