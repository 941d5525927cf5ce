"""The weights that a kernel gives to its keys, measured: with rows of the identity as V a kernel returns P itself."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

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
        scale_error, slope_error: how far another number must be: SIGMAS standard errors, or the effect of rounding.
        softcap: None for a straight line. residual: root mean square of log P that is left; limit: that of rounding.
        logits: (heads, n_q, n_kv), the map at every key.
    """

    scale: Tensor
    slope: Tensor
    scale_error: Tensor
    slope_error: Tensor
    softcap: float | None
    residual: float
    limit: float
    logits: Tensor


@dataclass(frozen=True)
class Weights:
    """The weights of a kernel, and what they say. heads: those of all entries of the batch.

    Attributes:
        measured, expected, bound: float64 (heads, n_q, n_kv): the kernel's, golden ones, how far right ones may be.
        options, left_out: of the call, as believed; names of those that the kernel does not take.
        key_heads, due_heads: (heads,), heads of k that are read, and those that are due.
        moved: key -> the key whose weights it has. In what follows it is put back.
        seen, due, hidden: bool (heads, n_q, n_kv): keys with a weight; those that should have one; those whose weight
            would not be 0 if they were seen. Another 0 may be rounding.
        map, scale, softcap, slope: the Map, and what is due.
        sink, factor: the logit of a further term of all rows' sums, or their common value; None where there is none.
        fmt: the format of P, "" where it is not seen: it must be coarser than the output's. `bound` allows for it.
    """

    measured: Tensor
    expected: Tensor
    bound: Tensor
    options: dict[str, Any]
    left_out: list[str]
    key_heads: Tensor
    due_heads: Tensor
    moved: dict[int, int]
    seen: Tensor
    due: Tensor
    hidden: Tensor
    map: Map
    scale: float
    softcap: float | None
    slope: float
    sink: float | None
    factor: float | None
    fmt: str

    @property
    def times(self) -> Tensor:
        """The difference of each weight over its bound: (heads, n_q, n_kv)."""
        return (self.measured - self.expected).abs().nan_to_num(math.inf) / self.bound.clamp(min=1e-300)

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
    eye = torch.eye(k.shape[2], dtype=q.dtype).expand(*k.shape[:2], -1, -1)
    resolved = ResolvedOptions.of(q, k, eye, **options)
    measured, left_out = _measured(f, q, k, eye, width or q.shape[-1], options)
    fmt = _format(measured, Format.of(q.dtype))
    precisions = [Precision.kernel(q.dtype), Precision.materialized(q.dtype)]
    precisions += [replace(precisions[0], probs=Format.of(fmt))] if fmt else []

    def due(**options):
        about = [tolerance(q, k, eye, precision=precision, **options) for precision in precisions]
        bound = torch.stack([each.bound for each in about]).amax(0).flatten(0, 1)
        expected = about[0].golden.flatten(0, 1)
        large = expected > LEAST * expected.amax(-1, keepdim=True)
        return expected, bound, (bound / expected)[large].log1p().square().mean().sqrt().item() / SIGMAS

    expected, bound, limit = due(**options)
    due_heads = torch.arange(len(k) * k.shape[1]).repeat_interleave(resolved.group)
    key_heads = _key_heads(measured, q, k, due_heads)
    keys = k.flatten(0, 1)[key_heads].unflatten(0, q.shape[:2])
    own = kernels.golden(q, keys, eye[:, :1].expand(-1, q.shape[1], -1, -1), inputs=FP64, **options).flatten(0, 1)
    moved = _moved(measured, own)
    order = torch.arange(k.shape[2])
    order[[*moved.values()]] = torch.tensor([*moved], dtype=torch.int64)
    p, raw = measured[..., order], (q.double() @ keys.double().mT).flatten(0, 1)
    added = resolved.mask if resolved.mask is not None and resolved.mask.dtype != torch.bool else None
    n_q, n_kv = raw.shape[1:]
    distance = (torch.arange(n_kv) - torch.arange(n_q)[:, None] - n_kv + n_q).abs().double()
    bias = -distance.expand_as(raw) if added is None else added.flatten(0, 1)
    found = _map(p, raw, bias, own > 0, resolved, fmt or q.dtype, limit)
    scale = found.scale.mean().item()
    if found.residual > found.limit and scale > resolved.scale:  # larger scores round to more
        of_larger = _map(p, raw, bias, own > 0, resolved, fmt or q.dtype, due(**options | dict(scale=scale))[2])
        found = of_larger if of_larger.residual <= of_larger.limit else found
    sink, factor = _further_term(p, expected, found, bound.norm(dim=-1))
    return Weights(
        measured, expected, bound, options, left_out, key_heads, due_heads, moved, p > 0, own > 0, _hidden(p, found),
        found, resolved.scale, resolved.softcap, float(added is not None), sink, factor, fmt,
    )  # fmt: skip


