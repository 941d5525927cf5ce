"""The weights that a kernel gives to its keys, measured: with rows of the identity as V a kernel returns P itself.

P is read, not guessed: which keys a row sees, the map from scores to weights, row sums, columns in other places.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attention_check.adapters import OwnNames
from attention_check.isolation.calls import call_kernel
from attention_check.isolation.isolated_kernel import isolated
from attention_check.tolerance import tolerance
from fa_lib import kernels
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.kernels.options import ResolvedOptions
from fa_lib.kernels.precision import Precision
from fa_lib.numerics.formats import BF16, E4M3, E5M2, FP16, FP32, FP64, TF32, Format

LEAST = 2.0**-8  # of a row's largest weight: the map is fitted to weights above it
SIGMAS = 7  # standard deviations of rounding that `tolerance` allows for some 10^5 weights
TURNS = 48  # softcaps that are tried, before the best one is refined
LIKE, UNLIKE = 0.95, 0.8  # cosine of what is the same, and of what is not
ROWS = 32  # that columns must have to be compared


@dataclass(frozen=True)
class Map:
    """log P of a key = a constant of its row + softcap * tanh(scale * q.k / softcap) + slope * bias, fitted to P.

    Attributes:
        scale, slope: (heads,). The bias is the mask, if it is added; else minus the distance of row and key.
        scale_error, slope_error: (heads,), how far another number must be from these: SIGMAS standard errors, or what
            changes log P as much as rounding does.
        softcap: None for a straight line.
        residual, limit: root mean square of log P that the map leaves, and how much rounding may leave.
        logits: (heads, n_q, n_kv), the map at every key, -inf where the mask is.
    """

    scale: Tensor
    slope: Tensor
    scale_error: Tensor
    slope_error: Tensor
    softcap: float | None
    residual: float
    limit: float
    logits: Tensor

    @property
    def holds(self) -> bool:
        """Whether what it leaves is rounding."""
        return self.residual <= self.limit


@dataclass(frozen=True)
class Weights:
    """The weights of a kernel, and what they say. heads: those of all entries of the batch.

    Attributes:
        measured, expected: float64 (heads, n_q, n_kv), the kernel's and golden ones. bound: how far a right kernel's
            may be from these.
        options: of the call, as believed; left_out: the names of those that the kernel does not take.
        key_heads, due_heads: (heads,), heads of k that are read, and those that are due.
        moved: key -> the key whose weights it has.
        seen, due: bool (heads, n_q, n_kv), keys that have a weight, and those that should; moved keys are put back.
        hidden: keys whose weight is 0, and would not be if they were seen. Another 0 may be rounding.
        lost_in_sum: whether row sums lack the weights of keys that no row sees.
        map: the Map. scale, softcap, slope: the ones that are due.
        sums_differ: whether row sums do, by more than rounding.
        sink: the logit of a further term of each row's sum; factor: of each row's sum; None where there is none.
        fmt: the format of P, "" where it is not seen: it must be coarser than the output's. only_fmt: whether a kernel
            with P in it may have these weights.
    """

    measured: Tensor
    expected: Tensor
    bound: Tensor
    options: dict
    left_out: tuple[str, ...]
    key_heads: Tensor
    due_heads: Tensor
    moved: dict[int, int]
    seen: Tensor
    due: Tensor
    hidden: Tensor
    lost_in_sum: bool
    map: Map
    scale: float
    softcap: float | None
    slope: float
    sums_differ: bool
    sink: float | None
    factor: float | None
    fmt: str
    only_fmt: bool

    @property
    def times(self) -> Tensor:
        """The difference of each weight over its bound: (heads, n_q, n_kv)."""
        return (self.measured - self.expected).abs().nan_to_num(math.inf) / self.bound.clamp(min=1e-300)

    @property
    def differs(self) -> bool:
        """Whether a weight differs by more than rounding."""
        return bool((self.times > 1).any())

    def __str__(self) -> str:
        from attention_check.report.weights_words import lines

        return "\n".join(lines(self))


def weights(f: KernelRef | str | Callable, q: Tensor, k: Tensor, width: int | None = None, **options) -> Weights:
    """Measure the weights of a kernel, and read what they say; `print` the result to read it.

    1 and 0 are exact in every format, and a scale of V for FP8 keeps them. A kernel that subtracts V's mean rounds
    other numbers than these.

    Args:
        f: a kernel, or the text of one, as `check_kernel` takes it.
        q: (batch, heads, n_q, head_dim). k: (batch, kv_heads, n_kv, head_dim).
        width: head_dim of V, which is the number of keys that a call returns; None: q's.
        options: causal, scale, mask, window, softcap, sinks, as they are believed.

    Raises:
        ValueError: an argument does not fit, or the kernel gives no output.
    """
    options = {name: x for name, x in options.items() if x is not None and x is not False}
    eye = torch.eye(k.shape[2], dtype=q.dtype, device=q.device).expand(*k.shape[:2], -1, -1)
    resolved = ResolvedOptions.of(q, k, eye, **options)
    expected, *bounds = _expected(q, k, eye, options, Precision.kernel(q.dtype), Precision.materialized(q.dtype))
    bound = torch.maximum(*bounds)
    measured, left_out = _measured(f, q, k, eye, width or q.shape[-1], options)
    due_heads = torch.arange(len(k) * k.shape[1]).repeat_interleave(resolved.group)
    key_heads = _key_heads(measured, q, k, due_heads)
    keys, own = k.flatten(0, 1)[key_heads], expected
    if not torch.equal(key_heads, due_heads):
        of_each = keys.unflatten(0, q.shape[:2])
        own = kernels.golden(q, of_each, eye[:, :1].expand(-1, q.shape[1], -1, -1), inputs=FP64, **options)
        own = own.flatten(0, 1)
    moved = _moved(measured, own)
    order = torch.arange(k.shape[2])
    order[[*moved.values()]] = torch.tensor([*moved], dtype=torch.int64)
    placed, fmt = measured[..., order], _format(measured, Format.of(q.dtype))
    bias, is_mask = _bias(resolved, placed)
    limit = (bound / expected)[expected > LEAST].square().mean().sqrt().item() / SIGMAS
    only_fmt = False
    if fmt:
        _, own_bound = _expected(q, k, eye, options, replace(Precision.kernel(q.dtype), probs=Format.of(fmt)))
        only_fmt = bool(((measured - expected).abs() <= own_bound).all())
        limit = max(limit, Format.of(fmt).unit_roundoff)
    raw = q.flatten(0, 1).double() @ keys.double().mT
    found = _map(placed, raw, bias, resolved, Format.of(fmt or q.dtype), limit)
    due, hidden = own > 0, _hidden(placed, found)
    lost = (due & hidden).any(1).any(0) & ~(due & (placed != 0)).any(1).any(0)
    missing, slack = expected.sum(-1) - measured.sum(-1), bound.norm(dim=-1)
    sums_differ = bool((missing.abs() > slack).any())
    lost_in_sum = sums_differ and bool(((missing - own[..., lost].sum(-1)).abs() <= slack).all())
    sink, factor = _further_term(placed, found, slack) if sums_differ and not lost_in_sum else (None, None)
    return Weights(
        measured, expected, bound, options, left_out, key_heads, due_heads, moved, placed > 0, due, hidden,
        lost_in_sum, found, resolved.scale, resolved.softcap, float(is_mask), sums_differ, sink, factor, fmt, only_fmt,
    )  # fmt: skip


def _expected(q, k, eye, options, *precisions):
    """Golden weights, and for each Precision how far those of a right kernel may be, all (heads, n_q, n_kv)."""
    found = [tolerance(q, k, eye, precision=precision, **options) for precision in precisions]
    return found[0].golden.flatten(0, 1), *(each.bound.flatten(0, 1) for each in found)


def _measured(f, q, k, eye, width, options):
    """The kernel's P, in blocks of `width` keys, and the options that it does not take. The last block goes on with the
    first keys, so that no column of V is 0: a scale for each column would be 0, too."""
    n_kv, blocks = k.shape[2], []
    ours = callable(f) and not isinstance(f, KernelRef)
    with nullcontext(f) if ours else isolated(KernelRef.of(f)) as kernel:
        fn = kernels.plain(kernel)
        names = OwnNames.of(fn).options
        taken = {name: x for name, x in options.items() if names.get(name, name)}
        for first in range(0, n_kv, width):
            v = eye[..., torch.arange(first, first + width) % n_kv].contiguous()
            answer = call_kernel(fn, q, k, v, **taken)
            if answer.o is None:
                raise ValueError(f"kernel: it {answer.problem}")
            blocks.append(answer.o.double().flatten(0, 1))
    return torch.cat(blocks, -1)[..., :n_kv], tuple(name for name in options if name not in taken)


def _centred(x, at):
    """x less its row's mean over the places `at`; 0 elsewhere."""
    x = x.where(at, 0.0)
    return (x - x.sum(-1, keepdim=True) / at.sum(-1, keepdim=True).clamp(min=1)).where(at, 0.0)


