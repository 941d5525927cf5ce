"""Relations between O and V: weights that sum to one, constants, powers of two."""

import torch

from fa_lib.check.subject import Found, Subject, apart, cases
from fa_lib.formats import FP16, FP32


def weights(subject: Subject, n: int) -> float:
    """How far, relatively, a weighted mean of one value may be from it.

    P is stored in the format, each weight off by at most a factor 1 + u; l is the sum of weights that were not rounded
    so; both sums, of n terms in FP32, are off by at most gamma = n u32 / (1 - n u32); O is stored, 1 + u once more:
    (1 + u)^2 (1 + gamma)^2 / (1 - gamma) - 1. FP16 also loses weights below its smallest normal number, 2^-25 at most
    each, of a row sum of at least 1.
    """
    u, g = subject.fmt.unit_roundoff, n * FP32.unit_roundoff / (1 - n * FP32.unit_roundoff)
    lost = n * 2.0**-25 if subject.fmt == FP16 else 0.0
    return (1 + u) ** 2 * (1 + g) ** 2 / (1 - g) * (1 + lost) - 1


@cases("V = 1", "a constant for each feature")
def constant_values(subject: Subject, case: str) -> Found:
    """The weights of a row sum to one, so that V which is the same for every key is the output: relatively, to
    `weights`. The constants of the features lie in [1, 6)."""
    q, k, v = subject.draw()
    one = torch.ones_like(v[..., :1, :])
    constant = one if case == "V = 1" else subject.rounded(1 + v[..., :1, :].double().abs())
    o = subject(q, k, constant.expand_as(v).contiguous())
    return apart(o.double() / constant.double(), 1.0, weights(subject, subject.n))


@cases("2^4", "2^-4")
def powers_of_two(subject: Subject, case: str) -> Found:
    """Scaling V by a power of two scales every product and sum of P V, and no rounding changes: O is scaled, bit for
    bit, while nothing under- or overflows. V lies in [1, 6), so that O does, and 2^-4 O is a normal number."""
    q, k, v = subject.draw()
    v, factor = subject.rounded(1 + v.double().abs()), 2.0 ** int(case.removeprefix("2^"))
    return apart(subject(q, k, v * factor).double() / factor, subject(q, k, v))


@cases("8", "-8", "128", "-128")
def score_shift(subject: Subject, case: str) -> Found:
    """A constant added to all scores of a row leaves its softmax as it is: it comes from the last feature, 1 in every
    key, and 0 or the constant over `scale` in Q. Both answers are within the rule of their own call, whose golden values
    are one."""
    q, k, v = subject.draw()
    k[..., -1], q[..., -1] = 1, 0
    moved = q.clone()
    moved[..., -1] = float(case) * subject.head_dim**0.5
    limit = subject.allowed(q, k, v) + subject.allowed(moved, k, v)
    return apart(subject(moved, k, v), subject(q, k, v), limit)
