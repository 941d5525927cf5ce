"""How far a right kernel may be from the golden value on these very inputs: each output's own bound.

`theory` has the error to expect of a kind of inputs. Here Q, K and V are given, so that the scores, the probabilities
and the partial sums are known, and each rounding counts with what it is worth in this row. docs/reference/testing.md
derives it.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral

import numpy as np
import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from fa_lib import kernels
from fa_lib.kernels.options import ResolvedOptions, Scores
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.rows import by_rows, nonzero
from fa_lib.numerics.formats import FP32, FP64, Format, FormatLike
from fa_lib.theory.rounding_counts import ALGORITHMS, weights

BLOCK = 64  # keys of a tile, where nothing is said
PART = 16  # keys that a part of split keys has at least
EXP = 1e-4  # relative error of the exponentials that kernels take for 16 bits: fexp_u20 of ATen, FA4's polynomials
SHIFTS = 8  # of the numbers against the format's grid, over which an error of equal numbers is averaged
ROUNDINGS = 5  # of O in a tile, at most: FA1's l O, P V, a P V, their sum and its division
FAR = 30.0  # the most that an exponent's error is taken for
DITHER = 0.6  # ulp of a sum: terms that scatter by more have independent roundings (`repeated`)


@dataclass(frozen=True)
class Tolerance:
    """The golden value of a call, and how far a right kernel may be from it.

    Attributes:
        golden, bound: float64 (..., n_q, d_v): abs(o - golden) <= bound holds for every output of a right kernel, in
            all calls but one in 1 / false_alarm.
        of_row: float64 (..., n_q, 1), the bound of a row's error `along` golden: an error of the row sum, or a bias, is
            small in each output, but has one sign in all of them.
        seen: bool (..., n_q, 1), whether a row sees a key; golden and bound are 0 where it does not.
    """

    golden: Float64[Tensor, "... n_q d_v"]
    bound: Float64[Tensor, "... n_q d_v"]
    of_row: Float64[Tensor, "... n_q 1"]
    seen: Bool[Tensor, "... n_q 1"]

    def along(self, o: Tensor) -> Float64[Tensor, "*lead n_q 1"]:
        """Compute |(o - golden) . golden| / |golden| of each row, (..., n_q, 1), of o (..., n_q, d_v); 0 where golden
        is."""
        size = self.golden.norm(dim=-1, keepdim=True)
        return ((o.double() - self.golden) * self.golden).sum(-1, keepdim=True).abs() / size.where(size > 0, 1.0)

    def times(self, o: Tensor) -> tuple[Tensor, Tensor]:
        """Divide the error of each output of o (..., n_q, d_v), and of each row along golden (..., n_q, 1), by its
        bound."""
        error = (o.double() - self.golden).abs()
        of_outputs, of_rows = (e / b.where(b > 0, 1.0) for e, b in ((error, self.bound), (self.along(o), self.of_row)))
        return of_outputs, of_rows


def declared(precision: Precision | FormatLike) -> Precision:
    """Return a Precision as it is, or `Precision.kernel` of a format; raise a ValueError where it is neither."""
    return precision if isinstance(precision, Precision) else Precision.kernel(precision)


def tolerance(
    q: Tensor, k: Tensor, v: Tensor, *, precision: Precision | FormatLike, tiles: int | None = None,
    algorithm: str = "fa2", false_alarm: float = 1e-6, **options,
) -> Tolerance:  # fmt: skip
    """Bound |o - golden| for a right kernel with these formats, on these inputs.

    Every rounding to nearest is taken as an error of its own, with mean zero, evenly spread over at most half an ulp to
    either side: relative to what it rounds at most u, of variance u^2 / 3. To first order the error of an output is a
    sum of such errors with weights that are computed here. Such a sum is sub-Gaussian with its own variance s^2:
    P(|error| > z s) <= 2 exp(-z^2 / 2). With M outputs and rows z = sqrt(2 ln(2 M / false_alarm)) makes all of them
    hold at once (union bound). Storing the answer adds half an ulp at most, for certain; along a row it counts as
    roundings do. Where roundings cannot be independent (equal probabilities, equal terms), they are added up as they
    repeat.

    Args:
        q: (..., n_q, d), k: (..., n_kv, d), v: (..., n_kv, d_v); as `kernels.reference`.
        precision: the Precision that the kernel declares, or a format, for `Precision.kernel`.
        tiles: number of tiles of keys; None: tiles of BLOCK keys. It counts where sums are carried in fewer bits than
            FP32.
        algorithm: one of `rounding_counts.ALGORITHMS`. "baseline" normalises P before it is rounded.
        false_alarm: how often a right kernel may exceed it, in calls; above 0, below 1.
        options: of `kernels.options.CallOptions`.

    Raises:
        ValueError: an argument does not fit, or an input is not finite.
    """
    precision, n_kv = declared(precision), k.shape[-2] if isinstance(k, Tensor) and k.ndim > 1 else 1
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm: got {algorithm!r}; accepted are {', '.join(ALGORITHMS)}")
    tiles = -(-n_kv // BLOCK) if tiles is None else tiles
    if isinstance(tiles, bool) or not isinstance(tiles, Integral) or not 1 <= tiles <= n_kv:
        raise ValueError(f"tiles: got {tiles!r}; accepted is a whole number from 1 to the {n_kv} keys")
    if not 0 < false_alarm < 1:
        raise ValueError(f"false_alarm: got {false_alarm!r}; accepted is a number between 0 and 1")
    golden = kernels.golden(q, k, v, inputs=precision.inputs, **options)  # checks what came
    events = golden.numel() + golden.shape[:-1].numel()  # outputs, and rows
    strength = math.sqrt(2 * math.log(2 * events / false_alarm))
    law = _Law(precision, -(-n_kv // int(tiles)), algorithm, strength)
    inputs, resolved = (q.double(), k.double(), v.double()), ResolvedOptions.of(q, k, v, **options)
    out = by_rows(law.bounded, inputs, precision, resolved, features=v.shape[-1] + 2, width=n_kv)
    return Tolerance(golden, out[..., :-2], out[..., -2:-1], out[..., -1:] > 0)


@dataclass(frozen=True)
class _Law:
    """Computes the bound of rows of one head, by the symbols of docs/reference/testing.md: its numbered lines."""

    p: Precision
    block: int  # keys of a tile
    algorithm: str
    strength: float  # z

    def variance(self, step: str) -> float:
        """Of one rounding, relative."""
        return getattr(self.p, step).unit_roundoff ** 2 / 3

    def inner(self, step: str) -> float:
        """Of one rounding inside a sum: FP32's, or the step's if that is wider; and the golden value's own, FP64's."""
        wide = min(getattr(self.p, step).unit_roundoff, FP32.unit_roundoff)
        return (wide**2 + FP64.unit_roundoff**2) / 3

    def bounded(self, q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> Tensor:
        """The bound of rows of one head, that of their errors along O, and whether each sees a key: (rows, d_v + 2)."""
        S = scores(q, k, 0)  # (rows, n_kv)
        seen = S.amax(-1, keepdim=True) != -math.inf  # (rows, 1)
        if scores.sink is not None:  # one more key, the first, with a value of 0
            S = torch.cat([scores.sink.expand(S.shape[0], 1), S], -1)
            k, v = (torch.cat([torch.zeros_like(x[:1]), x]) for x in (k, v))
        m = S.amax(-1, keepdim=True)
        p = torch.exp(S - m.where(m != -math.inf, 0.0))  # (rows, n_kv), 1 at the maximum
        l = p.sum(-1, keepdim=True)
        W = p / nonzero(l)  # the weights of keys
        D = torch.cat([W[:, : -scores.o.n_kv], scores.drop(W[:, -scores.o.n_kv :], 0)], -1)  # those that V meets
        O = D @ v  # (rows, d_v)
        of_scores = self.of_scores(q, k, scores, S.where(W > 0, m), m)
        size = O.square().sum(-1, keepdim=True).sqrt()  # (rows, 1)
        along = O / size.where(size > 0, 1.0)
        own = (v @ along.mT).mT[..., None]  # (rows, n_kv, 1): each key's value along O
        of_outputs, of_row = self.of_terms((S, p, W, D, of_scores), ((v, O), (own, size)))
        sums = self.of_sums(S, W, D, v, O, m, l)
        bound = self.strength * (of_outputs + sums).sqrt()
        half = self.p.output.ulp(O.abs() + bound) / 2
        bound = bound + half
        stored = torch.maximum((along * half).square().sum(-1, keepdim=True) / 3, self.stored(O, along))
        by_feature = (along.square() * sums).sum(-1, keepdim=True)  # sums of features that differ err apart
        sums = torch.maximum(by_feature, self.of_sums(S, W, D, own, size, m, l))
        along_row = self.strength * (of_row + sums + stored).sqrt()
        return torch.cat([bound.where(seen, 0.0), along_row.where(seen, 0.0), seen], -1)

    def of_terms(self, terms: tuple[Tensor, ...], sums: tuple[tuple[Tensor, Tensor], ...]) -> list[Tensor]:
        """The variance of each O (rows, d_v) of `sums`, pairs of v and O, by scores and P; v: as `weighted_values`."""
        S, p, W, D, of_scores = terms
        p = W if self.algorithm == "baseline" else p
        of_p, coarse = self.repeating(self.p.probs, p, W, D, sums, True), self.p.scores.precision < FP32.precision
        of_S = self.repeating(self.p.scores, S.where(W > 0, 0.0), W, D, sums, False) if coarse else None
        found = []
        for i, (v, O) in enumerate(sums):
            weights, shift = self.of_weights(of_scores, W, D, v, O)
            weights = weights if of_S is None else torch.maximum(weights, of_S[i][1])
            found.append(self.of_probs(p, W, D, v, O, torch.maximum(*of_p[i])) + weights / (1 - shift) ** 2)
        return found

    def stored(self, O: Tensor, along: Tensor) -> Tensor:
        """Line 9: the mean square of what storing O adds along it, over shifts, since equal outputs err alike."""
        total = torch.zeros_like(O[:, :1])
        for i in range(SHIFTS):
            shift = 2 ** ((i + 0.5) / SHIFTS)
            e = (self.p.output(O * shift) - O * shift) / shift
            total = total + (e * along).sum(-1, keepdim=True).square() / SHIFTS
        return total

    def of_scores(self, q: Tensor, k: Tensor, scores: Scores, S: Tensor, m: Tensor) -> Tensor:
        """Lines 2, 3 and 4: the variance of each exponent S - m and of its exponential, (rows, n_kv)."""
        d, scale = q.shape[-1], scores.o.scale
        raw, squares = q @ k.mT * scale, q.square() @ k.mT.square() * (scale * scale)
        products = (d + 1) * (squares / 6 + raw.square() / 3) + squares + raw.square()  # d products, their sums, scale
        if scores.o.softcap is not None:  # a quotient, its tanh, a product
            products = products + 3 * S.square()
        rounded = (S - m).square() + S.square() + 4  # the exponential is within an ulp
        twice = self.p.scores.precision < FP32.precision and math.frexp(scale)[0] != 0.5  # before the scale, too
        variance = self.inner("scores") * products + self.variance("scores") * (S.square() + twice * raw.square())
        return variance + self.variance("exponent") * rounded + self.exp() ** 2 / 2

    def of_weights(self, of_scores: Tensor, W: Tensor, D: Tensor, v: Tensor, O: Tensor) -> tuple[Tensor, Tensor]:
        """The variance of O by the errors of the keys' weights, in numerator and row sum alike; and z times
        the standard deviation of the row sum, by which the first order falls short."""
        z = self.strength
        raised = torch.expm1((z * of_scores.sqrt()).clamp(max=FAR)) / z  # exp(e) - 1 where e is large
        s = raised.square()
        out = weighted_values(D.square() * s, v.square()) - 2 * O * weighted_values(D * W * s, v)
        of_l = (W.square() * s).sum(-1, keepdim=True)
        return (out + O.square() * of_l).clamp(min=0), (z * of_l.sqrt()).clamp(max=0.9)

    def of_probs(self, p: Tensor, W: Tensor, D: Tensor, v: Tensor, O: Tensor, alike: Tensor) -> Tensor:
        """Line 1, P's rounding: before or after the row sum, or repeating (alike); at most all to one side."""
        fmt = self.p.probs
        step = (fmt.ulp(torch.zeros_like(p)) / 2 / p.where(p > 0, 1.0)).clamp(fmt.unit_roundoff, 1.0)
        s = step.square() / 3 + self.exp() ** 2 / 2
        out = weighted_values(D.square() * s, v.square())
        centred = out - 2 * O * weighted_values(D * W * s, v) + O.square() * (W.square() * s).sum(-1, keepdim=True)
        independent = torch.maximum(out, centred)
        most = step + self.exp()
        one_sided = weighted_values(most * D, v.abs()) + O.abs() * (most * W).sum(-1, keepdim=True)
        return torch.minimum(torch.maximum(independent, alike), (one_sided / self.strength).square())

    def exp(self) -> float:
        """Return the relative error of the exponential."""
        return EXP if self.p.probs.precision < FP32.precision else 0.0

    def repeating(
        self, fmt: Format, x: Tensor, W: Tensor, D: Tensor, sums: tuple[tuple[Tensor, Tensor], ...], relative: bool
    ) -> list[list[Tensor]]:
        """Line 8: for each v and O of `sums` the mean squares of O's error by rounding x (rows, n_kv) to fmt, in the
        numerator alone and in the row sum as well, over shifts of x against the grid: equal numbers have equal errors.
        That of a score counts as it is, that of a probability relative to it, with the exponential's."""
        positive, found = x.where(x > 0, 1.0), [[torch.zeros_like(O)] * 2 for _, O in sums]
        binade = torch.log2(positive) if relative else positive
        for i in range(SHIFTS):
            turn = (i + 0.5) / SHIFTS
            raised = x * 2**turn
            e = (fmt(raised) - raised) / 2**turn
            e = e / positive + self.exp() * torch.cos(2 * math.pi * (binade + turn)) if relative else e
            of_D, of_l = D * e, (W * e).sum(-1, keepdim=True)
            for (v, O), own in zip(sums, found):
                numerator = weighted_values(of_D, v)
                squares = numerator.square(), (numerator - O * of_l).square()
                own[:] = (mean + square / SHIFTS for mean, square in zip(own, squares))
        return found

    def of_sums(self, S: Tensor, W: Tensor, D: Tensor, v: Tensor, O: Tensor, m: Tensor, l: Tensor) -> Tensor:
        """The variance of O by the roundings of its own sum and of the row sum's: lines 5, 6 and 7."""
        cut = [slice(j, j + self.block) for j in range(0, v.shape[-2], self.block)]
        X = torch.stack([weighted_values(D[:, tile], v[..., tile, :]) for tile in cut])  # (T, rows, d_v)
        Y = torch.stack([W[:, tile].sum(-1, keepdim=True) for tile in cut])  # (T, rows, 1)
        highest = torch.stack([S[:, tile].amax(-1, keepdim=True) for tile in cut]).cummax(0).values
        raised = torch.cat([torch.ones_like(Y[:1]), (highest[1:] > highest[:-1]).to(Y)])
        sums = self.carried(X, Y, O, raised) + self.inside_tiles(X, W, D, v, O)
        return sums if self.p.row_sum.precision < FP32.precision else sums + self.merged(W, D, v, O, m, l)

    def carried(self, X: Tensor, Y: Tensor, O: Tensor, raised: Tensor) -> Tensor:
        """Line 5: what carrying O and l from tile to tile costs.

        Args:
            X: (T, rows, d_v), Y: (T, rows, 1), what each tile adds to O and to l, over l. raised: (T, rows, 1), whether
                it raises the maximum.
        """
        size, tiles = O.square(), len(X)
        squares_of_o, squares_of_l = X.cumsum(0).square(), Y.cumsum(0).square()  # of what is there after each tile
        of_o = sum(w.sum(0) for w in weights(self.algorithm, squares_of_o, X.square(), raised, divided=True))
        of_l = sum(w.sum(0) for w in weights(self.algorithm, squares_of_l, Y.square(), raised, divided=False))
        variance = self.variance("accumulator") * of_o + self.variance("row_sum") * of_l * size
        subnormal = self.p.accumulator.ulp(torch.zeros_like(Y[0])) / 2
        variance = variance + ROUNDINGS * tiles * subnormal.square() / 3
        for terms, total, step in ((X, O, "accumulator"), (Y, torch.ones_like(Y[0]), "row_sum")):
            alike = repeats(getattr(self.p, step), terms.square().sum(0), total, tiles)
            variance = variance + size * alike
        return variance

    def inside_tiles(self, X: Tensor, W: Tensor, D: Tensor, v: Tensor, O: Tensor) -> Tensor:
        """Line 6: what summing keys inside of tiles costs, in FP32 or wider. X: as in `carried`."""
        size, n = O.square(), (W > 0).sum(-1, keepdim=True)  # keys that count
        squares, of_weights = weighted_values(D.square(), v.square()), W.square().sum(-1, keepdim=True)
        partial = X.cumsum(0)
        forth, back = partial.square().sum(0), (O - partial + X).square().sum(0)  # first tile to last, and back
        along_tiles = torch.maximum(forth, back) * self.block
        of_o = torch.maximum((n + 1) * (squares / 6 + size / 3), along_tiles) + squares
        of_l = (n + 1) * (of_weights / 6 + 1 / 3) + of_weights
        variance = self.inner("accumulator") * of_o + self.inner("row_sum") * of_l * size
        for terms, total, step in ((squares, O, "accumulator"), (of_weights, torch.ones_like(of_weights), "row_sum")):
            fmt = FP32 if getattr(self.p, step).precision < FP32.precision else getattr(self.p, step)
            variance = variance + size * repeats(fmt, terms, total, int(n.max()))
        return variance

    def merged(self, W: Tensor, D: Tensor, v: Tensor, O: Tensor, m: Tensor, l: Tensor) -> Tensor:
        """Line 7: what merging parts of the keys by weights exp(L_i - L), L = m + log l, costs. Parts may be cut
        elsewhere than tiles."""
        log = torch.log(nonzero(l))
        fine = [slice(j, j + PART) for j in range(0, v.shape[-2], PART)]
        parts = [weighted_values(D[:, s], v[..., s, :]) - W[:, s].sum(-1, keepdim=True) * O for s in fine]
        size = ((m + log).square() + log.square() + 4).where(m != -math.inf, 0.0)
        return self.variance("row_sum") * (largest_partial_sum(torch.stack(parts)) * size)


