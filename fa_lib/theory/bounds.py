"""The most that online softmax can be off, for any inputs: the forward error, bounded (docs/law/theory.md)."""

import math

from scipy import special

from fa_lib.kernels.precision import Precision
from fa_lib.theory.rounding_counts import accepted_kernel


def bound(
    precision: Precision, *, tiles: int, algorithm: str = "fa2", rise: float = 0.0, keys: int = 0, failure: float = 0.0
) -> float:
    """Bound the forward error of online softmax: |O - golden| <= bound * sum_j P_j |v_j|, for any inputs.

    Only the accumulator, the row sum and the factors round here (P is taken as exact), and nothing underflows.

    Args:
        precision: its formats accumulator, row_sum and factors count.
        tiles: number of tiles of keys.
        algorithm: "fa1" or "fa2".
        rise: the most that scores of one row differ; the factors' exponents add up to no more.
        keys: of a row, for the probabilistic bound of one output, which must hold for all of them at once; for all
            outputs of a call, times their number.
        failure: 0 for the deterministic bound, where n roundings make gamma_n; a probability for the bound that fails
            no more often, if rounding errors are independent with mean zero: n roundings then make about sqrt(n).

    Returns:
        The factor; infinity where the bound says nothing.

    Raises:
        ValueError: the algorithm is neither, or tiles is no whole number from 1.
    """
    if algorithm not in ("fa1", "fa2"):
        raise ValueError(f"algorithm: got {algorithm!r}; accepted are fa1, fa2")
    accepted_kernel(algorithm, "one_sign", tiles)
    u = {step: getattr(precision, step).unit_roundoff for step in ("accumulator", "row_sum", "factors")}
    rescales = tiles if rise else 0
    # roundings of a term on its way into O, into l, and into both alike: those change the weights of keys
    if algorithm == "fa1":
        of_o, of_l, alike, factors, rises = 3 * tiles + 1, tiles + 2, rescales, 2 * rescales, 2 * rise
    else:
        of_o, of_l, alike, factors, rises = tiles + 1 + rescales, tiles + rescales, 0, rescales, rise
    products = 4 * max(keys, 1)  # a key's: into O, into l, into both, and of factors
    strength = math.sqrt(2 * math.log(2 * products / failure)) / (1 - max(u.values())) if failure else None
    sums = (1 + gamma(of_o, u["accumulator"], strength)) * (1 + gamma(of_l, u["row_sum"], strength)) - 1
    scale = (1 + gamma(alike, u["row_sum"], strength)) * (1 + gamma(factors, u["factors"], strength))
    weights = scale * math.exp(rises * u["factors"]) - 1
    return sums * (1 + weights) ** 2 + 2 * weights * (1 + weights)


def gamma(n: int, u: float, strength: float | None = None) -> float:
    """Bound how much n factors 1 + delta, |delta| <= u, change a product, relatively.

    Args:
        n: number of factors.
        u: the bound of each delta.
        strength: None for the bound that always holds, n u / (1 - n u); or lambda, for the bound that holds with
            probability 1 - 2 exp(-lambda^2 (1 - u)^2 / 2) (Higham and Mary 2019, theorem 2.4), where that is less.
    """
    certain = n * u / (1 - n * u) if n * u < 1 else math.inf
    if strength is None:
        return certain
    return min(certain, float(special.expm1(strength * math.sqrt(n) * u + n * u**2 / (1 - u))))
