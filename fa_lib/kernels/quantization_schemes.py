"""Q, K, V and P as low-precision kernels store them: elements in FP8 or FP4, scales, and how outliers are spread
first."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from fa_lib.execution.lookup import lookup
from fa_lib.kernels.rows import nonzero
from fa_lib.numerics.formats import E2M1, E4M3, E5M2, FP32, Format, round_to

E8M0 = Format("E8M0", exponent_bits=8, precision=1, emin=-127, emax=127, max=2.0**127, has_inf=False)  # powers of two
PER = ("none", "tensor", "head", "block", "token", "group")


@dataclass(frozen=True)
class Scheme:
    """How a tensor is quantised. Each part is divided by a scale, rounded to a format of few bits, and multiplied by
    the scale again. (A kernel stores the scales separately and multiplies products by them: the same values.)

    A scale is amax / element.max, amax the part's largest absolute value, rounded to the scales' format; but one in
    E8M0 is 2**(floor(log2(amax)) - element.emax), as the OCP MX specification v1.0 has it (section 6.3), by which the
    largest values of a part may lie beyond element.max, or with `up` the least power of two by which none does (arXiv
    2506.08027). What lies beyond element.max is set to it. With an outer scale s of amax / (element.max * scale.max)
    in FP32, the others are amax / (element.max * s), as NVFP4 has them.

    Attributes:
        element: Format of the elements.
        per: which part has its own scale: "none" (there is no scale), "tensor", "head" (a sequence), "block" (`size`
            rows of a sequence; arXiv 2407.08608, section 3.3), "token" (a row), "group" (`size` neighbours in a row).
        size: of a block or a group.
        scale: Format of a scale.
        outer: which part has an FP32 scale in addition: None, "tensor", or "token" (SageAttention3's two-level P, arXiv
            2505.11594 version 3, section 3).
        up: whether a scale in E8M0 is rounded up.

    Raises:
        ValueError: an attribute is none of those.
    """

    element: Format
    per: str = "tensor"
    size: int = 64
    scale: Format = FP32
    outer: str | None = None
    up: bool = False

    def __post_init__(self):
        if self.per not in PER:
            raise ValueError(f"per: got {self.per!r}; accepted are {', '.join(PER)}")
        if type(self.size) is not int or self.size < 1:
            raise ValueError(f"size: got {self.size!r}; accepted is a whole number from 1")
        if self.outer not in (None, "tensor", "token") or (self.outer and (self.per != "group" or self.scale == E8M0)):
            accepted = "None, and with groups whose scales are no powers of two 'tensor' and 'token'"
            raise ValueError(f"outer: got {self.outer!r} with {self.per!r}; accepted are {accepted}")
        if self.up and self.scale != E8M0:
            raise ValueError(f"up: got True with a scale in {self.scale}; accepted is it with E8M0")

    @classmethod
    def of(cls, spec: "Scheme | str") -> "Scheme":
        """Return the Scheme named by `spec`, a key of SCHEMES, or `spec` itself where it is one."""
        return spec if isinstance(spec, Scheme) else lookup("scheme", spec, SCHEMES)

    @property
    def by_row(self) -> bool:
        """Whether a row's values depend on no other row."""
        return self.per in ("none", "token", "group") and self.outer != "tensor"

    def apply(self, x: Float64[Tensor, "... n d"], axis: int = -1) -> Float64[Tensor, "... n d"]:
        """Quantise x and return its values.

        A part that is zero stays zero, and so does one whose scale rounds to zero. A part with a value that is not
        finite is NaN.

        Args:
            x: float64 (..., sequence, features).
            axis: along which tokens and groups run, the axis over which the product sums: -1 for Q, K and P; -2 for V,
                whose "token" is then a channel.

        Returns:
            float64 of x's shape.

        Raises:
            ValueError: x is no float64, or its axis is no multiple of a group's size; an axis other than -1 and -2.
        """
        if x.dtype != torch.float64 or x.ndim < 2:
            raise ValueError(f"x: got {x.dtype} of shape {tuple(x.shape)}; accepted is float64 (..., n, d)")
        if axis not in (-1, -2):
            raise ValueError(f"axis: got {axis!r}; accepted are -1 and -2")
        if self.per == "none":
            return self.element(x.clamp(-self.element.max, self.element.max))
        if self.per == "block":
            return torch.cat([self._rounded(rows, largest(rows, (-2, -1))) for rows in x.split(self.size, -2)], -2)
        if axis == -2:
            return self.apply(x.mT).mT
        if self.per == "group":
            return self._in_groups(x)
        dims = {"head": (-2, -1), "token": -1, "tensor": tuple(range(x.ndim))}[self.per]
        return self._rounded(x, largest(x, dims))

    def _in_groups(self, x: Float64[Tensor, "... n d"]) -> Float64[Tensor, "... n d"]:
        if x.shape[-1] % self.size:
            accepted = f"a multiple of a group, {self.size}"
            raise ValueError(f"x: got {x.shape[-1]} values along the axis of its groups; accepted is {accepted}")
        outer = x.new_ones(1, 1)  # or (..., n, 1), a row's own
        if self.outer:
            amax = largest(x, -1) if self.outer == "token" else x.abs().amax().reshape(1, 1)
            outer = FP32(nonzero(amax) / (self.element.max * self.scale.max))
        parts = x.unflatten(-1, (-1, self.size))  # (..., n, groups, size)
        scales = self._scale(largest(parts, -1), outer[..., None])
        elements = self._elements(parts, outer[..., None] * scales).flatten(-2)
        return elements * (outer * scales.squeeze(-1)).repeat_interleave(self.size, -1)

    def _scale(self, amax: Tensor, outer: Tensor | float = 1.0) -> Tensor:
        """Compute the scale for each amax, without the outer one; NaN where amax is not finite."""
        if self.scale == E8M0:
            e = torch.frexp(amax)[1].long() - 1 - self.element.emax  # frexp's mantissa is in [1/2, 1)
            e += amax > self.element.max * power(e) if self.up else 0
            scale = power(e.clamp(E8M0.emin, E8M0.emax))
        else:
            scale = round_to(nonzero(amax) / (self.element.max * outer), self.scale)
        return torch.where(amax.isfinite(), scale, torch.nan)

    def _elements(self, x: Tensor, scale: Tensor) -> Tensor:
        """Round x / scale to the grid of elements; 0 where the scale is 0."""
        return self.element.round_((x / scale).clamp_(-self.element.max, self.element.max)).where(scale != 0, 0.0)

    def _rounded(self, x: Tensor, amax: Tensor) -> Tensor:
        """Quantise x with one scale for each amax, which broadcasts to x."""
        scale = self._scale(amax)
        return self._elements(x, scale) * scale


