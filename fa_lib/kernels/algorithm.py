"""How `tiled` goes over the tiles: FlashAttention 1, 2 or 4, and what real kernels change in them."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

NAMES = ("fa1", "fa2", "fa4")
LN2 = math.log(2)


@dataclass(frozen=True)
class Algorithm:
    """An order of steps over the tiles.

    Attributes:
        name: "fa1" (arXiv 2205.14135, Algorithm 1: O is normalised at every tile), "fa2" (arXiv 2307.08691,
            Algorithm 1: O is divided by the row sum once, at the end) or "fa4" (FlashAttention-4: as "fa2", but m is
            replaced, and O and l rescaled, only when the row's maximum has risen by more than `threshold` since; P is
            then as large as 2**threshold).
        exp: the exponential of S - m, a function of a float64 tensor, whose result is overwritten;
            `exponentials.fast_exp` is torch's on CPU, `polynomials.polynomial_exp` FlashAttention-4's. The few factors
            exp(m - m') are always torch.exp, and so is the backward pass.
        threshold: of "fa4", in powers of two; None is 8.
        p_exponent_offset: P is 2**p_exponent_offset times exp(S - m), and so is l; it cancels in O, and moves P away
            from the format's subnormals. Whole; of "fa2" and "fa4". None is 0.
        maximum: the row maximum of a tile, a function of S (rows, B_c) that gives (rows, 1); None is the largest
            score. `exponentials.dynamic_maximum` is that of arXiv 2510.04212.
        splits: number of parts of the keys, of whole tiles, that are computed separately and merged by their
            log-sum-exp at the end, as in flash decoding. Each part's O is in `precision.accumulator`.
        reverse: whether the last tile comes first, as in FlashAttention-2 on CUDA; with splits, the last of each part.
        scale_in_exponent: the scale is left out of S and multiplied in with the exponential, P = 2**(S c - m c) of one
            fused multiply-add, c = scale * log2(e) in `precision.exponent`; and O is multiplied by 1 / l instead of
            divided by l. As FlashAttention-2's CUDA source has it; of "fa2" and "fa4", without softcap and added masks.
        reciprocal: O is multiplied by 1 / l without `scale_in_exponent` too; of "fa2" and "fa4".
        exp2: of `scale_in_exponent`, 2 to the power of S c - m c, a function of a float64 tensor (rows, B_c);
            `polynomials.mixed_exp2` is FlashAttention-4's.
        accumulate_in_mma: O is what the product P V begins with (the c of `Precision.products`), and not added to it
            afterwards, as FlashAttention-2 and 3 have it on CUDA; of "fa2" and "fa4".

    Raises:
        ValueError: an attribute does not fit the others.
    """

    name: str = "fa2"
    exp: Callable = torch.exp
    threshold: int | None = None
    p_exponent_offset: int | None = None
    maximum: Callable | None = None
    splits: int = 1
    reverse: bool = False
    scale_in_exponent: bool = False
    reciprocal: bool = False
    exp2: Callable = torch.exp2
    accumulate_in_mma: bool = False

    def __post_init__(self):
        if self.name not in NAMES:
            raise ValueError(f"algorithm: got {self.name!r}; accepted are {', '.join(NAMES)}, or an Algorithm")
        for field, least, of in (("threshold", 0, ("fa4",)), ("p_exponent_offset", -math.inf, ("fa2", "fa4"))):
            value = getattr(self, field)
            if value is not None and (self.name not in of or not value >= least or value != int(value)):
                accepted = f"a whole number, for {' and '.join(of)}"
                raise ValueError(f"{field}: got {value!r} with {self.name!r}; accepted is {accepted}")
        if self.scale_in_exponent and (self.name == "fa1" or self.exp is not torch.exp):
            accepted = "it with 'fa2' and 'fa4', and exp2 for exp"
            raise ValueError(f"scale_in_exponent: got True with {self}; accepted is {accepted}")
        if self.exp2 is not torch.exp2 and not self.scale_in_exponent:
            raise ValueError(f"exp2: got {self.exp2} with {self.name!r}; accepted is it with scale_in_exponent=True")
        for field in ("accumulate_in_mma", "reciprocal"):
            if getattr(self, field) and self.name == "fa1":
                raise ValueError(f"{field}: got True with 'fa1'; accepted is it with 'fa2' and 'fa4'")
        if type(self.splits) is not int or self.splits < 1:
            raise ValueError(f"splits: got {self.splits!r}; accepted is a whole number from 1")

    @classmethod
    def of(cls, spec: "Algorithm | str") -> "Algorithm":
        """Return the Algorithm named by `spec`, or `spec` itself where it is one."""
        return spec if isinstance(spec, Algorithm) else cls(spec)

    @property
    def rescale_threshold_log2(self) -> int:
        """By how many powers of two a row's maximum may rise before it is replaced."""
        return (8 if self.threshold is None else self.threshold) if self.name == "fa4" else 0

    @property
    def rescale_threshold(self) -> float:
        """By how much a row's maximum may rise before it is replaced, in units of S."""
        return self.rescale_threshold_log2 * LN2

    @property
    def p_factor(self) -> float:
        """The factor of P and of l."""
        return 2.0 ** (self.p_exponent_offset or 0)
