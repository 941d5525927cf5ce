"""Named changes to an emulated kernel, and named calls: the rows of every table of such."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from fa_lib.kernels.algorithm import Algorithm
from fa_lib.kernels.precision import Precision


@dataclass(frozen=True)
class Variant:
    """A kernel changed in one respect.

    Attributes:
        key: as tables hold it.
        label: as figures and reports show it.
        steps: of a Precision, name -> Format.
        algorithm: of an Algorithm, name -> value.
    """

    key: str
    label: str
    steps: dict[str, Any] = field(default_factory=dict)
    algorithm: dict[str, Any] = field(default_factory=dict)

    def of(self, precision: Precision, algorithm: Algorithm | str = "fa2") -> dict[str, Any]:
        """Change the arguments of `tiled`, and return them in a dict: precision and algorithm."""
        new_algorithm = replace(Algorithm.of(algorithm), **self.algorithm)
        return dict(precision=replace(precision, **self.steps), algorithm=new_algorithm)


@dataclass(frozen=True)
class Call:
    """Shapes of Q, K and V, and the options of a call.

    Attributes:
        key: as tables hold and show it.
        n_q, n_kv, heads, kv_heads: sizes.
        head_dim: None where the caller chooses it. v_dim: that of V; None is head_dim.
        options: of every kernel: causal, scale, mask, window.
    """

    key: str
    n_q: int
    n_kv: int
    heads: int = 2
    kv_heads: int = 2
    head_dim: int | None = None
    v_dim: int | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def shapes(self, head_dim: int, batch: int = 1) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of Q, (batch, heads, n_q, head_dim), and of K and V, (batch, kv_heads, n_kv, head_dim)."""
        d = self.head_dim or head_dim
        return (batch, self.heads, self.n_q, d), (batch, self.kv_heads, self.n_kv, d)


Named = TypeVar("Named", bound=Variant | Call)


def by_key(rows: Iterable[Named]) -> dict[str, Named]:
    """Make a dict of key -> Variant or Call, in their order."""
    return {row.key: row for row in rows}
