"""Crafted inputs that show how any function adds up a dot product: `facts`. Nothing is assumed; None is "not seen".

Probes are sums of few powers of two. A term that survives beside two large ones that cancel was added after they had
met; so the survivors among all triples give the order of additions, for any tree of them, and inside one step the
smallest survivor gives the number of bits kept there.
"""

from itertools import combinations

import numpy as np

from fa_lib.experiments.hardware.tensor_cores import RESULT_BITS, Mma, Rule
from fa_lib.numerics.formats import Format

ROUNDINGS = {  # of +1/2, +3/2, -1/2 and -3/2 units in the last place: units away from zero that come out
    (0, 1, 0, 1): "toward_zero",
    (0, 2, 0, 2): "to_nearest_even",
    (1, 2, 1, 2): "to_nearest_away",
    (0, 1, 1, 2): "down",
    (1, 2, 0, 1): "up",
}
DROPS = {(0, 0): "toward_zero", (0, 1): "floored", (1, 1): "to_nearest", (1, 0): "up"}  # of +3/4 and -3/4


def facts(mma: Mma, k, fmt, result="FP32"):
    """Find out by probes how an `mma` of k products adds (`tensor_cores` says what an `mma` is).

    Args:
        mma: (a, b, c) -> d; a, b: float64 (n, k); c: float64 (n,); d: float32 (n,).
        k: products of one call, at least 3. fmt: format of a and b (anything `Format.of` takes).
        result: "FP32" or "FP16", the format of c and d.

    Returns:
        dict of plain values, None where the probe is inconclusive:
        nothing_lost: no tiny term was lost beside large ones, as if the sum were exact; then all is one step.
        steps: lists of positions that are added in one step, in the order of the steps; k stands for c.
        block: products of a step, if all steps have as many. ascending: the positions go up from step to step.
        c_with_products: c is added in one step with products (which one: steps).
        fraction_bits: F, the largest n with 1 - 1 + 2^-n kept in one step, of products only.
        fraction_bits_1_from_c, fraction_bits_tiny_from_c: the same where c is one of the large terms, or the tiny one.
        fraction_bits_at_least: the largest n that was tried.
        dropped: bits below F go "toward_zero", are "floored", or rounded "to_nearest".
        product_normalised: F counts from the exponent of the product itself, not from the sum of its operands'.
        fraction_bits_beside_subnormals: F where the large terms have a subnormal operand and the tiny one is c: less
            than F by the leading zeros of that operand where the hardware does not normalise it.
        zero_product_aligns: a product of zero and a large number shifts out small terms.
        result_bits, result_rounding: significant bits of d, and where the others go (None: no bit was lost).
        c_alone_bits: significant bits of c that come out where all products are zero.
        subnormal_inputs, subnormal_results: whether they are kept, not taken for zero.
    """
    probe = _Probe(mma, k, Format.of(fmt), result)
    survived = probe.survivors()
    lost_nothing = bool(survived[probe.tried].all())
    steps = [list(range(k + 1))] if lost_nothing else _steps(survived)
    found = _structure(steps, k) | {"nothing_lost": lost_nothing}
    step = max(steps or [[]], key=lambda step: len(set(step) - {k}))
    products = [at for at in step if at != k]
    F = probe.fraction_bits(*products[:3])
    found["fraction_bits"] = F
    found["fraction_bits_at_least"] = probe.reach
    with_c = k in step
    found["fraction_bits_1_from_c"] = probe.fraction_bits(k, *products[:2]) if with_c else None
    found["fraction_bits_tiny_from_c"] = probe.fraction_bits(*products[:2], k) if with_c else None
    found["dropped"] = probe.dropped(F, products)
    found["product_normalised"] = probe.product_normalised(F, products)
    found["fraction_bits_beside_subnormals"] = probe.beside_subnormals(products) if with_c else None
    found["zero_product_aligns"] = probe.zero_product_aligns() if with_c else None
    found |= probe.result_rounding(F, step)
    found["c_alone_bits"] = probe.c_alone_bits()
    return found | probe.subnormals()


def rule_of(found):
    """Return the Rule that `facts` describe; None where a fact is missing, or no Rule has it."""
    steps, bits = found["steps"], found["result_bits"]
    if None in (found["block"], found["fraction_bits"]) or found["dropped"] != "toward_zero":
        return None
    rounding = "to_nearest_even" if bits == RESULT_BITS["FP16"] else "toward_zero"
    if found["result_rounding"] not in (rounding, None):  # None: the sum never filled the result's format
        return None
    k = sum(map(len, steps)) - 1
    c_last = steps[-1] == [k]
    results = {bits: result for result, bits in RESULT_BITS.items()} | {None: "FP32"}
    if bits not in results or not (c_last or k in steps[0]):
        return None
    order = None if found["ascending"] else tuple(at for step in steps for at in step if at != k)
    return Rule(found["block"], found["fraction_bits"], results[bits], order, c_last)


