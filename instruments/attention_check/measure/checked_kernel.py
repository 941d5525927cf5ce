"""A kernel that is checked: how it is called, on what and how thoroughly."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from typing import Any

import pandas as pd
from tqdm import tqdm

from attention_check.measure.plan import CheckPlan, of_one_query
from attention_check.measure.way import ONE_QUERY, Way

FEW = (1, 16)  # queries that errors are measured at, beside as many as keys: decoding takes other paths


@dataclass(frozen=True)
class CheckedKernel:
    """A kernel that is checked.

    Attributes:
        way: how it is called, and what it can do.
        plan: how thoroughly it is checked.
        judged: the formats that its errors are judged in: BF16 and FP16, else FP32; none where it has none of them.
        device: torch's.
    """

    way: Way
    plan: CheckPlan
    judged: tuple[str, ...]
    device: str = "cpu"

    @classmethod
    def of(cls, way: Way, plan: CheckPlan, device: str = "cpu") -> "CheckedKernel":
        """Choose the formats by what a kernel can do."""
        judged = [fmt for fmt in way.formats if fmt in ("BF16", "FP16")] or [
            fmt for fmt in way.formats if fmt == "FP32"
        ]
        if plan.arithmetic:  # Baseline's has no backward pass
            way = replace(way, able=replace(way.able, gradients=False))
        return cls(way, of_one_query(plan) if ONE_QUERY in way.conventions else plan, tuple(judged), device)

    @property
    def one_query(self) -> bool:
        """Whether it is called for one query after the other."""
        return ONE_QUERY in self.way.conventions

    @property
    def top_left(self) -> bool:
        """Whether it always masks causally, aligned top-left."""
        return self.way.able.causal and self.way.able.top_left

    @property
    def queries(self) -> Sequence[int]:
        """Numbers of queries, fewer than keys, that its errors are measured at: aligned top-left they see few keys."""
        return () if self.top_left else FEW[:1] if self.one_query else FEW

    @property
    def call(self) -> dict[str, Any]:
        """The arguments that most cells share."""
        return dict(kernel=self.way.kernel, head_dim=self.way.head_dim, device=self.device)

    def table(self, cell: Callable, settings: Iterable[Mapping[str, Any]], **fixed: Any) -> pd.DataFrame:
        """Call a function once for each settings; on a terminal a bar shows how far it is.

        Args:
            cell: it returns its row, a dict, or a list of rows. settings: of each call, name -> value of its arguments;
                fixed: arguments of all calls.

        Returns:
            a row for each of the cell's: the settings, of a dataclass its fields, and what the cell found.
        """
        rows = []
        for each in tqdm([*settings], desc=cell.__name__, leave=False, disable=None):
            found, columns = cell(**each, **fixed), {}
            for name, x in each.items():
                columns |= asdict(x) if is_dataclass(x) and not isinstance(x, type) else {name: x}
            rows += [columns | row for row in (found if isinstance(found, list) else [found])]
        return pd.DataFrame(rows)
