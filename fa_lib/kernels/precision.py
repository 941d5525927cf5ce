"""Precision: which number format each step of attention is rounded to, and how its matrix products are summed."""

from dataclasses import dataclass, fields, replace
from typing import Any

from fa_lib.numerics.dots import EXACT, Dot
from fa_lib.numerics.formats import FP32, Format, FormatLike


@dataclass(frozen=True)
class Precision:
    """A Format for each step. Calling a step rounds: `p.probs(x)` is `round_to(x, p.probs)`.

    Attributes:
        inputs: Q, K, V as loaded.
        scores: S = scale * Q Kᵀ, the mask added; in the backward pass dP = dO Vᵀ.
        exponent: S - m, its exponential, and the division of softmax where the algorithm has one; in the backward
            pass dP - delta.
        probs: P as handed to P V.
        maximum: the row maximum m.
        factors: exp(m - m'), by which O and l are rescaled.
        row_sum: the row sum l, and the log-sum-exp made of it.
        accumulator: O, its rescale, and P V.
        output: O as stored, and dQ, dK, dV.
        grads: dS as handed to dS K and dSᵀ Q. (dP is a product like S, and rounded as `scores`.)
        delta: rowsum(dO ∘ O).
        grad_sums: dQ, dK and dV while tiles are added to them. (torch's CPU kernel holds them in the inputs' format.)
        products: the Dot by which Q Kᵀ, P V and the five products of the backward pass are summed. Its result is then
            rounded as the step says. With DOUBLE_DOUBLE row sums and exponentials of the forward pass, too, are the
            same on any machine.

    Every Format's field takes what `Format.of` takes. `dataclasses.replace(p, accumulator=BF16)` changes one step.

    Raises:
        ValueError: a field is no format, or products is no Dot.
    """

    inputs: Format
    scores: Format
    exponent: Format
    probs: Format
    maximum: Format
    factors: Format
    row_sum: Format
    accumulator: Format
    output: Format
    grads: Format
    delta: Format
    grad_sums: Format
    products: Dot = EXACT

    def __post_init__(self):
        if not isinstance(self.products, Dot):
            raise ValueError(f"products: got {self.products!r}; accepted is a Dot, such as dots.EXACT")
        for name in self.steps():
            object.__setattr__(self, name, Format.of(getattr(self, name)))

    @classmethod
    def steps(cls) -> tuple[str, ...]:
        """List the names of the fields that are Formats."""
        return tuple(field.name for field in fields(cls) if field.name != "products")

    @classmethod
    def uniform(cls, fmt: FormatLike) -> "Precision":
        """Put every step in `fmt`, as the re-implementation of arXiv 2405.02803 does."""
        formats: dict[str, Any] = dict.fromkeys(cls.steps(), Format.of(fmt))
        return cls(**formats)

    @classmethod
    def materialized(cls, fmt: FormatLike) -> "Precision":
        """Put the matrices S, P and O in `fmt`, and the inside of softmax and of matrix products, the scale among it,
        in FP32 (in `fmt` where that is wider): PyTorch's unfused attention, the paper's Baseline."""
        return replace(cls.kernel(fmt), scores=Format.of(fmt))

    @classmethod
    def kernel(cls, fmt: FormatLike) -> "Precision":
        """Put Q, K, V, P and the output in `fmt`, and scores, row statistics and the output accumulator in FP32 (in
        `fmt` where that is wider), as flash kernels as shipped do."""
        fmt = Format.of(fmt)
        wide = fmt if fmt.precision > FP32.precision else FP32
        narrow = ("inputs", "probs", "output", "grads")
        formats: dict[str, Any] = {name: fmt if name in narrow else wide for name in cls.steps()}
        return cls(**formats)
