"""Relations of dQ, dK and dV."""

import torch

from fa_lib import kernels
from fa_lib.check.relations_mask import HIDDEN, visible
from fa_lib.check.subject import Found, Subject, apart, cases
from fa_lib.experiments.rule import ALLOWED
from fa_lib.formats import FP32


@cases("no mask", "causal")
def dv_sum(subject: Subject, case: str) -> Found:
    """The weights of a row sum to one, so that the sum of dV over keys is that of dO over rows. Every dV is within the
    rule of three, so that the sum of n of them is at most n times that off. dO is positive: what is missing shows."""
    q, k, v = subject.draw()
    dO, options = subject.rounded(v.double().abs()), dict(causal=True) if case == "causal" else {}
    dv = subject.gradients(dO, q, k, v, **options)[2].double()
    truth, baseline = (_dv(subject, kernel, dO, (q, k, v), options) for kernel in (_exact(subject), kernels.baseline))
    limit = subject.n * ALLOWED["dv"] * (baseline - truth).abs().max().item()
    return apart(dv.sum(-2), dO.double().sum(-2), limit)


@cases("dK of hidden keys", "dV of hidden keys")
def hidden_gradients(subject: Subject, case: str) -> Found:
    """A key that no row sees has weight 0, and so gradients of 0."""
    q, k, v = subject.draw()
    _, dk, dv = subject.gradients(torch.ones_like(q), q, k, v, mask=visible(subject))
    return apart((dk if "dK" in case else dv)[:, :, -HIDDEN:], 0.0)


@cases("dQ", "dK")
def constant_gradients(subject: Subject, case: str) -> Found:
    """Where V is one constant for every key, the output knows neither Q nor K, so that dQ and dK are 0.

    dP_ij = dO_i V_j is then c_i for every j, and delta_i = c_i where O is right. In a kernel dP and delta are each off
    by rounding alone: O by `relative` (as in relations_value) and dP by u if it is stored, together at most
    r_i = 4 u sum_d |dO_id V_d| with the FP32 sums in it, and dS_ij = P_ij (dP - delta) by P_ij r_i. So dQ_i = scale
    sum_j dS_ij K_j is at most scale r_i max|K|, and dK_j = scale sum_i dS_ij Q_i at most scale sum_i P_ij r_i |Q_i|,
    which is at most n scale max r max|Q|; rounding dS adds a factor of 1 + u."""
    q, k, v = subject.draw()
    v = subject.rounded(1 + v[:, :, :1].double().abs()).expand_as(v).contiguous()
    dO = q.roll(1, -1)
    dq, dk, _ = subject.gradients(dO, q, k, v)
    u, n = subject.fmt.unit_roundoff, subject.n
    sums = 2 * (n + subject.head_dim) * FP32.unit_roundoff
    r = (4 * u + sums) * (1 + u) * (dO.double() * v.double()).abs().sum(-1).max().item() / subject.head_dim**0.5
    if case == "dQ":
        return apart(dq, 0.0, r * k.double().abs().max().item())
    return apart(dk, 0.0, n * r * q.double().abs().max().item())


def _exact(subject):
    return lambda *tensors, **options: kernels.golden(*tensors, inputs=subject.fmt, **options)


def _dv(subject, kernel, dO, tensors, options):
    options = (dict(causal=True) if subject.able.causal else {}) | options
    given = [x.detach().clone().requires_grad_() for x in tensors]
    with torch.enable_grad():
        o = kernel(*given, **options)
    return torch.autograd.grad(o, given, dO.to(o.dtype))[2].double()