def weighted_values(A: Tensor, v: Tensor) -> Tensor:
    """Sum values (keys, d_v), or (rows, keys, d_v) of each row, with weights (rows, keys). Returns (rows, d_v)."""
    return A @ v if v.ndim == 2 else (A[:, None] @ v)[:, 0]


def largest_partial_sum(apart: Tensor) -> Tensor:
    """Split the tiles into parts of 1, 2, 4, ... neighbours, sum the squares of the parts' sums, and take the largest:
    (rows, d_v), of the sums of tiles, (tiles, rows, d_v)."""
    tiles, sums = apart.shape[0], torch.cat([torch.zeros_like(apart[:1]), apart.cumsum(0)])
    largest, size = torch.zeros_like(apart[0]), 1
    while size < tiles:
        at = torch.tensor([*range(0, tiles, size), tiles], device=apart.device)
        largest, size = torch.maximum(largest, sums[at].diff(dim=0).square().sum(0)), 2 * size
    return largest


def repeats(fmt: Format, squares: Tensor, total: Tensor, terms: int) -> Tensor:
    """Compute the relative mean square error of a sum whose roundings repeat; 0 where its terms scatter enough.

    Args:
        fmt: of the sum. squares, total: (rows, d_v), sums of the terms' squares and of the terms. terms: how many.
    """
    over = terms * squares / total.square().where(total != 0, 1.0) - 1
    spread = over.clamp(min=0).sqrt().where(total != 0, 1.0)  # standard deviation of the terms over their mean
    at = torch.floor(torch.log2(spread.clamp(min=2.0**-60)))
    at = at.where(spread < DITHER * 2 * fmt.unit_roundoff * terms, 0.0)
    error = torch.zeros_like(spread)
    if fmt.precision < FP64.precision:
        for log_spread in at.unique().tolist():
            if log_spread < 0:
                error[at == log_spread] = repeated(fmt, terms, 2.0**log_spread) ** 2
    return error