def power(e: Tensor) -> Tensor:
    """Compute 2**e of int64 e, as float64 of e's shape: exactly, as torch's own powers need not be."""
    return (e + 1023 << 52).view(torch.float64)


def largest(x: Tensor, dims: int | tuple[int, ...]) -> Tensor:
    """Compute the largest absolute value of x, of any shape, over the dimensions `dims`, which stay with size 1."""
    return x.abs().amax(dims, keepdim=True)


_MXFP8, _MXFP4 = Scheme(E4M3, "group", 32, E8M0), Scheme(E2M1, "group", 32, E8M0)
_NVFP4 = Scheme(E2M1, "group", 16, E4M3, "tensor")
SCHEMES = {
    "FP8": Scheme(E4M3, "none"),  # P, which is at most 1; FlashAttention-3 raises it: Algorithm(p_exponent_offset=8)
    "FP8_TENSOR": Scheme(E4M3, "tensor"),
    "FP8_HEAD": Scheme(E4M3, "head"),
    "FP8_BLOCK": Scheme(E4M3, "block"),
    "FP8_TOKEN": Scheme(E4M3, "token"),
    "MXFP8": _MXFP8,
    "MXFP8_UP": replace(_MXFP8, up=True),
    "MXFP8_E5M2": Scheme(E5M2, "group", 32, E8M0),
    "MXFP4": _MXFP4,
    "MXFP4_UP": replace(_MXFP4, up=True),
    "NVFP4": _NVFP4,
    "NVFP4_ONE_LEVEL": replace(_NVFP4, outer=None),  # its scales in E4M3 alone
    "NVFP4_TWO_LEVEL": replace(_NVFP4, outer="token"),  # SageAttention3's P
}


def smoothed(k: Float64[Tensor, "*kv_lead n_kv d"]) -> Float64[Tensor, "*kv_lead n_kv d"]:
    """Subtract from K (..., n_kv, d) its mean over the keys, in FP32. Every score of a row becomes less by one number,
    so that softmax is the same (SageAttention, arXiv 2410.02367)."""
    return FP32(k - FP32(k.mean(-2, keepdim=True)))


def rotated(
    q: Float64[Tensor, "*lead n_q d"], k: Float64[Tensor, "*kv_lead n_kv d"], seed: int
) -> tuple[Float64[Tensor, "*lead n_q d"], Float64[Tensor, "*kv_lead n_kv d"]]:
    """Multiply each row of Q and K, whose head_dim is a power of two, by random signs, of a seed, and a Hadamard
    matrix: the scores stay the same, and outliers are spread over the row (incoherent processing, arXiv 2407.08608,
    section 3.3)."""
    d = q.shape[-1]
    if d & (d - 1):
        raise ValueError(f"q: got head_dim {d}; accepted is a power of two")
    signs = torch.from_numpy(np.random.default_rng(seed).choice([-1.0, 1.0], d)).to(q)
    return _hadamard(q * signs) / d**0.5, _hadamard(k * signs) / d**0.5


def _hadamard(x):
    """Multiply each row by the Hadamard matrix of its length, by sums and differences of halves."""
    half = 1
    while half < x.shape[-1]:
        pairs = x.unflatten(-1, (-1, 2, half))  # (..., groups, 2, half)
        a, b = pairs.unbind(-2)
        x = torch.stack((a + b, a - b), -2).flatten(-3)
        half *= 2
    return x
