"""Precision: which number format each step of attention is rounded to."""

from dataclasses import dataclass, fields

from fa_lib.formats import FP32, Format


@dataclass(frozen=True)
class Precision:
    """A Format for each step. Calling a step rounds: `p.probs(x)` is `round_to(x, p.probs)`.

    Attributes:
        inputs: Q, K, V as loaded.
        scores: S = scale * Q Kᵀ, the mask added.
        exponent: S - m, its exponential, and the division of softmax where the algorithm has one.
        probs: P as handed to P V.
        stats: the row maximum m, the row sum l, and the factors exp(m - m').
        accumulator: O, its rescale, and P V.
        output: O as stored.

    Every field takes what `Format.of` takes. `dataclasses.replace(p, accumulator=BF16)` changes one step.

    Raises:
        ValueError: a field is no format.
    """

    inputs: Format
    scores: Format
    exponent: Format
    probs: Format
    stats: Format
    accumulator: Format
    output: Format

    def __post_init__(self):
        for field in fields(self):
            object.__setattr__(self, field.name, Format.of(getattr(self, field.name)))

    @classmethod
    def uniform(cls, fmt):
        """Every step in `fmt`: the re-implementation of arXiv 2405.02803."""
        return cls(*[fmt] * len(fields(cls)))

    @classmethod
    def materialized(cls, fmt):
        """PyTorch's unfused attention: each matrix it writes (S, P, O) in `fmt`, the inside of its softmax and
        of its matrix products in FP32 (in `fmt` where that is wider). The paper's Baseline."""
        fmt = Format.of(fmt)
        wide = _at_least_fp32(fmt)
        return cls(inputs=fmt, scores=fmt, exponent=wide, probs=fmt, stats=wide, accumulator=wide, output=fmt)

    @classmethod
    def kernel(cls, fmt):
        """Flash kernels as shipped: Q, K, V, P and the output in `fmt`; scores, row statistics and the output
        accumulator in FP32 (in `fmt` where that is wider)."""
        fmt = Format.of(fmt)
        wide = _at_least_fp32(fmt)
        return cls(inputs=fmt, scores=wide, exponent=wide, probs=fmt, stats=wide, accumulator=wide, output=fmt)


def _at_least_fp32(fmt):
    return fmt if fmt.precision > FP32.precision else FP32
