"""What an output is, with its evidence: the answer of `explanation`."""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from fa_lib.check.dialect.conventions import BY_CHOICE, Convention
from fa_lib.check.explain.arithmetic import Computation
from fa_lib.check.explain.whereabouts import Whereabouts
from fa_lib.execution.results import finite


class Verdict(StrEnum):
    """What an output is."""

    ROUNDING = "rounding"  # within what its precision gives: nothing to fix
    CONVENTION = "convention"  # right, under another convention
    PRECISION = "precision"  # the right function, in coarser arithmetic
    BUG = "bug"  # another function than anybody means, or wrong in places


@dataclass(frozen=True)
class Explanation:
    """What an output is, with its evidence.

    Attributes:
        dialect: the conventions under which it was read in the end; {} is as the caller believes.
        fmt: of the inputs. times_bound: the largest error over its derived bound (`theory.tolerance`) in that dialect;
            None where the function has none. times_rule: over Baseline's largest. residual: root mean square of the
            error over that of the output.
        believed: the residual in the believed dialect; infinite where the shapes do not fit.
        arithmetic: the computation that has these errors; None where none was found, or none looked for.
        where: the parts that are wrong; None where none are, or all.
        part: the dialect in which the wrong part is right; {} where there is none.
        dropout: the share of weights that dropout took, where that is the error.
        nan_rows: rows with NaN or infinite values, though they see finite keys. blind_rows: rows that see no key, and
            what they hold: "zero", "nan", "mean" of V or "other"; "" where there is none.
        hidden_nan: rows that are finite, though what they see is not.
        rows: how many were looked at, of how many.
    """

    verdict: Verdict
    dialect: dict[str, Any]
    fmt: str
    times_bound: float | None
    times_rule: float
    residual: float
    believed: float
    arithmetic: Computation | None = None
    where: Whereabouts | None = None
    part: dict[str, Any] = field(default_factory=dict)
    dropout: float | None = None
    nan_rows: int = 0
    hidden_nan: int = 0
    blind_rows: str = ""
    rows: tuple[int, int] = (0, 0)

    @property
    def conventions(self) -> list[Convention]:
        """Those of the dialect that have a name."""
        return [BY_CHOICE[change] for change in self.dialect.items() if change in BY_CHOICE]


def record(found: Explanation) -> dict[str, Any]:
    """An Explanation as JSON holds it; numbers that are not finite are None."""
    return finite(asdict(found))