def survivors(mma: Mma, k, fmt, result="FP32"):
    """Measure the raw data of `facts`' steps.

    Args:
        mma, k, fmt, result: as of `facts`.

    Returns:
        bool (k + 1, k + 1, k + 1): [i, j, l] says that terms i and j met before l; position k is c.
    """
    return _Probe(mma, k, Format.of(fmt), result).survivors()


def _structure(steps, k):
    sizes = {len(set(step) - {k}) for step in steps or [] if set(step) != {k}}
    order = [at for step in steps or [] for at in step if at != k]
    return {
        "steps": steps,
        "block": sizes.pop() if len(sizes) == 1 else None,
        "ascending": order == sorted(order) if steps else None,
        "c_with_products": any(k in step and len(step) > 1 for step in steps) if steps else None,
    }


def _steps(survived):
    """Return the steps in order, from survived[i, j, l], "i and j met before l"; None where they form no chain."""
    later = survived.any(axis=1)  # (i, l): l was added when i had met another term already
    one_step = ~later & ~later.T
    steps = sorted({tuple(np.flatnonzero(row).tolist()) for row in one_step})
    if sum(map(len, steps)) != len(one_step):  # "in one step" is no equivalence
        return None
    first = [step[0] for step in steps]
    between = later[np.ix_(first, first)]
    if (between & between.T).any():  # a tree: each was added when the other had met a third
        return None
    return [list(steps[at]) for at in np.argsort(between.sum(axis=0), kind="stable")]


