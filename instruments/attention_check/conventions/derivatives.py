"""The gradients of attention in a dialect, of the query heads that share a head of k and v; how far those of a right
kernel may be from them; and how often each part of the keys, or of the rows, counts in a given one: a kernel may leave
out a block or take one twice, a GPU may add up the wrong part, or read the one before again."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attention_check.conventions.attention import Dialect, Rows, Unfit, attend, log_sum_exp, scores, weights
from attention_check.conventions.conventions import BSHD, FLAT
from attention_check.conventions.reading import CapturedCall, as_read
from attention_check.tolerance import EXP, FAR
from fa_lib.numerics.formats import FP32, FP64, Format

GRADIENTS = {"dq": "q", "dk": "k", "dv": "v"}  # -> what each one is of
SCORES = 2**22  # that are held at a time
MOST, LEAST = 32, 16  # parts of the keys or rows; of these in a part
LARGEST = 2**24  # numbers of a map, with which no counts are sought
SHOWS = 0.03  # of a gradient's size: what a part adds to it, where it can be seen how often it counts
WHOLE = 0.1  # so near to a whole number a count is, beside rounding
Counts = tuple[tuple[tuple[int, int], tuple[tuple[int, int, int], ...]], ...]  # rows of it, and (first, last, count)
SHIFTS = 4  # of the numbers against the format's grid, over which an error of equal numbers is averaged


@dataclass(frozen=True)
class Group:
    """All rows of the query heads that share a head of k and v, in a dialect.

    Attributes:
        rows: of one entry and the heads. kv_head: its index. dO: (1, heads, n_q, d_v), float64. dlse: of the
            log-sum-exps, (1, heads, n_q); None where there is none.
    """

    rows: Rows
    kv_head: int
    dO: Tensor
    dlse: Tensor | None = None

    @classmethod
    def of(cls, call: CapturedCall, dialect: Dialect, entry: int, kv_head: int) -> "Group":
        """Raises Unfit where the shapes make no call, or the dialect has no gradients of one group of heads."""
        _refuse_unlike(dialect)
        q, k = (as_read(getattr(call, name), name, dialect.layout) for name in "qk")
        group = q.shape[1] // k.shape[1]
        interleaved = dialect.heads == "interleaved"
        heads = torch.arange(group) * k.shape[1] + kv_head if interleaved else torch.arange(group) + kv_head * group
        rows = call.rows(dialect, places=(torch.tensor([entry]), heads, torch.arange(q.shape[2])))
        dO = turned(call, dialect, "dO", "o")
        if dO.shape != (*q.shape[:3], rows.v.shape[-1]):
            raise Unfit(f"dO has the shape {tuple(dO.shape)}, where that of o is due")
        dlse = call.others.get("dlse")
        if dlse is not None:
            dlse = of_rows(dlse, "dlse", (q.shape[0], q.shape[1], q.shape[2]))[entry][heads][None].double().cpu()
        return cls(rows, kv_head, dO[entry][heads][None].double().cpu(), dlse)


def _refuse_unlike(dialect: Dialect) -> None:
    """Raise Unfit where gradients are not of one group of heads, or not of the tensors as they are named."""
    exchanged = dialect.roles or dialect.heads not in ("", "interleaved")
    if exchanged or dialect.softmax.startswith("over_"):
        raise Unfit("not computed where tensors are exchanged, heads reversed, or the softmax is not over keys")
    if dialect.layout and not dialect.layout.startswith(FLAT) and not dialect.layout.endswith(BSHD):
        raise Unfit("not computed where a tensor was read with wrong strides")


def turned(call: CapturedCall, dialect: Dialect, name: str, like: str) -> Tensor:
    """One of the other tensors as (batch, heads, sequence, ...), read as one of q, k, v and o."""
    return as_read(call.others[name], like, dialect.layout)


def of_rows(x: Tensor, name: str, shape: tuple[int, int, int]) -> Tensor:
    """A number of each row, "lse" or "dlse", as (batch, heads, n_q); raises Unfit where it has another shape."""
    batch, heads, n_q = shape
    as_read = x.transpose(1, 2) if x.shape == (batch, n_q, heads) != shape else x
    if as_read.shape != shape:
        raise Unfit(f"{name} has the shape {tuple(x.shape)}, where {shape} is due")
    return as_read


def gradients(rows: Rows, dO: Tensor, of_rows: Tensor | None = None) -> dict[str, Tensor]:
    """The gradients of query heads that share a head of k and v. dk and dv are summed over these heads.

    Args:
        dO: (1, heads, n_q, d_v). of_rows: the gradient of each row's log-sum-exp, (1, heads, n_q); None is 0. float64.

    Returns:
        dq (heads, n_q, head_dim), dk (n_kv, head_dim), dv (n_kv, d_v), float64.
    """
    k, v = (x[:, :1].detach().requires_grad_() for x in (rows.k, rows.v))  # (1, 1, n_kv, d)
    dk, dv, parts = torch.zeros_like(k), torch.zeros_like(v), []
    for at in _chunks(rows):
        q = rows.q[:, :, at].detach().requires_grad_()
        keys, values = (x.expand(-1, rows.q.shape[1], -1, -1) for x in (k, v))
        own = replace(_taken(rows, at), q=q, k=keys, v=values, products=q @ k.mT)
        outputs, given = [attend(own)], [dO[:, :, at]]
        if of_rows is not None:
            outputs, given = [*outputs, log_sum_exp(own)], [*given, of_rows[:, :, at]]
        of_q, of_k, of_v = torch.autograd.grad(outputs, (q, k, v), given, allow_unused=True)
        parts.append(torch.zeros_like(q) if of_q is None else of_q)
        dk += 0 if of_k is None else of_k
        dv += 0 if of_v is None else of_v
    return dict(dq=torch.cat(parts, 2)[0], dk=dk[0, 0], dv=dv[0, 0])


def of_scores(
    group: Group, P: Tensor | None = None, o_of: Rows | None = None, *, delta: float = 1.0, dlse: float = 1.0,
    bends: int = 1, features: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """P of a group in a standard dialect and dS, the gradient of q k^T, (1, heads, n_q, n_kv) each, as a backward pass
    has them, or one that is wrong.

    Args:
        P: None is attention's. o_of: the rows whose o rowsum(dO * o) has; None are the group's. delta, dlse: times
            this and the log-sum-exp's gradient, as they count. bends: how often the softcap's slope does. features: of
            dO and v, the first ones alone, whose products are summed in dP.
    """
    rows, more = group.rows, 0.0 if group.dlse is None else dlse * group.dlse
    P = weights(rows) if P is None else P
    v = rows.v.nan_to_num(0.0, 0.0, 0.0)  # hidden keys may hold anything
    dP = group.dO[..., :features] @ v[..., :features].mT
    dS = rows.scale * P * slopes(rows) ** bends * (dP + (more - delta * deltas(o_of or rows, group.dO))[..., None])
    return P, dS.where(P > 0, 0.0)


def by_hand(
    group: Group, P_of: Callable[[Rows], Tensor] | None = None, o_of: Rows | None = None, **wrong
) -> dict[str, Tensor]:
    """As `gradients`, of P as P_of has it, and dS of `of_scores`, which takes what is wrong; o_of: the rows of the
    forward pass, whose o dS has, and whose log-sum-exp P has where P_of is None."""
    parts, (k, q) = [], (group.rows.k.nan_to_num(0.0, 0.0, 0.0), group.rows.q)
    for at in _chunks(group.rows):
        dlse = None if group.dlse is None else group.dlse[:, :, at]
        part = replace(group, rows=_taken(group.rows, at), dO=group.dO[:, :, at], dlse=dlse)
        forward = part.rows if o_of is None else _taken(o_of, at)
        P = P_of(part.rows) if P_of else exp_less(part.rows, scores(part.rows), log_sum_exp(forward))
        P, dS = of_scores(part, P, forward, **wrong)
        parts.append((dS @ k, (dS.mT @ q[:, :, at]).sum(1), (P.mT @ part.dO).sum(1)))
    dq, dk, dv = zip(*parts)
    return dict(dq=torch.cat(dq, 2)[0], dk=torch.cat(dk).sum(0), dv=group.rows.dialect.factor * torch.cat(dv).sum(0))


def exp_less(rows: Rows, S: Tensor, m: Tensor) -> Tensor:
    """exp(S - m) of rows that see a key, (entries, heads, rows, keys); m: a number of each row."""
    return torch.exp(S - m[..., None]).where(rows.seen & m.isfinite()[..., None], 0.0)


def _chunks(rows):
    return torch.arange(rows.q.shape[2]).split(max(SCORES // (rows.q.shape[1] * rows.k.shape[2]), 1))


def _taken(rows, at):
    parts = {name: getattr(rows, name)[:, :, at] for name in ("q", "o", "products", "bias")}
    return replace(rows, **parts)


def deltas(rows: Rows, dO: Tensor) -> Tensor:
    """rowsum(dO * o) of each row, (1, heads, n_q)."""
    return (dO * attend(rows)).sum(-1).nan_to_num(0.0)


def along_delta(rows: Rows) -> Tensor:
    """What each row of dq changes by for each 1 that its delta is less, (heads, n_q, head_dim)."""
    return rows.scale * (slopes(rows) * weights(rows) @ rows.k)[0]


def slopes(rows):
    """The slope of the softcap at each score."""
    return 1.0 if rows.softcap is None else 1 - torch.tanh(rows.products * rows.scale / rows.softcap).square()


@dataclass(frozen=True)
class Spread:
    """Of one gradient of a right kernel, in its shape.

    Attributes:
        variance: of its error, before it is stored. size: the sum of the squares of its terms, before dP - delta
            cancels.
    """

    variance: Tensor
    size: Tensor

    def bound(self, due: Tensor, output: Format, strength: float) -> Tensor:
        """How far it may be from what is due, stored in a format; strength: standard deviations that a sum may err."""
        bound = strength * self.variance.sqrt()
        return bound + output.ulp(due.abs() + bound) / 2


def spreads(rows: Rows, dO: Tensor, fmt: Format, strength: float, of_rows: Tensor | None = None) -> dict[str, Spread]:
    """The Spread of each gradient of a kernel that recomputes P in FP32 from the log-sum-exp, rounds P and dS to a
    format for their products, reads o in it for delta = rowsum(dO * o), and sums in FP32.

    Roundings count as in `tolerance`: each relative error has the variance u^2 / 3 and its weight in the gradient;
    those of equal numbers are alike, and are added up over shifts against the grid. An error of delta, or of lse, is
    one for all keys of a row. Of query heads that share keys each has its own dk and dv, rounded before they are added.

    Args:
        dO, of_rows: as of `gradients`. strength: as of `Spread.bound`.
    """
    wide = (min(fmt.unit_roundoff, FP32.unit_roundoff) ** 2 + FP64.unit_roundoff**2) / 3
    low, least = fmt.unit_roundoff**2 / 3, (fmt.ulp(torch.zeros(1, dtype=torch.float64)).item() / 2) ** 2 / 3
    exp = EXP**2 / 2 if fmt.precision < FP32.precision else 0.0
    scale, (n_q, n_kv), d, d_v = rows.scale, rows.shape[2:], rows.q.shape[-1], rows.v.shape[-1]
    k, v = rows.k[0, :1].nan_to_num(0.0), rows.v[0, :1].nan_to_num(0.0)  # (1, n_kv, d)
    shifts = [2 ** ((i + 0.5) / SHIFTS) for i in range(SHIFTS)] if fmt.precision < FP32.precision else []
    heads, dO = rows.q.shape[1], rows.dialect.factor * dO
    dk, dv = torch.zeros(heads, n_kv, d).double(), torch.zeros(heads, n_kv, d_v).double()
    total = {name: torch.zeros_like(x[0]) for name, x in (("dk", dk), ("dv", dv))}  # variances
    terms, size = ({name: torch.zeros_like(x) for name, x in total.items()} for _ in range(2))
    alike = [{name: torch.zeros_like(x) for name, x in total.items()} for _ in shifts]
    of_q = []

    def like(x):
        """Errors of a rounding, over shifts."""
        return [(fmt(x * shift) - x * shift) / shift for shift in shifts]

    for at in _chunks(rows):
        own = _taken(rows, at)
        own = replace(own, products=own.products.nan_to_num(0.0), k=rows.k.nan_to_num(0.0), v=rows.v.nan_to_num(0.0))
        q, grad, P, bent = own.q[0].nan_to_num(0.0), dO[0][:, at], weights(own)[0], slopes(own)
        bent = bent[0] if isinstance(bent, Tensor) else bent
        seen = P > 0
        S, lse = scores(own)[0].where(seen, 0.0), log_sum_exp(own)[0][..., None].nan_to_num(0.0, 0.0, 0.0)
        O, dP = P @ v, grad @ v.mT
        more = 0.0 if of_rows is None else of_rows[0][:, at, None]
        delta = (grad * O).sum(-1, keepdim=True) - more
        core = dP - delta
        dS = P * bent * core
        raw, squares = own.products[0] * scale, (q.square() @ k.square().mT) * scale**2
        capped = 0.0 if own.softcap is None else 3 * S.square()
        of_S = wide * ((d + 1) * (squares / 6 + raw.square() / 3) + squares + raw.square() + capped)
        of_e = of_S + wide * ((S - lse).square() + S.square() + 4) + exp
        of_e = (torch.expm1((strength * of_e.sqrt()).clamp(max=FAR)) / strength).square()
        of_lse = wide * (2 * lse.square() + n_kv + 8) + exp
        of_dP = wide * ((d_v + 1) * ((grad.square() @ v.square().mT) / 6 + dP.square() / 3) + dP.square())
        of_O = low * (O.square() + P.square() @ v.square())
        of_delta = (grad.square() * (of_O + wide * (d_v + 1) * O.square())).sum(-1, keepdim=True)
        if shifts:
            repeated = torch.stack([(grad * e).sum(-1, keepdim=True).square() for e in like(O)]).mean(0)
            of_delta = torch.maximum(of_delta, repeated)
        of_P = P.square() * (of_e + of_lse + low) + least * seen
        of_dS = (P * bent).square() * (of_e * core.square() + of_dP) + low * dS.square() + least * seen
        apart = (P * bent).square() * (dP.square() + delta.square())
        dq = scale * (dS @ k)
        squares = scale**2 * (dS.square() @ k.square())
        found = scale**2 * (of_dS @ k.square() + of_delta * ((P * bent) @ k).square()) + of_lse * dq.square()
        found = found + wide * ((n_kv + 1) * (squares / 6 + dq.square() / 3) + dq.square())
        for_rows = of_dS + (P * bent).square() * of_delta + dS.square() * of_lse
        if shifts:
            errors = like(dS)
            repeated = torch.stack([scale**2 * (e @ k).square() for e in errors]).mean(0)
            found = found + (repeated - low * squares).clamp(min=0)
            for own_alike, of_keys, of_values in zip(alike, errors, like(P)):
                own_alike["dk"] += scale * (of_keys.mT @ q).sum(0)
                own_alike["dv"] += (of_values.mT @ grad).sum(0)
        of_q.append((found, scale**2 * (apart @ k.square())))
        total["dk"] += scale**2 * (for_rows.mT @ q.square()).sum(0)
        total["dv"] += (of_P.mT @ grad.square()).sum(0)
        terms["dk"] += scale**2 * (dS.square().mT @ q.square()).sum(0)
        terms["dv"] += (P.square().mT @ grad.square()).sum(0)
        size["dk"] += scale**2 * (apart.mT @ q.square()).sum(0)
        dk, dv = dk + scale * (dS.mT @ q), dv + P.mT @ grad
    size["dv"] = terms["dv"]
    of_q, of_dq = (torch.cat(each, 1) for each in zip(*of_q))
    spread = dict(dq=Spread(of_q, of_dq))
    for name, by_head in (("dk", dk), ("dv", dv)):
        x, count = by_head.sum(0), heads * n_q
        variance = total[name] + wide * ((count + 1) * (terms[name] / 6 + x.square() / 3) + x.square())
        if shifts:
            repeated = torch.stack([each[name].square() for each in alike]).mean(0)
            variance = variance + (repeated - low * terms[name]).clamp(min=0)
        if heads > 1:
            variance = variance + low * by_head.square().sum(0) + heads * least
        spread[name] = Spread(variance, size[name])
    return spread


def counted(group: Group, name: str, x: Tensor) -> tuple[Tensor, Tensor, Counts] | None:
    """Fit how often parts count in one gradient, by every other feature, in whole numbers.

    Args:
        name, x: "dq" (heads, n_q, head_dim), "dk" (n_kv, head_dim) or "dv" (n_kv, d_v), float64.

    Returns:
        x and what it should then be, of the features that were not fitted, and the counts; None where they are no
        whole numbers from 0 on, or all are 1, or there are more than LARGEST. A part that is hidden has the count None.
    """
    rows = group.rows
    if max(rows.products.numel(), MOST * rows.q.numel(), MOST * rows.k.numel()) > LARGEST or not x.isfinite().all():
        return None
    P, dS = of_scores(group)  # (1, heads, n_q, n_kv)
    k = rows.k.nan_to_num(0.0, 0.0, 0.0)  # hidden keys may hold anything
    map_, given = {"dq": (dS, k), "dk": (dS.mT, rows.q), "dv": (P.mT, group.dO)}[name]
    cut, at = (_parts(n) for n in (given.shape[2], map_.shape[2]))
    each = torch.stack([(map_[..., part] @ given[:, :, part])[0] for part in cut])  # (parts, heads, n, d)
    each, x = (each, x) if name == "dq" else (each.sum(1, keepdim=True), x[None])
    if not each.isfinite().all():
        return None
    counts, due = [], torch.zeros_like(x[..., 1::2])
    for part in at:
        A, y = each[:, :, part, ::2].flatten(1).mT, x[:, part, ::2].flatten()
        shows = A.norm(dim=0) > SHOWS * y.norm()  # the others are taken to count once
        found = torch.ones(len(cut)).double()
        found[shows] = torch.linalg.lstsq(A[:, shows], (y - A[:, ~shows].sum(1))[:, None]).solution[:, 0]
        count = found.round()
        if not ((found - count).abs() <= WHOLE).all() or count.min() < 0:
            return None
        counts.append(tuple(int(c) if shown else None for c, shown in zip(count, A.any(0))))
        due[:, part] = torch.tensordot(count, each[:, :, part, 1::2], 1)
    if all(count in (1, None) for line in counts for count in line):
        return None
    told = []
    for first, last, line in _runs(at, counts):
        runs = _runs(cut, [(count,) for count in line])
        told.append(((first, last), tuple((*ends, count) for *ends, (count,) in runs if count not in (1, None))))
    return x[..., 1::2], due, tuple(told)


def _parts(n: int) -> tuple[Tensor, ...]:
    return torch.arange(n).split(max(-(-n // MOST), min(LEAST, -(-n // 2))))


def _runs(parts, values):
    """(first, last, value) of parts that follow each other and have one value, in which None is any."""
    found: list[list[Any]] = []
    for part, value in zip(parts, values):
        if found and all(a == b or None in (a, b) for a, b in zip(found[-1][2], value)):
            found[-1][1:] = int(part[-1]), tuple(a if b is None else b for a, b in zip(found[-1][2], value))
        else:
            found.append([int(part[0]), int(part[-1]), value])
    return found
