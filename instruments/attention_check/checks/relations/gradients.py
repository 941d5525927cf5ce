"""Relations of dQ, dK and dV."""

import torch

from attention_check.checks.relations.masks import ADDED, HIDDEN, MORE_QUERIES, visible, with_hidden_rows
from attention_check.checks.relations.subject import Found, KernelUnderTest, cases, difference, not_asked
from attention_check.checks.relations.values import weights
from fa_lib.kernels.inputs import draw
from fa_lib.numerics.formats import FP32

OF_HIDDEN_KEYS = {"dK of hidden keys": 1, "dV of hidden keys": 2}  # case -> which of dQ, dK and dV
ROW_A_FEATURE = "dO of one row a feature"


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
