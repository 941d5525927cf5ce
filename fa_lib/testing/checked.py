"""What a check is asked of, and what it gives back."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from fa_lib.check.measure.capability import Capabilities
from fa_lib.check.measure.reference_cache import Inputs


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

    def without_gradients(self) -> Capabilities:
        """What it can do of one pass forward."""
        return Capabilities(gradients=False, causal=self.able.causal)
