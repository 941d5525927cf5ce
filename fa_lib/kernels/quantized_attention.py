"""Attention whose Q, K, V and P are quantised: in all of them, in some, or in a cache of K and V."""

from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Float64
from torch import Tensor

from fa_lib.kernels.algorithm import Algorithm
from fa_lib.kernels.options import Keys, Outputs, Queries, Values, validate
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.quantization_schemes import Scheme, rotated, smoothed
from fa_lib.kernels.rows import stored
from fa_lib.kernels.tiled import tiled
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.dots import Dot
from fa_lib.numerics.formats import BF16, FP64, Format

OPERANDS = ("q", "k", "v", "p")


@dataclass(frozen=True)
class QuantizedP(Dot):
    """The sums of another Dot, with P quantised by a scheme before its product with V."""

    has_gradients = False
    sums: Dot
    scheme: Scheme

    def scores(self, Q: Tensor, K: Tensor) -> Tensor:
        """Compute Q Kᵀ, (..., n_q, n_kv), by the other Dot."""
        return self.sums.scores(Q, K)

    def matmul(self, A: Tensor, B: Tensor, C: Tensor | None = None) -> Tensor:
        """Compute C + P V, (..., n_q, d_v), of A = P (..., n_q, n_kv), quantised here, and B = V (..., n_kv, d_v)."""
        return self.sums.matmul(self.scheme.apply(A), B, C)

    def totals(self, P: Tensor) -> Tensor:
        """Sum each row of P, (..., keys) -> (..., 1), before it is quantised."""
        return self.sums.totals(P)

    def exp_(self, x: Tensor) -> Tensor:
        """Compute exp(x) of x's shape, by the other Dot."""
        return self.sums.exp_(x)


@dataclass(frozen=True)
class Quantization:
    """Which operands of attention are quantised, and how. None leaves one in the kernel's format, BF16.

    Groups of Q and K run along head_dim, those of P along the keys, and V's along the keys too: each along the axis
    that its product sums. In a cache V's run along head_dim, because a token is quantised when it is written, and the
    kernel multiplies what it reads by the scales before the product.

    Attributes:
        q, k, v, p: Schemes, or names that `Scheme.of` takes. P is quantised tile by tile, so its scales are of a row.
        smooth: whether K's mean over the keys is subtracted first (`quantization_schemes.smoothed`).
        rotate: whether Q and K are rotated then (`quantization_schemes.rotated`).
        cached: whether K and V are of a cache.

    Raises:
        ValueError: there is no such Scheme, or P's has scales over several rows.
    """

    q: Scheme | None = None
    k: Scheme | None = None
    v: Scheme | None = None
    p: Scheme | None = None
    smooth: bool = False
    rotate: bool = False
    cached: bool = False

    def __post_init__(self):
        for name in OPERANDS:
            scheme = getattr(self, name)
            object.__setattr__(self, name, None if scheme is None else Scheme.of(scheme))
        if self.p and not self.p.by_row:
            scales = f"{self.p.per!r} with outer {self.p.outer!r}"
            raise ValueError(f"p: got scales per {scales}; accepted are none, token and group, outer None or 'token'")

    @classmethod
    def of(
        cls, qkv: Scheme | str, p: Scheme | str | None = None, *, smooth: bool = False, rotate: bool = False
    ) -> "Quantization":
        """Quantise Q, K and V by one scheme, and P by another.

        Args:
            qkv: of Q, K and V.
            p: of P. None is qkv, if its scales are of a row; else qkv without an outer scale, if it has groups; else
                qkv's elements without a scale, as in FlashAttention-3, which multiplies P by 2**8
                (Algorithm(p_exponent_offset=8)).
            smooth, rotate: as above.
        """
        qkv = Scheme.of(qkv)
        if p is None:
            p = qkv if qkv.by_row else replace(qkv, outer=None) if qkv.per == "group" else Scheme(qkv.element, "none")
        return cls(qkv, qkv, qkv, Scheme.of(p), smooth, rotate)

    @classmethod
    def cache(cls, kv: Scheme | str, *, smooth: bool = False, rotate: bool = False) -> "Quantization":
        """Quantise K and V of a cache by one scheme, and leave Q and P in BF16, as servers do."""
        kv = Scheme.of(kv)
        return cls(k=kv, v=kv, cached=True, smooth=smooth, rotate=rotate)

    def only(self, operand: str) -> "Quantization":
        """Quantise only one operand, a key of OPERANDS, and leave the others in BF16."""
        if operand not in OPERANDS:
            raise ValueError(f"operand: got {operand!r}; accepted are {', '.join(OPERANDS)}")
        others: dict[str, Any] = {name: None for name in OPERANDS if name != operand}
        return replace(self, **others)

    def steps(self, precision: Precision) -> Precision:
        """Return `precision` with products that quantise P; where P is not quantised, `precision` itself."""
        if self.p is None:
            return precision
        return replace(precision, probs=FP64, products=QuantizedP(precision.products, self.p))

    def spread(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Smooth K (..., n_kv, head_dim) where `smooth`, and rotate it and Q (..., n_q, head_dim) where `rotate`."""
        k = smoothed(k) if self.smooth else k
        return rotated(q, k, seed=0) if self.rotate else (q, k)

    def loaded(
        self,
        q: Float64[Tensor, "*lead n_q d"],
        k: Float64[Tensor, "*kv_lead n_kv d"],
        v: Float64[Tensor, "*kv_lead n_kv d_v"],
        otherwise: Format = BF16,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Smooth, rotate and quantise Q, K and V; otherwise: the Format of an operand without a scheme."""
        q, k = self.spread(q, k)
        axes = (-1, -1, -1 if self.cached else -2)
        schemes = (self.q, self.k, self.v)
        q, k, v = (s.apply(x, axis) if s else otherwise(x) for s, x, axis in zip(schemes, (q, k, v), axes))
        return q, k, v


def attention(
    q: Queries,
    k: Keys,
    v: Values,
    quantization: Quantization,
    *,
    tiling: Tiling,
    precision: Precision | None = None,
    algorithm: Algorithm | str = "fa2",
    **options,
) -> Outputs:
    """Compute attention by `tiled` with quantised operands. It is a forward pass: the result has no gradient.

    Products are summed as `precision.products` says, from the values of the elements times their scales.

    Args:
        q, k, v, tiling, algorithm, options: as `tiled`; so is the result.
        quantization: a Quantization.
        precision: of the other steps; its inputs and probs are of operands that are not quantised. None is
            `Precision.kernel(BF16)`.

    Raises:
        ValueError: an argument does not fit; head_dim, the keys, or a tile of them is no multiple of a group; smooth
        with sinks or softcap, which see more of a score than its distance from the others.
    """
    settings = validate(q, k, v, **options)
    if quantization.smooth and (settings.sinks is not None or settings.softcap is not None):
        raise ValueError("smooth: got True with sinks or softcap; accepted is it without them: they change the result")
    p = quantization.p
    for name, length in (("tiling", tiling.block_kv), ("k", k.shape[-2])):
        if p and p.per == "group" and length % p.size:
            unit = "keys a tile" if name == "tiling" else "keys"
            raise ValueError(f"{name}: got {length} {unit}; accepted is a multiple of P's groups, {p.size}")
    steps = precision or Precision.kernel(BF16)
    q_, k_, v_ = (x.detach().double() for x in (q, k, v))
    operands = quantization.loaded(q_, k_, v_, steps.inputs)
    steps = replace(quantization.steps(steps), inputs=FP64)
    return stored(tiled(*operands, tiling=tiling, precision=steps, algorithm=algorithm, **options), q.dtype)
