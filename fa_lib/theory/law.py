"""What error to expect of an attention kernel, from the formats it rounds to and the number of its tiles.

The law. O and l are followed tile by tile (`theory.drift`): the mean of their rounding errors, which has a sign, and
their scatter. All other roundings are counted: one to nearest makes a relative error of root mean square RMS * u (u:
unit roundoff), and those that are averaged over keys count less. No constant is fitted. docs/law/theory.md derives each
line, and says where FlashAttention-1 departs.
"""

import math

import numpy as np
from scipy import special

from fa_lib.kernels.precision import Precision
from fa_lib.numerics.formats import FormatLike
from fa_lib.theory import drift
from fa_lib.theory.extremes import RMS, largest
from fa_lib.theory.rounding_counts import VALUES, accepted_kernel, is_count, roundings

VALUES_OF = {  # of V: distribution of `kernels.inputs` -> a key of VALUES
    "uniform": "one_sign",
    "normal": "zero_mean",
    "one-signed V": "one_sign_peaked",
}


def _log_sum_exp(keys: int) -> tuple[float, float]:
    """Compute L and log l of `keys` scores N(0, 1): exp(S) has the mean exp(1 / 2)."""
    L = math.log(keys) + 0.5
    return L, L - special.ndtri(0.5 ** (1 / keys))


def expected(
    precision: Precision,
    *,
    tiles: int,
    algorithm: str = "fa1",
    splits: int = 1,
    values: str = "one_sign",
    block_kv: int = 64,
) -> float:
    """Compute the error to expect of O: the root mean square of O - golden over that of golden.

    Args:
        precision: formats of the kernel's steps. Rounding the inputs makes no error here: the golden value is computed
            from the rounded inputs.
        tiles: number of tiles of keys.
        algorithm: one of ALGORITHMS; "baseline" has no tiles.
        splits: number of parts of the keys that are computed separately and merged.
        values: a key of VALUES. "one_sign": V and so all terms of O have one sign and P varies little, as for uniform
            inputs; "zero_mean": V has a mean of zero and scores are N(0, 1), as for normal inputs; "one_sign_peaked":
            those scores, and V >= 0.
        block_kv: keys of a tile.

    Returns:
        A plain number, not in units of u.

    Raises:
        ValueError: an argument is none of those accepted.
    """
    accepted_kernel(algorithm, values, tiles)
    if not is_count(splits) or splits > tiles:
        raise ValueError(f"splits: got {splits!r}; accepted is a whole number from 1 to the {tiles} tiles")
    variance = {step: (RMS * getattr(precision, step).unit_roundoff) ** 2 for step in Precision.steps()}
    counts = roundings(-(-tiles // splits), algorithm, values, block_kv)
    if algorithm == "baseline":
        drifted, carried = 0.0, variance["accumulator"] + variance["row_sum"]
    else:
        of_rows = drift.of_output(precision, -(-tiles // splits), algorithm, values, block_kv)
        drifted, carried = (of_rows.mean**2).mean(), of_rows.variance.mean()
    if splits > 1:  # the parts' errors are independent but for their drift; their sum is rounded once more
        cancelling = values == "zero_mean"  # then the parts' outputs are as independent as their errors
        carried = (carried if cancelling else carried / splits) + variance["accumulator"]
        if cancelling:  # nor do the weights' errors cancel: L = m + log l is rounded, as large as it is
            L, log_l = _log_sum_exp(-(-tiles // splits) * block_kv)
            carried += 2 * variance["factors"] + variance["row_sum"] * (L**2 + log_l**2)
    terms = sum(weight * variance[step] for step, weight in counts.terms.items())
    if VALUES[values].square is not None:  # of each part's keys; the parts' own are independent
        terms /= splits
    stored = variance["output"] if stores(precision) else 0.0
    return math.sqrt(drifted + carried + terms + stored)


def bias(
    precision: Precision, *, tiles: int, algorithm: str = "fa2", values: str = "one_sign", block_kv: int = 64
) -> float:
    """Compute the mean of O's relative error, with its sign: positive where O is too large. Arguments as `expected`,
    "baseline" excepted."""
    accepted_kernel(algorithm, values, tiles)
    return float(drift.of_output(precision, tiles, algorithm, values, block_kv).mean.mean())


def stores(precision: Precision) -> bool:
    """Return whether O is rounded once more where it is stored."""
    return precision.output.precision < precision.accumulator.precision


def expected_gradients(precision: Precision, *, tiles: int, values: str = "zero_mean") -> float:
    """Compute the error to expect of a gradient that is summed over tiles: dQ over tiles of keys, dK and dV over tiles
    of queries. It is a relative root mean square, of three roundings: of the sums, of the matrix that enters them (dS
    or P), and of storing.

    Args:
        precision: formats of the kernel's steps.
        tiles: number of tiles that are added up.
        values: of the terms, as for `expected`; gradients have a mean of zero.

    Raises:
        ValueError: values or tiles are none of those accepted.
    """
    accepted_kernel("fa2", values, tiles)
    share = (np.arange(1, tiles + 1) / tiles) ** (2 * VALUES[values].growth)
    sums = share.sum() * (RMS * precision.grad_sums.unit_roundoff) ** 2
    matrix = (RMS * precision.grads.unit_roundoff) ** 2 if values == "zero_mean" else 0.0
    narrower = precision.output.precision < precision.grad_sums.precision
    return math.sqrt(sums + matrix + ((RMS * precision.output.unit_roundoff) ** 2 if narrower else 0.0))


def largest_over_baseline(
    precision: Precision,
    stored: FormatLike,
    *,
    tiles: int,
    algorithm: str = "fa1",
    values: str = "one_sign",
    count: int = 2**17,
    block_kv: int = 64,
) -> float:
    """Compute the largest error of `count` outputs over Baseline's largest error, by `extremes.largest`: the roundings
    of O and l and of storing are bounded, half an ulp each; those of P are many and normal.

    For FA1 in one format, V of one sign, T tiles and a hundred thousand outputs the ratio tends to 1.85 sqrt(T).

    Args:
        precision: formats of the kernel's steps.
        stored: the format of Baseline.
        count: number of outputs.
        tiles, algorithm, values, block_kv: as `expected`.
    """

    def error(precision, algorithm):
        counts = roundings(tiles, algorithm, values, block_kv)
        u = {step: getattr(precision, step).unit_roundoff for step in Precision.steps()}
        terms = RMS * math.sqrt(sum(weight * u[step] ** 2 for step, weight in counts.terms.items()))
        widths = [*np.sqrt(counts.accumulator) * u["accumulator"], *np.sqrt(counts.row_sum) * u["row_sum"]]
        widths += [u["output"]] * stores(precision)
        if values == "zero_mean":  # O itself is normal, and with it half its ulp
            terms, widths = math.hypot(terms, RMS * float(np.linalg.norm(widths))), []
        return largest(count, terms, widths)

    return error(precision, algorithm) / error(Precision.materialized(stored), "baseline")