def _measured(f, q, k, eye, width, options):
    """The kernel's P, in blocks of `width` keys, and the options that it does not take. The last block goes on with the
    first keys, so that no column of V is 0: a scale for each column would be 0, too."""
    n_kv, blocks = k.shape[2], []
    with isolated(KernelRef.of(f)) if isinstance(f, (str, KernelRef)) else nullcontext(f) as kernel:
        fn = kernels.plain(kernel)
        names = OwnNames.of(fn).options
        taken = {name: x for name, x in options.items() if names.get(name, name)}
        for first in range(0, n_kv, width):
            v = eye[..., torch.arange(first, first + width) % n_kv].contiguous()
            answer = call_kernel(fn, q, k, v, **taken)
            if answer.o is None:
                raise ValueError(f"kernel: it {answer.problem}")
            blocks.append(answer.o.double().flatten(0, 1))
    return torch.cat(blocks, -1)[..., :n_kv], [name for name in options if name not in taken]


def _centred(x, at):
    """x less its row's mean over the places `at`; 0 elsewhere."""
    x = x.where(at, 0.0)
    return (x - x.sum(-1, keepdim=True) / at.sum(-1, keepdim=True).clamp(min=1)).where(at, 0.0)


def _key_heads(p, q, k, due_heads):
    """The head of k, of the same entry, whose scores are like log P, where the due one's are not; else the due one."""
    seen, found = p > 0, due_heads.clone()
    y = _centred(p.where(seen, 1.0).log(), seen)
    for head, due in enumerate(due_heads.tolist()):
        entry, at = divmod(head, q.shape[1])
        x = _centred(q[entry, at].double() @ k[entry].double().mT, seen[head])  # (kv_heads, n_q, n_kv)
        like = (x * y[head]).sum((1, 2)) / (x.square().sum((1, 2)) * y[head].square().sum()).sqrt().clamp(min=1e-300)
        if like.max() > LIKE and like[due % len(like)] < UNLIKE:
            found[head] = entry * len(like) + int(like.argmax())
    return found


def _moved(p, due):
    """Keys with the weights of another key: key -> that one, where columns are alike, and every key stands once."""
    a, b = (x.flatten(0, 1).nan_to_num() for x in (p, due))
    a, b = (x / x.norm(dim=0).clamp(min=1e-300) for x in (a, b))
    likeness = a.mT @ b
    most, best = likeness.max(1)
    moved = {int(i): int(best[i]) for i in ((most > LIKE) & (likeness.diagonal() < UNLIKE)).nonzero()}
    return moved if len(a) >= ROWS and {*moved} == {*moved.values()} else {}


def _format(p, stored):
    """The coarsest format on whose grid the weights of each row lie, or their ratios to the largest; "" if it is not at
    least three bits coarser than the output's: every number lies near such a grid."""
    ratio, error = p / p.amax(-1, keepdim=True), 2 * stored.unit_roundoff
    at = (ratio > 0) & (ratio < 1) & (p > 2.0**stored.emin)
    for fmt in (E5M2, E4M3, BF16, FP16, TF32, FP32) if at.sum() > 3 * ROWS else ():
        for x in (p[at], ratio[at], ratio[at] * fmt.max):  # an FP8 kernel may make the largest weight fmt's
            if fmt.precision <= stored.precision - 3 and ((fmt(x) - x).abs() <= error * x).all():
                return fmt.name
    return ""


