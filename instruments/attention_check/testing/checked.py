"""What a check is asked of, and what it gives back."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from attention_check.judge.findings import Finding
from attention_check.measure.capability import Capabilities
from attention_check.measure.carry import carry
from attention_check.measure.measurements import Measurements
from attention_check.measure.reference_cache import Inputs

QUERIES = 16  # of a call that shows carries


@dataclass(frozen=True)
class Result:
    """The result of one check.

    Attributes:
        passed: None where that was not decided. why: what was found, or why the check did not run.
        reported: the check ran, and what it found does not count: NaN, where many kernels give it.
    """

    passed: bool | None
    why: str = ""
    reported: bool = False


@dataclass(frozen=True)
class CheckedKernel:
    """A kernel, the format and head_dim it is judged in, its Capabilities (able), and `contract`'s table (asked)."""

    kernel: str | Callable
    fmt: str
    head_dim: int
    able: Capabilities
    asked: pd.DataFrame

    def inputs(self, distribution: str, n: int, seed: int = 0) -> Inputs:
        """What its errors are measured on, with as many queries as keys."""
        return Inputs(self.fmt, distribution, n, seed, head_dim=self.head_dim, causal=self.able.causal)

    @cached_property
    def sums(self) -> pd.DataFrame:
        """The table of `carry`, measured once."""
        fmt = "BF16" if self.fmt == "FP32" else self.fmt
        rows = carry(self.kernel, fmt, QUERIES, self.head_dim, self.able.causal)
        return pd.DataFrame(rows).assign(fmt=fmt, queries=QUERIES)

    def without_gradients(self) -> Capabilities:
        """What it can do of one pass forward."""
        return Capabilities(gradients=False, causal=self.able.causal)


@dataclass(frozen=True)
class MeasuredAndJudged:
    """A check: what is measured of a kernel, and what of it is judged, by the judge of the page.

    Attributes:
        measure: the tables; a Result where the kernel lacks what they are of. judge: of the tables.
    """

    measure: Callable[[CheckedKernel], Measurements | Result]
    judge: Callable[[Measurements], Iterable[Finding]]