class _Probe:
    """The probes of one `mma`. Position k of a problem is c."""

    def __init__(self, mma, k, fmt, result):
        self.mma, self.k, self.fmt, self.result = mma, k, fmt, result
        self.high = min(24, 2 * fmt.emax) if result == "FP32" else 8
        self.low = max(2 * fmt.emin, self.high - 60 if result == "FP32" else -20)
        self.reach = self.high - self.low  # powers of two between the largest and the smallest term

    def run(self, terms):
        """Compute d of problems {position: term}, whose terms are mantissa * 2^exponent.

        Returns:
            d: float64 (problems,).
        """
        full = np.zeros((len(terms), self.k + 1))
        for row, problem in zip(full, terms):
            row[list(problem)] = list(problem.values())
        mantissa, exponent = np.frexp(full[:, : self.k])
        exponent -= 1
        of_b = np.clip(exponent // 2, self.fmt.emin, self.fmt.emax)
        a = np.ldexp(2 * mantissa, exponent - of_b)
        b = np.where(mantissa == 0, 0.0, np.ldexp(1.0, of_b))
        return self.mma(a, b, full[:, self.k]).astype(np.float64)

    def survivors(self):
        """Say where a tiny term at l came out beside a large one at i and its negative at j: bool (k + 1,) * 3."""
        one, tiny = 2.0**self.high, 2.0**self.low
        at = [(i, j, l) for i, j in combinations(range(self.k + 1), 2) for l in range(self.k + 1) if l not in (i, j)]
        came_out = self.run([{i: one, j: -one, l: tiny} for i, j, l in at]) != 0
        i, j, l = np.array(at).T
        survived = np.zeros((self.k + 1,) * 3, bool)
        survived[i, j, l] = survived[j, i, l] = came_out
        self.tried = np.zeros_like(survived)
        self.tried[i, j, l] = True
        return survived

    def fraction_bits(self, *at):
        """Return the largest n up to which all of 2^-1 .. 2^-n at the third position came out; None if all did.

        Args:
            at: three positions: of a large term, of its negative and of the small term.
        """
        if len(at) < 3:
            return None
        one, (i, j, l) = 2.0**self.high, at
        tiny = one * 2.0 ** -np.arange(1, self.reach + 1)
        exact = self.run([{i: one, j: -one, l: each} for each in tiny]) == tiny
        return None if exact.all() else int(exact.argmin())

    def dropped(self, F, products):
        """Say where bits below F go, from +3/4 and -3/4 of F's unit: of DROPS."""
        if F is None or self.reach < F + 2:
            return None
        one, (i, j, l) = 2.0**self.high, products[:3]
        unit = one * 2.0**-F
        d = self.run([{i: one, j: -one, l: sign * 0.75 * unit} for sign in (1, -1)])
        return DROPS.get(tuple((abs(d) / unit).tolist()))

    def product_normalised(self, F, products):
        """Say whether F counts from the product's exponent, from 1.5 * 1.5 = 2.25, which counts as 2^0 or as 2^1."""
        if F is None or self.reach < F + 1:
            return None
        i, j, l = products[:3]
        a, b, c = np.zeros((2, self.k)), np.zeros((2, self.k)), np.zeros(2)
        half = self.high // 2
        a[:, i], a[:, j] = 1.5 * 2.0**half, -1.5 * 2.0**half
        b[:, i] = b[:, j] = 1.5 * 2.0 ** (self.high - half)
        small = np.array([self.high - F, self.high - F + 1])
        of_b = np.clip(small // 2, self.fmt.emin, self.fmt.emax)
        a[:, l], b[:, l] = 2.0 ** (small - of_b), 2.0**of_b
        came_out = (self.mma(a, b, c) != 0).tolist()
        return {(True, True): False, (False, True): True}.get(tuple(came_out))

    def beside_subnormals(self, products):
        """Return F where the large terms have a subnormal operand and the small one is c."""
        if len(products) < 2 or self.result != "FP32":
            return None
        n = np.arange(1, 41)
        a, b = np.zeros((len(n), self.k)), np.zeros((len(n), self.k))
        a[:, products[0]] = 2.0 ** (self.fmt.emin - self.fmt.precision + 1)
        a[:, products[1]] = -a[:, products[0]]
        b[:, products[:2]] = 2.0**self.fmt.emax
        c = a[:, products[0]] * b[:, products[0]] * 2.0**-n
        exact = self.mma(a, b, c).astype(np.float64) == c
        return None if exact.all() else int(exact.argmin())

    def zero_product_aligns(self):
        """Say whether 0 * the largest power of two shifts c out: c comes out if that product aligns nothing."""
        lowest = -100 if self.result == "FP32" else -14
        c = 2.0 ** np.arange(lowest, 0)
        a, b = np.zeros((len(c), self.k)), np.zeros((len(c), self.k))
        a[:, 0] = 2.0**self.fmt.emax
        exact = [self.mma(x, y, c).astype(np.float64) == c for x, y in ((a, b), (b, a))]
        return not bool(np.all(exact))

    def result_rounding(self, F, step):
        """Find result_bits and result_rounding, from a sum of 2^m large terms and one small term: as many large terms
        as fit show more bits of the sum than F does."""
        nothing = {"result_bits": None, "result_rounding": None}
        if len(step) < 2:
            return nothing
        m = (len(step) - 1).bit_length() - 1
        large = dict.fromkeys(step[: 2**m], 2.0**self.high)
        at, total = step[2**m], 2.0 ** (self.high + m)
        most = self.reach if F is None else F
        small = 2.0 ** (self.high - np.arange(1, most + 1))
        exact = self.run([large | {at: each} for each in small]) == total + small
        if exact.all() or not exact[0]:
            return nothing
        last = 2.0 * small[exact.argmin()]  # the unit in the last place of d
        negative = {position: -term for position, term in large.items()}
        cases = [(large, 0.5), (large, 1.5), (negative, -0.5), (negative, -1.5)]
        d = self.run([terms | {at: units * last} for terms, units in cases])
        units = tuple(((abs(d) - total) / last).tolist())
        return {"result_bits": int(np.log2(total / last)) + 1, "result_rounding": ROUNDINGS.get(units)}

    def c_alone_bits(self):
        """Count the significant bits of c that come out where all products are zero."""
        c = 1 + 2.0 ** -np.arange(1, RESULT_BITS[self.result])
        zeros = np.zeros((len(c), self.k))
        lost = self.mma(zeros, zeros, c).astype(np.float64) != c
        return int(lost.argmax()) + 1 if lost.any() else RESULT_BITS[self.result]

    def subnormals(self):
        """Find subnormal_inputs and subnormal_results: whether they are kept."""
        fmt, bits = self.fmt, RESULT_BITS[self.result]
        smallest = 2.0 ** (fmt.emin - fmt.precision + 1)
        a, b, c = np.zeros((2, self.k)), np.zeros((2, self.k)), np.zeros(2)
        up = 2.0 ** min(fmt.emax, 20)
        a[0, 0], b[0, 0], a[1, 0], b[1, 0] = smallest, up, up, smallest
        d = self.mma(a, b, c)
        least = (-126 if self.result == "FP32" else -14) - bits + 1
        c = np.array([2.0**least])
        through = self.mma(np.zeros((1, self.k)), np.zeros((1, self.k)), c)
        return {
            "subnormal_inputs": bool((d == smallest * up).all()),
            "subnormal_results": bool((through == c).all()),
        }