def _cosine(a, b, dims):
    """Of two tensors over dimensions, 0 where one of them is 0."""
    sizes = a.square().sum(dims) * b.square().sum(dims)
    return (a * b).sum(dims) / sizes.sqrt().where(sizes > 0, math.inf)


def _key_heads(measured, q, k, due_heads):
    """The head of k, of the same entry of the batch, whose scores fit log P best; the due one unless another one is
    like log P, and it is not."""
    log_p = measured.where(measured > 0, 1.0).log()
    found = []
    for head, due in enumerate(due_heads.tolist()):
        entry, at = divmod(head, q.shape[1])
        scores = q[entry, at].double() @ k[entry].double().mT  # (kv_heads, n_q, n_kv)
        seen = (measured[head] > 0).expand_as(scores)
        likeness = _cosine(_centred(log_p[head].expand_as(scores), seen), _centred(scores, seen), (-2, -1))
        best, own = int(likeness.argmax()), due % k.shape[1]
        other = likeness[best] > LIKE and likeness[own] < UNLIKE
        found.append(entry * k.shape[1] + (best if other else own))
    return torch.tensor(found)


def _moved(p, due):
    """Keys with the weights of another key: key -> that one, where columns are alike, and every key stands once."""
    a, b = (x.flatten(0, 1).nan_to_num() for x in (p, due))
    a, b = (x / x.norm(dim=0).where(x.any(0), math.inf) for x in (a, b))
    likeness = a.mT @ b
    most, best = likeness.max(1)
    own = torch.arange(len(best))
    is_moved = (best != own) & (most > LIKE) & (likeness[own, own] < UNLIKE)
    moved = {int(at): int(best[at]) for at in is_moved.nonzero().flatten()}
    return moved if len(a) >= ROWS and {*moved} == {*moved.values()} else {}