@lru_cache
def repeated(fmt: Format, terms: int, spread: float) -> float:
    """Compute the relative root mean square error of a running sum of positive terms whose roundings repeat.

    Within one binade of the sum, terms that hardly differ are cut at the same place of the grid, so that their errors
    have one sign and add up. Terms that differ by a standard deviation of s ulp of the sum dither the rounding: of the
    error's k-th harmonic, of amplitude 1 / (pi k) ulp, exp(-2 pi^2 k^2 s^2) is left.

    Args:
        fmt: of the sum. terms: how many. spread: their standard deviation over their mean.
    """
    u, k = fmt.unit_roundoff, np.arange(1, 200)
    total = []
    for first in 2 ** np.linspace(0, 1, 33)[:-1]:  # the first term, anywhere in a binade
        t = np.arange(2, terms + 1)
        ulp, counts = np.unique(2 * u * 2.0 ** np.floor(np.log2(first * t)), return_counts=True)  # of each binade
        s = spread * first / ulp  # (binades,)
        amplitude = np.exp(-2 * (np.pi * k * s[:, None]) ** 2) / (np.pi * k) * ulp[:, None]  # (binades, harmonics)
        sums = amplitude * counts[:, None]  # a harmonic's error has one phase within a binade
        total.append(0.5 * np.sum(np.square(sums)) / (first * terms) ** 2)
    return math.sqrt(np.mean(total))
