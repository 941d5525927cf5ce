"""Relations of dQ, dK and dV, and the format in which a kernel keeps their sums from one block to the next."""

from dataclasses import replace

import torch

from attention_check.checks.carry import ALL
from attention_check.checks.relations.masks import ADDED, HIDDEN, MORE_QUERIES, visible, with_hidden_rows
from attention_check.checks.relations.subject import BREAKS, Found, KernelUnderTest, cases, difference, not_asked
from attention_check.checks.relations.values import weights
from fa_lib.kernels.inputs import draw
from fa_lib.numerics.formats import FP32

OF_HIDDEN_KEYS = {"dK of hidden keys": 1, "dV of hidden keys": 2}  # case -> which of dQ, dK and dV
ROW_A_FEATURE = "dO of one row a feature"
TERMS = 4096  # of a gradient's sum, of one large and many small terms
OTHERS = 64  # keys, where a sum goes over rows; rows, where it goes over keys
TILES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, torch.inf)  # rows or keys at a time, of which small terms tell
LARGE = 1024.0  # so that small terms are normal numbers of FP16
LOST = 2.0  # ulp: the gradient is rounded once, and a factor of it once, at most half an ulp and an ulp


@cases("no mask", "causal", ROW_A_FEATURE)
def dv_sum(subject: KernelUnderTest, case: str) -> Found:
    """The weights of a row sum to one, so that the sum of dV over keys is that of dO over rows. Every dV is within the
    rule of three, so that the sum of n of them is at most n times that off. dO is positive: what is missing shows.

    Where a feature of dO is 1 in one row and 0 in all others, that feature of dV holds this row's weights as the
    backward pass computes them. Their sum is 1, to `weights`; scores are four times as large as usual, so that a
    log-sum-exp that was kept in 16 bits shows."""
    q, k, v = subject.draw()
    if case == ROW_A_FEATURE:
        q, dO = q * 4, torch.zeros_like(v)
        at = torch.linspace(0, subject.n - 1, min(subject.n, subject.head_dim)).long()
        dO[..., at, torch.arange(len(at))] = 1
        dv = subject.gradients(dO, q, k, v)[2].double()
        return difference(dv.sum(-2)[..., : len(at)], 1.0, weights(subject, subject.n))
    dO, options = subject.rounded(v.double().abs()), dict(causal=True) if case == "causal" else {}
    dv = subject.gradients(dO, q, k, v, **options)[2].double()
    *_, allowed = subject.allowed_gradients(dO, q, k, v, **options)
    return difference(dv.sum(-2), dO.double().sum(-2), subject.n * allowed)


@cases(*OF_HIDDEN_KEYS)
def hidden_gradients(subject: KernelUnderTest, case: str) -> Found:
    """A key that no row sees has weight 0, and so gradients of 0. A kernel that takes the mean of K off every key gives
    a hidden one its share of a sum that is 0 to rounding: within the rule of three of the call."""
    q, k, v = subject.draw()
    mask, dO, at = visible(subject), torch.ones_like(q), OF_HIDDEN_KEYS[case]
    gradient = subject.gradients(dO, q, k, v, mask=mask)[at]
    return difference(gradient[:, :, -HIDDEN:], 0.0, lambda: subject.allowed_gradients(dO, q, k, v, mask=mask)[at])


@cases(*ADDED, MORE_QUERIES)
def hidden_row_gradients(subject: KernelUnderTest, case: str) -> Found:
    """A row that sees no key, and whose output counts nowhere (dO is 0 there), changes no gradient: dK and dV are those
    of the call without it, and its dQ is 0. Both calls are within the rule of three: twice that. A kernel that gives
    NaN in such a row is not asked."""
    if subject.able.causal and case != MORE_QUERIES:
        raise not_asked("masks causally: without some rows the others see other keys")
    q, k, v, blind, options = with_hidden_rows(subject, case, HIDDEN)
    if not subject.anything(q, k, v, **options).isfinite().all():
        raise not_asked("gives NaN where a row sees no key")
    dO = subject.rounded(draw("normal", subject.seed + 1, q.shape)[0])
    dO[:, :, blind] = 0
    dq, dk, dv = subject.gradients(dO, q, k, v, **options)
    rest = q[:, :, ~blind].contiguous(), k, v
    kept = {name: x for name, x in options.items() if name == "causal"}
    due = subject.gradients(dO[:, :, ~blind].contiguous(), *rest, **kept)
    allowed = subject.allowed_gradients(dO[:, :, ~blind].contiguous(), *rest, **kept)
    pairs = zip((dq[:, :, ~blind], dk, dv), due, allowed)
    found = [difference(a, b, 2 * limit) for a, b, limit in pairs] + [difference(dq[:, :, blind], 0.0)]
    return max(found, key=lambda each: each.times)