def _bias(resolved, p):
    """What may be added to scores, (heads, n_q, n_kv), and whether it is the mask: else minus the distance."""
    n_q, n_kv = p.shape[1:]
    if resolved.mask is not None and resolved.mask.dtype != torch.bool:
        return resolved.mask.flatten(0, 1), True
    return -(torch.arange(n_kv) - torch.arange(n_q)[:, None] - n_kv + n_q).abs().double().expand_as(p), False


def _format(p, stored):
    """The coarsest format on whose grid the weights of each row lie, or their ratios to the largest; "" if it is not at
    least three bits coarser than the output's: every number lies near such a grid."""
    ratio, error = p / p.amax(-1, keepdim=True), 2 * stored.unit_roundoff
    at = (ratio > 0) & (ratio < 1) & (p > 2.0**stored.emin)
    for fmt in (E5M2, E4M3, BF16, FP16, TF32, FP32):
        if fmt.precision > stored.precision - 3 or at.sum() < 3 * ROWS:
            continue
        for x in (p, ratio, *([ratio * fmt.max] if fmt.precision < BF16.precision else [])):
            if ((fmt(x[at]) - x[at]).abs() <= error * x[at]).all():
                return fmt.name
    return ""


def _map(p, raw, bias, resolved, fmt, limit):
    """The Map with the fewest parameters that rounding allows: as believed, a straight line, a curve; else the best."""
    ratio = p / p.amax(-1, keepdim=True)
    at = (ratio > max(LEAST, 2.0**fmt.emin)) & (p > 2.0**fmt.emin) & bias.isfinite()
    y = _centred(p.where(at, 1.0).log(), at)

    def fitted(turn):
        """Least squares in each head, where scores turn at `turn`, in units of q.k."""
        x = raw if turn is None else turn * torch.tanh(raw / turn)
        X = torch.stack([_centred(x, at), _centred(bias, at)], -1).flatten(1, 2)  # (heads, places, 2)
        inverse = torch.linalg.pinv(X.mT @ X, hermitian=True, rtol=1e-12)
        b = inverse @ (X.mT @ y.flatten(1)[..., None])  # (heads, 2, 1)
        left = (y.flatten(1)[..., None] - X @ b).square().sum((1, 2)) / at.sum((1, 2)).clamp(min=1)
        error = (inverse.diagonal(dim1=-2, dim2=-1) * left[:, None]).sqrt() * SIGMAS
        error = torch.maximum(error, limit / X.square().sum(1).sqrt() * at.sum((1, 2))[:, None].sqrt())
        logits = (b[:, :1] * x + b[:, 1:] * bias).where(bias.isfinite(), -math.inf)
        cap = None if turn is None else float(b[:, 0].mean()) * turn
        return Map(*b[..., 0].mT, *error.mT, cap, float(left.mean().sqrt()), limit, logits)

    believed = None if resolved.softcap is None else resolved.softcap / resolved.scale
    for turn in dict.fromkeys((believed, None)):
        if (line := fitted(turn)).holds:
            return line
    from scipy.optimize import minimize_scalar

    logs = (torch.linspace(-6, 4, TURNS, dtype=torch.float64) + raw.abs().max().log()).tolist()
    best = min(range(TURNS), key=lambda i: fitted(math.exp(logs[i])).residual)
    ends = logs[max(best - 1, 0)], logs[min(best + 1, TURNS - 1)]
    curve = fitted(math.exp(minimize_scalar(lambda x: fitted(math.exp(x)).residual, bounds=ends, method="bounded").x))
    return curve if curve.holds else fitted(believed)


def _hidden(p, found):
    """Keys with a weight of 0, which is far below the one that the map gives them: the least ratio that any row has to
    its largest weight is the least that the kernel can give."""
    log_ratio = (p / p.amax(-1, keepdim=True)).log()
    floor = log_ratio[p > 0].amin() if (p > 0).any() else -math.inf
    top = found.logits.where(p > 0, -math.inf).amax(-1, keepdim=True)
    return (p == 0) & ((found.logits - top > floor + math.log(4)) | (top == -math.inf))


def _further_term(p, found, slack):
    """(the logit of one more term of each row's sum, None), or (None, what all rows sum up to), where one explains the
    row sums within `slack`; else (None, None)."""
    sums = p.sum(-1)
    if not sums.isfinite().all() or not (sums > 0).all():
        return None, None
    factor = float(sums.mean())
    if ((sums - factor).abs() <= slack).all():
        return None, factor
    total = found.logits.where(p > 0, -math.inf).logsumexp(-1)
    logits = total + (1 / sums - 1).clamp(min=1e-12).log()
    sink = float(logits.median())
    return (sink if ((1 / (1 + (sink - total).exp()) - sums).abs() <= 2 * slack).all() else None), None
