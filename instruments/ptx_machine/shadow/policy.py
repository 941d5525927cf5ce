"""Which source lines keep their rounding errors in which variant of a run, and what each line's errors were."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fa_lib.numerics.formats import Format, round_to


class Line(NamedTuple):
    """A place in a kernel's source: the frames (file, line), the innermost first, of the calls that were inlined into
    one another. One line of a helper that is called at two places is two."""

    frames: tuple[tuple[str, int], ...]

    @property
    def name(self) -> str:
        """Its innermost frame, as softmax.h:88; "" where it has none."""
        file, number = self.frames[0] if self.frames else ("", 0)
        return f"{Path(file).name}:{number}" if file else ""


FIRST = 2  # of the variants that are asked for


@dataclass
class Tally:
    """The rounding errors that a line made.

    Attributes:
        count: of numbers that it computed.
        squares: sum of the squared errors, each relative to the number; of numbers that are not 0.
        nonzero: count of those. what: names of its instructions, as "fma.f32", with their counts.
    """

    count: int = 0
    squares: float = 0.0
    nonzero: int = 0
    what: dict[str, int] = field(default_factory=dict)

    @property
    def relative(self) -> float:
        """Root mean square of its relative errors."""
        return float(np.sqrt(self.squares / self.nonzero)) if self.nonzero else 0.0


class Policy:
    """The variants of a run.

    Variant 0 makes no error at all. In variant 1 all lines make the errors that they made: it is the kernel. Of each
    group of lines in `exact` there is a variant in which these lines make no error. Of each mapping in `formats` there
    is one in which its lines round to another format, or not at all (None).

    Attributes:
        variants: their number. tallies: line -> Tally, of the lines that made an error.
        lost: line -> instruction -> how often a number with shadows went into one that has no rule.
    """

    def __init__(
        self, exact: Sequence[Sequence[Line]] = (), formats: Sequence[Mapping[Line, Format | None]] = ()
    ):  # fmt: skip
        self.variants = FIRST + len(exact) + len(formats)
        self.tallies: dict[Line, Tally] = {}
        self.lost: dict[Line, dict[str, int]] = {}
        self._exact, self._formats = [*enumerate(exact, FIRST)], [*enumerate(formats, FIRST + len(exact))]
        self._weights: dict[Line, np.ndarray] = {}

    def result(
        self, line: Line, what: str, actual: np.ndarray, computed: np.ndarray, shadows: np.ndarray, mask: np.ndarray
    ) -> np.ndarray | None:  # fmt: skip
        """Return the shadows of a result.

        Args:
            line: of the instruction. what: its name. actual: float64 (..., 32), what the GPU computes.
            computed: the same of the same operands, without rounding.
            shadows: float64 (variants or 1, ..., 32), the same of the operands' shadows, without rounding.
            mask: bool (32,) or of actual's shape, the lanes that compute it.

        Returns:
            float64 (variants, ..., 32), NaN where a number is not finite; None: there is no error, and the operands
            have no shadows.
        """
        with np.errstate(all="ignore"):
            error = actual - computed
        error = np.where(np.isfinite(error), error, 0.0)
        if (error[..., mask] if mask.ndim == 1 else error[mask]).any():
            self._count(line, what, computed, error, mask)
        elif len(shadows) == 1:
            return None
        if line not in self._weights:
            weights = np.ones(self.variants)
            weights[[0, *(number for number, lines in self._exact if line in lines)]] = 0.0
            self._weights[line] = weights
        weights = self._weights[line].reshape(-1, *(1,) * error.ndim)
        with np.errstate(all="ignore"):
            values = shadows + weights * error
            for number, changed in self._formats:
                if line in changed:
                    exact, fmt = np.ascontiguousarray(shadows[number if len(shadows) > 1 else 0]), changed[line]
                    values[number] = exact if fmt is None else round_to(torch.from_numpy(exact), fmt).numpy()
        return np.where(np.isfinite(actual), values, np.nan)

    def _count(self, line: Line, what: str, computed: np.ndarray, error: np.ndarray, mask: np.ndarray) -> None:
        tally = self.tallies.setdefault(line, Tally())
        x, e = (y[..., mask] if mask.ndim == 1 else y[mask] for y in (computed, error))
        given = np.isfinite(x) & (np.abs(x) > 1e-30)  # an exponential that vanishes has no relative error
        tally.count += x.size
        tally.nonzero += int(given.sum())
        tally.squares += float(((e[given] / x[given]) ** 2).sum())
        tally.what[what] = tally.what.get(what, 0) + x.size