def _map(p, raw, bias, due, resolved, fmt, limit):
    """The Map of fewest parameters that leaves no more than rounding: as believed, a line, a curve; else the first."""
    fmt = Format.of(fmt)
    limit = max(limit, fmt.unit_roundoff)
    at = (p / p.amax(-1, keepdim=True) > max(LEAST, 2.0**fmt.emin)) & (p > 2.0**fmt.emin) & bias.isfinite() & due
    y = _centred(p.where(at, 1.0).log(), at).flatten(1)[..., None]

    def fitted(turn):
        """Least squares in each head, where scores turn at `turn`, in units of q.k."""
        x = raw if turn is None else turn * torch.tanh(raw / turn)
        X = torch.stack([_centred(x, at), _centred(bias, at)], -1).flatten(1, 2)  # (heads, places, 2)
        inverse = torch.linalg.pinv(X.mT @ X, hermitian=True, rtol=1e-12)
        b = inverse @ (X.mT @ y)  # (heads, 2, 1)
        count = at.sum((1, 2)).clamp(min=1)
        left = (y - X @ b).square().sum((1, 2)) / count
        error = SIGMAS * (inverse.diagonal(dim1=-2, dim2=-1) * left[:, None]).sqrt()
        error = torch.maximum(error, limit * (count[:, None] / X.square().sum(1)).sqrt())
        cap = None if turn is None else float(b[:, 0].mean()) * turn
        (scale, slope), errors, logits = b[..., 0].mT, error.mT, b[:, :1] * x + b[:, 1:] * bias
        return Map(scale, slope, errors[0], errors[1], cap, float(left.mean().sqrt()), limit, logits)

    believed = None if resolved.softcap is None else resolved.softcap / resolved.scale
    lines = [fitted(turn) for turn in dict.fromkeys((believed, None))]
    if right := [line for line in lines if line.residual <= limit]:
        return right[0]
    from scipy import optimize  # a quarter of a second that most kernels need not wait for

    logs = (torch.linspace(-6, 4, TURNS, dtype=torch.float64) + raw.abs().max().log()).tolist()
    best = min(range(TURNS), key=lambda i: fitted(math.exp(logs[i])).residual)
    ends = logs[max(best - 1, 0)], logs[min(best + 1, TURNS - 1)]
    turn: Any = optimize.minimize_scalar(lambda x: fitted(math.exp(x)).residual, bounds=ends, method="bounded")
    curve = fitted(math.exp(float(turn.x)))
    return curve if curve.residual <= limit else lines[0]


def _hidden(p, found):
    """Keys with a weight of 0, which is far below the one that the map gives them: the least ratio that any row has to
    its largest weight is the least that the kernel can give. The map's own error grows with the distance from it."""
    log_ratio = (p / p.amax(-1, keepdim=True)).log()
    floor = log_ratio[p > 0].amin() if (p > 0).any() else -math.inf
    top = found.logits.where(p > 0, -math.inf).amax(-1, keepdim=True)
    below = found.logits - top  # (heads, n_q, n_kv)
    far = below.abs() * (found.scale_error / found.scale.abs().clamp(min=1e-300))[:, None, None]
    least = floor + math.log(4) + SIGMAS * found.residual + far
    return (p == 0) & ((below > least) | (top == -math.inf))


def _further_term(p, expected, found, slack):
    """(logit of one more term of each row's sum, None) or (None, what all rows sum up to), where one explains that row
    sums are off by more than `slack`; else (None, None)."""
    sums, due = p.sum(-1), expected.sum(-1)
    if not ((sums - due).abs() > slack).any() or not (sums > 0).all():
        return None, None
    if ((sums - sums.mean()).abs() <= slack).all():
        return None, float(sums.mean())
    total = found.logits.where(p > 0, -math.inf).logsumexp(-1)
    sink = (total + (1 / sums - 1).clamp(min=1e-12).log()).median()
    return float(sink) if ((1 / (1 + (sink - total).exp()) - sums).abs() <= 2 * slack).all() else None, None
