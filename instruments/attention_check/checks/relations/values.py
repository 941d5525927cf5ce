"""Relations of weights: they sum to one with their sink, scale with V, and forget a constant in the scores; and a query
that matches one key gets that key's value, wherever it lies in a tile."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from attention_check.checks.relations.subject import BREAKS, Found, KernelUnderTest, cases, difference, not_asked
from attention_check.isolation.calls import KernelError, kernel_errors
from attention_check.isolation.worker import Outcome
from fa_lib.numerics.formats import FP16, FP32, Format

POWERS = {"2^4": 2.0**4, "2^-4": 2.0**-4, "2^24": 2.0**24}
SHIFTS = {  # case -> the constant, and what hides keys
    "8": (8.0, ""), "-8": (-8.0, ""), "128": (128.0, ""), "-128": (-128.0, ""), "-128, causal": (-128.0, "causal"),
    "-128, first and last keys masked": (-128.0, "mask"),
}  # fmt: skip
MANY = 1100  # keys of a sink's call: more than one part, where a kernel splits the keys
ANY_SCORES = {"any scores": False, f"any scores of {MANY:,} keys": True}  # case -> whether the keys are MANY
TINY = 512  # of the smallest FP16 number: half of FP16's smallest normal number


P_BELOW, TILES = "P below a format's normal numbers", 8  # a case, and the most parts of the keys of which one shows
LOUD = 32.0  # times the key: a score of that many times sqrt(head_dim)


RECALLS = {  # case -> queries, keys (one more than a multiple of any tile, or one fewer), and whether causal: then a
    "257 keys": (257, 257, False), "255 keys": (255, 255, False), "one query of 257 keys": (1, 257, False),
    "causal, 257 keys": (257, 257, True), "causal, 300 queries of 301 keys": (300, 301, True),
}  # query matches its own key, the last it sees  # fmt: skip


def weights(subject: KernelUnderTest, n: int) -> float:
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
def constant_values(subject: KernelUnderTest, case: str) -> Found:
    """The weights of a row sum to one, so that V which is the same for every key is the output: relatively, to
    `weights`. The constants of the features lie in [1, 6)."""
    q, k, v = subject.draw()
    one = torch.ones_like(v[..., :1, :])
    constant = one if case == "V = 1" else subject.rounded(1 + v[..., :1, :].double().abs())
    o = subject(q, k, constant.expand_as(v).contiguous())
    return difference(o.double() / constant.double(), 1.0, weights(subject, subject.n))


@cases(*POWERS)
def powers_of_two(subject: KernelUnderTest, case: str) -> Found:
    """Scaling V by a power of two scales every product and sum of P V, and no rounding changes: O is scaled, bit for
    bit, while nothing under- or overflows. V lies in [1, 6), so that O does, and 2^-4 O is a normal number; 2^24 O is
    one in formats that reach as far as FP32. Both answers are within the rule of their own call: limit `allowed` of the
    one and of the other, in units of O."""
    q, k, v = subject.draw()
    v, factor = subject.rounded(1 + v.double().abs()), POWERS[case]
    if 8 * factor > subject.fmt.max:
        raise not_asked(f"takes {subject.fmt}, which has no numbers as large as 6 x {case}")
    return difference(
        subject(q, k, v * factor).double() / factor, subject(q, k, v),
        lambda: subject.allowed(q, k, v) + subject.allowed(q, k, v * factor) / factor,
    )  # fmt: skip


@cases("V below FP16's normal numbers", P_BELOW)
def tiny_values(subject: KernelUnderTest, case: str) -> Found:
    """FP16 has numbers below its smallest normal one, 2^-14, and matrix units multiply them. V holds such numbers
    alone, up to 2^-15. Limit: `allowed`; an O of zeros is hundreds of times as far off. (BF16's lie at 2^-126, and
    units that take them as 0 are usual.)

    P holds them where the first key has the maximum, V = 0, and all others a score that is log(2^15) lower, V = 1: O is
    their share of the sum. Scores in 16 bits are off by 2^-8, twice, P by 2^-10 and O by 2^-11 of it: less than
    1 / TILES. A kernel that takes these P as 0 loses all of O, or what one tile of 1 / TILES or more of the keys gives.
    In 8 bits the scores are log(2^11) lower: E4M3 ends at 2^-9, and a kernel has to multiply P first.
    """
    small = 11 if subject.arithmetic else 15
    if subject.fmt != FP16 and not (subject.arithmetic and case == P_BELOW):
        raise not_asked("is asked for this in FP16 alone")
    q, k, v = subject.draw()
    if case == P_BELOW:
        q, k, v = torch.zeros_like(q), torch.zeros_like(k), torch.ones_like(v)
        q[..., 0], k[..., 1:, 0], v[..., 0, :] = 1, -math.log(2.0**small) * subject.head_dim**0.5, 0
        golden = subject.golden(q, k, v)
        return difference(subject(q, k, v), golden, golden.max().item() / TILES)
    v = ((v.double().abs() * TINY / 8).clamp(16, TINY).round() * 2.0**-24).to(v.dtype)
    return difference(subject(q, k, v), subject.golden(q, k, v), subject.allowed(q, k, v))


@cases(*SHIFTS)
def score_shift(subject: KernelUnderTest, case: str) -> Found:
    """A constant added to all scores of a row leaves its softmax as it is: it comes from the last feature, 1 in every
    key, and 0 or the constant over `scale` in Q. So it does beside hidden keys, whole tiles of them: a stand-in for
    their maximum, 0 for instance, may not take the place of a maximum near -128. Both answers are within the rule of
    their own call, and the golden values are the same."""
    q, k, v = subject.draw()
    shift, hides = SHIFTS[case]
    at = torch.arange(subject.n, device=q.device)
    shown = (at >= 3 * subject.n // 8) & (at < 5 * subject.n // 8)
    options = {"": {}, "causal": dict(causal=True), "mask": dict(mask=shown.expand(subject.n, -1))}[hides]
    k[..., -1], q[..., -1] = 1, 0
    moved = q.clone()
    moved[..., -1] = shift * subject.head_dim**0.5
    limit = subject.allowed(q, k, v, **options) + subject.allowed(moved, k, v, **options)
    return difference(subject(moved, k, v, **options), subject(q, k, v, **options), limit)


@cases("scores of 0", "a sink of almost all", "a sink of nothing", *ANY_SCORES)
def sinks(subject: KernelUnderTest, case: str) -> Found:
    """A sink takes exp(sink) of the softmax's sum and gives no value. With Q = 0 and V = 1 the output is
    n / (n + exp(sink)), relatively to `weights`; a sink of -10,000 takes nothing, so that the answer is that without
    (2 `allowed`); else it is within the rule of the golden value (`allowed`), where all keys are in one tile or part of
    them, and where they are not. Each head has a sink of its own, and so its sign and its place show."""
    many = ANY_SCORES.get(case, False)
    if many and subject.able.top_left:
        raise not_asked("masks causally, aligned top-left: few queries see few keys")
    q, k, v = subject.draw(n_q=min(subject.n, 64), n_kv=MANY, heads=4) if many else subject.draw(heads=4)
    logits = torch.tensor([5.0, 6.0, 4.0, 3.0], device=q.device)
    if case == "a sink of nothing":
        nothing = torch.full_like(logits, -1e4)
        return difference(subject(q, k, v, sinks=nothing), subject(q, k, v), subject.apart(q, k, v))
    if case in ANY_SCORES:
        o, golden = subject(q, k, v, sinks=logits), subject.golden(q, k, v, sinks=logits)
        return difference(o, golden, subject.allowed(q, k, v, sinks=logits))
    logits = logits + (3 if case == "a sink of almost all" else 0)
    keys = torch.full((subject.n, 1), float(subject.n), dtype=torch.float64, device=q.device)
    if subject.able.causal:
        keys = torch.arange(1.0, subject.n + 1, dtype=torch.float64, device=q.device)[:, None]
    due = keys / (keys + logits.double().exp()[:, None, None])  # (heads, n, 1)
    o = subject(torch.zeros_like(q), k, torch.ones_like(v), sinks=logits)
    return difference(o.double() / due, 1.0, weights(subject, subject.n))


NEAR = 0.05  # of the largest log-sum-exp: a row's maximum and its sum are further off


@cases("log-sum-exp", "two parts", "parts of unlike length")
def splits(subject: KernelUnderTest, case: str) -> Found:
    """A call, or one with return_lse=True, gives (o, L), L the log-sum-exp of a row's scaled scores, by which parts of
    the keys are merged: sum_i exp(L_i - L) o_i is the output of all keys. L may be to base 2.

    An error of L is a relative error of a weight: u is allowed, and what FP32 scores cost, (d + n) u32 times the
    largest sum of |q k|. A weighted mean of parts within the rule is off by at most the largest `allowed` of a part;
    weights off by e move it by 2 e max|V|; the output of all keys is within its own `allowed`."""
    if subject.able.causal:
        raise not_asked("masks causally: parts of the keys have no places")
    q, k, v = subject.draw()
    o, L, base = _with_lse(subject, q, k, v)
    sums = (q.double().abs() @ k.double().abs().mT).max().item() * subject.head_dim**-0.5
    stored = Format.of(L.dtype).unit_roundoff * L.detach().abs().max().item()
    off = subject.fmt.unit_roundoff + stored + (subject.head_dim + subject.n) * FP32.unit_roundoff * sums
    if case == "log-sum-exp":
        found = difference(L, _log_sum_exp(q, k), off)
        return found if found.outcome == BREAKS else replace(found, convention=base)
    sizes = [subject.n // 2] * 2 if case == "two parts" else [subject.n - 64, 64]
    pairs = list(zip(*(x.split(sizes, -2) for x in (k, v))))
    parts = [_with_lse(subject, q, *(x.contiguous() for x in pair)) for pair in pairs]
    outputs, logs, _ = zip(*parts)
    outputs, logs = (torch.stack(x).detach().double() for x in (outputs, logs))
    merged = (torch.softmax(logs, 0)[..., None] * outputs).sum(0)
    limit = max(subject.allowed(q, *pair) for pair in pairs) + 2 * off * v.double().abs().max().item()
    return difference(merged, o, limit + subject.allowed(q, k, v))


def _log_sum_exp(q, k):
    return torch.logsumexp(q.double() @ k.double().mT * q.shape[-1] ** -0.5, -1)


def _with_lse(subject, q, k, v):
    """o, the log-sum-exp to base e, and the base that it had where that is another, in words. One that was not asked
    for is a log-sum-exp where it is near it."""
    before = None
    for options in ({}, dict(return_lse=True)):
        with kernel_errors():
            o, *others = answer if isinstance(answer := subject.fn(q, k, v, **options), (tuple, list)) else (answer,)
        L = others[0] if others and isinstance(others[0], Tensor) and isinstance(o, Tensor) else None
        if L is None or before is not None and torch.equal(before, L):  # as where the option is not taken
            continue
        if L.shape == q.shape[:-1]:
            due = _log_sum_exp(q, k).detach()
            off, off_2 = ((x.detach() - due).abs().max() for x in (L, L * math.log(2)))
            if options or min(off, off_2) <= NEAR * due.abs().max():
                return (o.detach(), L * math.log(2), "to base 2") if off_2 < off else (o.detach(), L, "")
        elif options:
            got = f"{tuple(L.shape)}, where {tuple(q.shape[:-1])} is due"
            raise KernelError(Outcome.MALFORMED, f"returns a log-sum-exp of shape {got}")
        before = L
    raise not_asked("gives no log-sum-exp for return_lse=True")


@cases(*RECALLS)
def every_key(subject: KernelUnderTest, case: str) -> Found:
    """Keys are signs, +1 and -1 by chance, and a query is LOUD times one of them: its score is LOUD sqrt(head_dim), and
    that of any other key much less. With d = 64, no two of 301 keys agree in more than some 52 signs, so that the next
    score is 96 less, and its weight is 0 in every format. The output is the matching key's V, to `weights` of one key,
    and what weight the others have by these scores. Without a mask every key has a query."""
    n_q, n_kv, asks_causal = RECALLS[case]
    if n_q != n_kv and (subject.able.top_left or (subject.able.causal and not asks_causal)):
        raise not_asked("masks causally: a query sees other keys")
    q, k, v = subject.draw(n_q, n_kv)
    v, k = subject.rounded(1 + v.double().abs()), torch.where(k > 0, 1, -1).to(k.dtype)
    own = torch.arange(n_q, device=q.device) + n_kv - n_q
    causal = asks_causal or subject.able.causal
    match = own if causal or n_q == 1 else own.flip(0)
    q = k[:, :, match] * LOUD
    S = q.double() @ k.double().mT * subject.head_dim**-0.5  # (batch, heads, n_q, n_kv)
    S = S.masked_fill(torch.arange(n_kv, device=q.device) > own[:, None], -torch.inf) if causal else S
    others = 1 - torch.softmax(S, -1).gather(-1, match.expand(*S.shape[:2], -1)[..., None]).min().item()
    o = subject(q, k, v, **(dict(causal=True) if asks_causal else {}))
    limit = weights(subject, 1) + others * v.double().abs().max().item()
    return difference(o.double() / v[:, :, match].double(), 1.0, limit)
