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
    """The weights of a row sum to one, so that V which is the same for every key is the output, to `weights`."""
    q, k, v = subject.draw()
    constant = torch.ones_like(v[..., :1, :]) if case == "V = 1" else v[..., :1, :]
    o = subject(q, k, constant.expand_as(v).contiguous())
    size = constant.abs().max().item()
    relative = apart(o.double() / constant.double(), 1.0).number if case == "V = 1" else (
        ((o.double() - constant.double()).abs() / constant.double().abs().clamp_min(size * 1e-3)).max().item()
    )  # fmt: skip
    return Found(relative, weights(subject, subject.n))


@cases("2^4", "2^-4")
def powers_of_two(subject: Subject, case: str) -> Found:
    """Scaling V by a power of two scales every product and sum of P V, and no rounding changes: O is scaled, bit for
    bit, while nothing under- or overflows. V lies in [1, 6), so that O does, and 2^-4 O is a normal number."""
    q, k, v = subject.draw()
    v, factor = subject.rounded(1 + v.double().abs()), 2.0 ** int(case.removeprefix("2^"))
    return apart(subject(q, k, v * factor).double() / factor, subject(q, k, v))
