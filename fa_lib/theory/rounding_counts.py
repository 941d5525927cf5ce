"""How often a kernel rounds, and what share of its result each rounding is: the counts behind `theory`."""

import math
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from scipy import special

BACK = 10 / (3 * math.log(2)) - 4  # 0.81: of x / l * l, two roundings that mostly undo each other, in squares of one
ALGORITHMS = ("fa1", "fa2", "baseline")


@dataclass(frozen=True)
class Values:
    """Statistics of V and of the scores S that the law needs.

    Attributes:
        growth: the power of t with which the sum over t tiles grows.
        mean: of V. square, variance: of V, over its mean squared; None where its mean is zero.
        scores: the mean of S squared, each key weighted with its P squared.
        peaked: whether scores are N(0, 1), so that few keys hold much of P; else P varies little.
    """

    growth: float
    mean: float
    square: float | None
    variance: float | None
    scores: float
    peaked: bool

    def averaged(self, keys: int) -> float:
        """Return how far a sum over `keys` keys averages the squared roundings of its terms: sum of (P v)^2 over O^2,
        without the factor `square`."""
        return 1.0 if self.square is None else (math.e if self.peaked else 1.0) / keys


VALUES = {
    "one_sign": Values(1.0, 0.5, 4 / 3, 1 / 3, scores=4.0, peaked=False),  # uniform in [0, 1), head_dim 64: S is near 2
    "one_sign_peaked": Values(
        1.0, math.sqrt(2 / math.pi), math.pi / 2, math.pi / 2 - 1, scores=5.0, peaked=True
    ),  # |N(0, 1)|
    "zero_mean": Values(0.5, 0.0, None, None, scores=5.0, peaked=True),  # N(0, 1): with P squared, S is N(2, 1)
}


@dataclass(frozen=True)
class Roundings:
    """The weights of a kernel's roundings, as squared shares of its result: 1 is a rounding of the whole result.

    Attributes:
        accumulator, row_sum: (roundings,) of the running sums O and l.
        terms: of P's roundings: step -> sum of the squared shares.
    """

    accumulator: np.ndarray
    row_sum: np.ndarray
    terms: dict[str, float]

    def carried(self) -> float:
        """Sum the weights of all roundings of O and l."""
        return float(self.accumulator.sum() + self.row_sum.sum())


def roundings(tiles: int, algorithm: str, values: str, block_kv: int = 64) -> Roundings:
    """Count the roundings of one part of the keys. Arguments are those of `theory.expected`.

    Raises:
        ValueError: the algorithm, the values or the number of tiles is none of those accepted.
    """
    accepted_kernel(algorithm, values, tiles)
    t, growth = np.arange(1, tiles + 1), VALUES[values].growth
    share, share_of_l = (t / tiles) ** (2 * growth), (t / tiles) ** 2  # after tile t, squared; l's terms have one sign
    own, own_of_l = np.full(tiles, tiles ** -(2 * growth)), np.full(tiles, tiles**-2.0)  # of one tile's own terms
    raised = 1 / t  # the chance that tile t raises a row's maximum: that it is the record among t alike
    accumulator = np.concatenate(weights(algorithm, share, own, raised, divided=True))
    row_sum = np.concatenate(weights(algorithm, share_of_l, own_of_l, raised, divided=False))
    terms = _of_terms(VALUES[values], block_kv if algorithm == "fa1" else tiles * block_kv, tiles * block_kv)
    return Roundings(accumulator, row_sum, terms)


def accepted_kernel(algorithm: str, values: str, tiles: int) -> None:
    """Check a law's arguments.

    Raises:
        ValueError: the algorithm is not of ALGORITHMS, values is no key of VALUES, or tiles is no whole number from 1.
    """
    for name, value, accepted in (("algorithm", algorithm, ALGORITHMS), ("values", values, VALUES)):
        if value not in accepted:
            raise ValueError(f"{name}: got {value!r}; accepted are {', '.join(accepted)}")
    if not is_count(tiles):
        raise ValueError(f"tiles: got {tiles!r}; accepted is a whole number from 1")


def is_count(x: Any) -> bool:
    """Return whether x is a whole number of at least 1, of Python's or numpy's."""
    return isinstance(x, Integral) and not isinstance(x, bool) and int(x) >= 1


def weights(algorithm: str, share: Any, own: Any, raised: Any, divided: bool) -> list[Any]:
    """Compute, for each rounding of a running sum, the square of the partial sum that it rounds.

    Args:
        algorithm: one of ALGORITHMS.
        share, own: arrays or tensors (tiles, ...): the squares of the sum up to a tile, and of the tile's own terms.
        raised: (tiles, ...), of share's shape or with 1 in its last dimensions: the chance that a tile raises the row's
            maximum, or whether it does.
        divided: whether the sum is divided by the row sum, as O is.

    Returns:
        list with an array for each kind of rounding, (tiles, ...) or less by a tile or all but one.

    Raises:
        ValueError: there is no such algorithm.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm: got {algorithm!r}; accepted are {', '.join(ALGORITHMS)}")
    if algorithm == "baseline":  # rounded once
        return [share[-1:]]
    squares = [own, share[1:]]  # P V; the additions, of which the first is to 0, and exact
    if algorithm == "fa1":
        squares.append((1 - raised) * own)  # a P V and a l: a is 1 in the tile that holds the maximum
        if divided:  # O l, with the l it was just divided by; where the maximum is raised, with another number
            squares.append(((1 - raised[1:]) * BACK + 2 * raised[1:]) * share[:-1])
    else:
        squares.append(raised[1:] * share[:-1])  # a O and a l
    return [*squares, share[-1:]] if divided else squares


def _of_terms(values: Values, keys: int, all_keys: int) -> dict[str, float]:
    """Compute the weights of P's roundings. A rounding before P is summed changes O by v - O, and not by v.

    Args:
        keys: that share a maximum. all_keys: of a row.
    """
    highest = special.ndtri(0.5 ** (1 / keys))  # the median of the largest of so many scores N(0, 1)
    exponent = 2 + (highest - 2) ** 2 if values.peaked else 1.0  # exp, and E (S - m)^2
    before = 1.0 if values.variance is None else values.variance
    after = 1.0 if values.square is None else values.square
    weights = dict(scores=values.scores * before, exponent=exponent * before, probs=after)
    return {step: weight * values.averaged(all_keys) for step, weight in weights.items()}
