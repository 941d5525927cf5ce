"""What an output is, with its evidence: the answer of `explanation`."""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from attention_check.conventions.conventions import BY_CHOICE, Convention
from attention_check.explain.arithmetic import Computation
from attention_check.explain.whereabouts import Whereabouts
from fa_lib.execution.results import finite


class Verdict(StrEnum):
    """What an output is, the best first."""

    ROUNDING = "rounding"  # within what its precision gives: nothing to fix
    CONVENTION = "convention"  # right, under another convention
    PRECISION = "precision"  # the right function, in coarser arithmetic
    BUG = "bug"  # another function than anybody means, or wrong in places


@dataclass(frozen=True)
class OtherOutput:
    """What a log-sum-exp or a gradient is, that came with the output, under the output's dialect.

    Attributes:
        name: "lse", "dq", "dk" or "dv".
        residual: of a gradient, root mean square of the error over that of the right gradient; of a log-sum-exp, root
            mean square of the difference. times: the largest error over the largest that is rounding
            (`gradients.SameRows.allowed`; of a log-sum-exp, its bound).
        change: what it is instead: "dialect", or a key of `explain_words.CHANGES`; "" where it is right, or nothing was
            found. factor: of a change that is one. dialect: that which it is of, where it is not the output's.
        where: the parts that are wrong; None where none are, or all.
        looked_at: heads of k and v of all entries, or rows of a log-sum-exp; of how many.
    """

    name: str
    verdict: Verdict
    residual: float
    times: float
    change: str = ""
    factor: float = 1.0
    dialect: dict[str, Any] = field(default_factory=dict)
    where: Whereabouts | None = None
    looked_at: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Explanation:
    """What an output is, with its evidence.

    Attributes:
        dialect: the conventions under which it was read in the end; {} is as the caller believes.
        fmt: of the inputs. times_bound: the largest error over its derived bound (`attention_check.tolerance`) in that
            dialect; None where the function has none. times_rule: over Baseline's largest. residual: root mean square
            of the error over that of the output.
        believed: the residual in the believed dialect; infinite where the shapes do not fit.
        arithmetic: the computation that has these errors; None where none was found, or none looked for.
        where: the parts that are wrong; None where none are, or all.
        part: the dialect in which the wrong part is right, {} is as the caller believes; None where there is none.
        dropout: the share of weights that dropout took, where that is the error.
        nan_rows: rows with NaN or infinite values, though they see finite keys. blind_rows: rows that see no key, and
            what they hold: "zero", "nan", "mean" of V or "other"; "" where there is none.
        constant: the number that all of the output is; None where it is several.
        hidden_nan: rows that are finite, though what they see is not.
        rows: how many were looked at, of how many.
        tried: the nearest dialects, and the residual of some rows in each; () where the believed one is right.
        others: the log-sum-exp and the gradients, where they came. not_judged: why some of them were not looked at; "".
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
    part: dict[str, Any] | None = None
    dropout: float | None = None
    constant: float | None = None
    nan_rows: int = 0
    hidden_nan: int = 0
    blind_rows: str = ""
    rows: tuple[int, int] = (0, 0)
    tried: tuple[tuple[dict[str, Any], float], ...] = ()
    others: tuple[OtherOutput, ...] = ()
    not_judged: str = ""

    @property
    def worst(self) -> Verdict:
        """Of those of the output, its log-sum-exp and its gradients."""
        return max((each.verdict for each in (self, *self.others)), key=[*Verdict].index)

    @property
    def is_rounding(self) -> bool:
        """Whether the output, its log-sum-exp and its gradients all are."""
        return self.worst == Verdict.ROUNDING

    @property
    def conventions(self) -> list[Convention]:
        """Those of the dialect that have a name."""
        return [BY_CHOICE[change] for change in self.dialect.items() if change in BY_CHOICE]


def record(found: Explanation) -> dict[str, Any]:
    """An Explanation as JSON holds it; numbers that are not finite are None."""
    return finite(asdict(found))
