"""A problem: Q, K, V of one call, its golden value, and what the emulated kernels make of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache, partial
from typing import Any

from torch import Tensor

from fa_lib import kernels
from fa_lib.kernels.algorithm import Algorithm
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.rows import products
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import BF16, FP64, Format, FormatLike
from fa_lib.numerics.metrics import Deviation, deviation, over_baseline


@dataclass(frozen=True, eq=False)
class Problem:
    """Inputs with the values that kernels are compared with. A cell of a sweep draws it once and tries all of its
    kernels on it.

    Attributes:
        q: float64 (batch, heads, n_q, head_dim). k, v: float64 (batch, heads, n_kv, head_dim). None is rounded.
        inputs: the format to which the golden value rounds them; FP64: exact.
        options: of every call: causal, scale, mask, sinks.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    inputs: Format = field(default=FP64, kw_only=True)
    options: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    @classmethod
    def drawn(
        cls,
        distribution: str,
        seed: int,
        n_q: int,
        n_kv: int,
        *,
        heads: int = 1,
        head_dim: int = 64,
        inputs: FormatLike = BF16,
        **options: Any,
    ) -> "Problem":
        """Draw a problem.

        Args:
            distribution, seed: as of `inputs.draw`. n_q, n_kv, heads, head_dim: sizes of Q, K and V, in one batch.
            inputs, options: as above.
        """
        q, k, v = draw(distribution, seed, (1, heads, n_q, head_dim), (1, heads, n_kv, head_dim))
        return cls(q, k, v, inputs=Format.of(inputs), options=options)

    @property
    def golden(self) -> Tensor:
        """The exact result from inputs rounded to `inputs`, float64 as q."""
        return self.golden_of(self.inputs)

    @cached_property
    def golden_of(self) -> Callable[[Format], Tensor]:
        """The exact result from inputs rounded to another format; each is computed once."""
        return cache(lambda fmt: self._call(kernels.golden, Precision.kernel(fmt), inputs=fmt))

    @cached_property
    def reference(self) -> Callable[[Precision], Tensor]:
        """Baseline's output with a Precision; each is computed once."""
        return cache(lambda precision: self._call(kernels.reference, precision, precision=precision))

    def tiled(self, tiling: Tiling, precision: Precision, algorithm: Algorithm | str = "fa2", **more: Any) -> Tensor:
        """Compute Flash's output by `kernels.tiled`, (batch, heads, n_q, head_dim)."""
        return self._call(kernels.tiled, precision, precision=precision, tiling=tiling, algorithm=algorithm, **more)

    def rescales(self, tiling: Tiling, precision: Precision) -> float:
        """Count how many tiles raised a row's maximum, mean over rows."""
        call: dict[str, Any] = dict(tiling=tiling, precision=precision, q_k=self.q_k(precision))
        return kernels.rescales(self.q, self.k, **call, **self.options).double().mean().item()

    @cached_property
    def q_k(self) -> Callable[[Precision], Tensor | None]:
        """`rows.products` for all kernels that take the inputs of a Precision; the last one is kept."""
        multiply = lru_cache(1)(partial(products, self.q, self.k))
        return lambda precision: multiply(precision.inputs, precision.products)

    def _call(self, kernel, of, /, **how):
        return kernel(self.q, self.k, self.v, q_k=self.q_k(of), **how, **self.options)

    def deviation(self, o: Tensor, fmt: FormatLike = BF16) -> Deviation:
        """Compute the Deviation of o, (batch, heads, n_q, head_dim), from the golden value, in ulp of a format."""
        return deviation(o, self.golden, fmt)

    @cached_property
    def baseline(self) -> Deviation:
        """The Deviation of Baseline in BF16 (`Precision.materialized`)."""
        return self.deviation(self.reference(Precision.materialized(BF16)))

    def errors(self, o: Tensor, inputs: Format | None = None) -> dict[str, float]:
        """Compute the error of a kernel's output.

        Args:
            o: (batch, heads, n_q, head_dim).
            inputs: the format to which the kernel rounds its inputs; None is the problem's. (Baseline's error stays
                that to its own golden value.)

        Returns:
            dict: max, rmse, relative, of the Deviation; bias (mean signed difference) and its standard error bias_se,
            in ulp of BF16 at 1; times_max, times_rmse, over Baseline's.
        """
        d, ulp = deviation(o, self.golden_of(inputs or self.inputs), BF16), 2 * BF16.unit_roundoff
        return dict(
            max=d.max,
            rmse=d.rmse,
            relative=d.relative,
            bias=d.bias / ulp,
            bias_se=d.bias_se / ulp,
            times_max=over_baseline(d.max, self.baseline.max),
            times_rmse=over_baseline(d.rmse, self.baseline.rmse),
        )