@cases("dQ", "dK")
def constant_gradients(subject: KernelUnderTest, case: str) -> Found:
    """Where V is one constant for every key, the output knows neither Q nor K, so that dQ and dK are 0.

    dP_ij = dO_i V_j is then c_i for every j, and delta_i = c_i where O is right. In a kernel dP and delta are each off
    by rounding alone: O by `relative` (as in `values`) and dP by u if it is stored, together at most
    r_i = (4 u + 2 (n + d) u32) sum_d |dO_id V_d|, with FP32 sums, and dS_ij = P_ij (dP - delta) by (1 + u) P_ij r_i.
    So dQ_i = scale sum_j dS_ij K_j is at most scale (1 + u) r_i sum_j P_ij |K_j|, and dK_j = scale sum_i dS_ij Q_i at
    most scale (1 + u) sum_i P_ij r_i |Q_i|. Autograd also goes through the row maximum, unless it is detached: that key
    gets -sum_j dS_ij more, at most (1 + u) r_i, so that it counts with P_ij + 1. dO has one feature, so that c_i is as
    large as its bound: no delta at all gives dQ some 1 / 4 u times further from 0 than that."""
    q, k, v = subject.draw()
    v = subject.rounded(1 + v[:, :, :1].double().abs()).expand_as(v).contiguous()
    dO = torch.zeros_like(q)
    dO[..., 0] = subject.rounded(1 + q[..., 0].double().abs())
    dq, dk, _ = subject.gradients(dO, q, k, v)
    Q, K, u, scale = q.double(), k.double(), subject.fmt.unit_roundoff, subject.head_dim**-0.5
    relative = 4 * u + 2 * (subject.n + subject.head_dim) * FP32.unit_roundoff
    r = scale * (1 + u) * relative * (dO.double() * v.double()).abs().sum(-1, keepdim=True)  # (batch, heads, n, 1)
    S = Q @ K.mT * scale
    hidden = torch.ones_like(S, dtype=torch.bool).triu(1) if subject.able.causal else torch.zeros_like(S) > 0
    S = S.masked_fill(hidden, -torch.inf)
    P = torch.softmax(S, -1) + (S.amax(-1, keepdim=True) == S)  # (batch, heads, n, n)
    if case == "dQ":
        return _times(dq, r * (P @ K.abs()))
    return _times(dk, P.mT @ (r * Q.abs()))


def _times(gradient, bound):
    """How large a gradient is that should be 0, in units of its bound, element by element."""
    return Found((gradient.double().abs() / bound).max().item(), 1.0)


@cases("dQ", "dK", "dV")
def gradient_sums(subject: KernelUnderTest, case: str) -> Found:
    """A gradient is a sum over keys (dQ) or rows (dK, dV): dQ = scale sum_j dS_ij K_j, dK = scale sum_i dS_ij Q_i,
    dV = sum_i P_ij dO_i. One term is large, first or last; the others are 0.45 ulp of it divided by a number of rows or
    keys, another number in every feature. A sum that is kept in the format loses every block of up to that many, in all
    3 ulp and more; one in FP32 loses nothing. The fewest of which all is lost are the block.

    All scores are 0, by Q or K of 0, so that P is 2^-6 or 2^-12 everywhere; V is 1 and -1 by turns in its first
    feature, so that O and delta are 0, and dS = +-P: no format rounds these. What is left is the gradient's own
    rounding, half an ulp, and one of scale times Q or K, where that is stored: less than LOST ulp. Where a feature's
    small terms are 0, nothing can be lost; what the gradient is off there, another factor for instance, is no loss
    elsewhere either."""
    if subject.able.causal:
        raise not_asked("masks causally: its weights are no powers of two")
    if subject.fmt.precision >= FP32.precision:
        raise not_asked(f"is asked for this in formats of fewer bits than FP32, and takes {subject.fmt}")
    tiles = torch.tensor([TILES[c % len(TILES)] for c in range(subject.head_dim)], dtype=torch.float64)
    terms = _terms(subject, tiles)
    over_keys = case == "dQ"
    n_q, n_kv = (OTHERS, TERMS) if over_keys else (TERMS, OTHERS)
    rows, keys = (terms.new_zeros(2, 1, n, subject.head_dim) for n in (n_q, n_kv))  # of 0
    one, v = rows.clone(), keys.clone()
    one[..., 0], v[..., ::2, 0], v[..., 1::2, 0] = 1, 1, -1
    sign = v[..., :1]  # (2, 1, n_kv, 1)
    scale = subject.head_dim**-0.5 / n_kv
    at, q, k, dO, factor = {
        "dQ": (0, rows, sign * terms if over_keys else keys, one, scale),
        "dK": (1, terms, keys, one, scale * sign.double()),
        "dV": (2, rows, keys, terms, 1 / n_kv),
    }[case]
    gradient = subject.gradients(dO, q, k, v)[at].double()
    due = terms.double().sum(-2, keepdim=True) * factor
    ulp, off = subject.fmt.ulp(due), (gradient - due).abs()
    of_large = (off / due.abs())[..., tiles == torch.inf].max()  # relatively, where nothing can be lost
    lost = ((off - of_large * due.abs()) / ulp).amax((0, 1, 2))  # (head_dim,)
    of_all = ((due - LARGE * factor).abs() / ulp).amin((0, 1, 2))
    found = Found(lost.max().item(), LOST)
    blocks = tiles[(tiles < torch.inf) & (lost >= ALL * of_all).cpu()]
    if found.outcome != BREAKS or not len(blocks):
        return found
    block = f"one block of {int(blocks.min())} {'keys' if over_keys else 'rows'}"
    return replace(found, problem=f"the sum is kept in {subject.fmt} from {block} to the next")


def _terms(subject, tiles):
    """(2, 1, TERMS, head_dim): the large term first, and last; small ones for the number of a feature's tile."""
    terms = (0.45 * 2 * subject.fmt.unit_roundoff * LARGE / tiles).expand(2, 1, TERMS, -1).clone()
    terms[0, :, 0] = terms[1, :, -1] = LARGE
    return subject.rounded(terms)
