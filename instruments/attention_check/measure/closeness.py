"""An output and its own derived bound, and which mistake or rounding has its error."""

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attention_check.tolerance import Tolerance, tolerance
from fa_lib.kernels.precision import Precision
from fa_lib.numerics.formats import Format

if TYPE_CHECKING:
    from attention_check.probe.sampling import Sample

NO_CAUSE = dict(key="", same=False, share=0.0, fmt="", tiles=0, factor=1.0)


@dataclass(frozen=True)
class BoundCheck:
    """An output beside the bound of a kernel that carries FP32 (`tolerance`). tensors: q, k, v; options: the call's."""

    o: Tensor
    tensors: tuple[Tensor, Tensor, Tensor]
    options: dict[str, Any]
    precision: Precision
    about: Tolerance
    times: Tensor  # of every output, and of each row along the golden value: (*lead, n_q, d_v + 1)

    @classmethod
    def of(cls, o: Tensor, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> "BoundCheck":
        """o: in q's dtype, or stored in a wider one; what it is where a row sees no key does not count."""
        precision = Precision.kernel(q.dtype)
        if o.dtype != torch.float64:
            precision = replace(precision, output=Format.of(o.dtype))
        about = tolerance(q, k, v, precision=precision, **options)
        output = o.detach().double().where(about.seen, 0.0)
        return cls(output, (q, k, v), options, precision, about, torch.cat(about.times(output), -1))

    @property
    def over(self) -> Tensor:
        """Rows with an error beyond its bound: (*lead, n_q)."""
        return (self.times > 1).any(-1)

    @property
    def finite(self) -> bool:
        """Whether the output, the golden value and every bound are."""
        return bool(self.times.isfinite().all() and self.about.bound.isfinite().all())

    def cause(self) -> dict[str, Any]:
        """What has the error (`explanation.cause_of`), as a dict; NO_CAUSE where nothing has, or no row is beyond its
        bound."""
        from attention_check.explain.explanation import cause_of  # a tenth of a second, for kernels that are wrong

        found = cause_of(self.o, *self.tensors, self.options, self.precision) if self.over.any() else None
        return asdict(found) if found else NO_CAUSE


def closeness(o: Tensor, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> list[dict[str, Any]]:
    """How far an output is from the golden value, over its own bound, and what has its error: one row, or none where
    the golden value or a bound is not finite.

    Args:
        o: (batch, heads, n_q, d_v). options: of the call.

    Returns:
        a row of `bounds`, whose columns data/columns.csv explains.
    """
    furthest = WorstCall()
    furthest.add(BoundCheck.of(o, q, k, v, options))
    return furthest.table()


class WorstCall:
    """Of several calls, those of a Probe that it is called with for example, the one whose output is furthest beyond
    its bound; calls whose golden value or a bound is not finite do not count."""

    def __init__(self):
        self.rows, self.of, self.about = 0, 0, {}
        self.worst: BoundCheck | None = None

    def __call__(self, part: "Sample", o: Tensor) -> None:
        """part: the compared rows of a call; o: what the kernel that ran gave for them, float64."""
        self.add(BoundCheck.of(o, part.q, part.k, part.v, part.options))

    def add(self, call: BoundCheck, **about: Any) -> None:
        """about: columns that say which call it is."""
        if not call.finite:
            return
        self.rows, self.of = self.rows + int(call.over.sum()), self.of + call.over.numel()
        if self.worst is None or call.times.max() > self.worst.times.max():
            self.worst, self.about = call, about

    def table(self) -> list[dict[str, Any]]:
        """As `closeness` of that call, with the rows of all calls; nothing where there was none."""
        if self.worst is None:
            return []
        times = self.worst.times.max().item()
        return [self.about | dict(times=times, rows=self.rows, of=self.of) | self.worst.cause()]
