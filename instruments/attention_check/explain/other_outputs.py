"""What a gradient is that came with an output: right, right read otherwise, or which other one."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import permutations, product
from typing import Any

import torch
from torch import Tensor

from attention_check.conventions.attention import Dialect, Rows, changed, log_sum_exp, scores, weights
from attention_check.conventions.conventions import CONVENTIONS, Convention
from attention_check.conventions.derivatives import (
    GRADIENTS,
    Group,
    Spread,
    along_delta,
    by_hand,
    counted,
    deltas,
    exp_less,
    gradients,
    of_rows,
    spreads,
    turned,
)
from attention_check.conventions.low_bits import OF_P
from attention_check.conventions.reading import UNITS, CapturedCall, Unfit, as_read, spread, taken
from attention_check.conventions.search import NEAR
from attention_check.explain.distance import parts, places_of
from attention_check.explain.verdict import Explanation, Verdict, WrongRegions, wrong_regions
from fa_lib import kernels
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.rule import ALLOWED, baseline_for
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import FP32, Format

PRODUCTS = 2e10  # multiplications of gradients that are computed for a call: some seconds; four times as many at most
PASSES = 10  # over q k^T, that a head's gradients take
SLOW = 2**21  # scores of a head: with more, sums one term after the other take too long
NEARER = 4.0  # times: so much nearer another gradient must be
FALSE_ALARM = 1e-6  # how often a right gradient may be beyond its bound, in calls
ROOM = 2.0  # times ALLOWED: torch's own flash kernel makes up to 4.0 times Baseline's error in dV, in FP16
TOGETHER = 32  # rows that share the largest error which is rounding
OFF = 0.01  # of a factor from 1, and from 0, that is named
MOST = 0.5  # of the rows: where so many are off, and by little, it is the arithmetic
FEWEST = 16  # numbers of a gradient, at least, that one factor is read off
COUNTS = 1e4  # a log-sum-exp nearer to 0, of a row that sees no key, counts in a merge
NOTHING_HIDDEN = ("causal", "none"), ("mask", "ignored"), ("window", "ignored")  # choices of a Dialect
PARTS_OF_HEADS = 16, 32, 64, 128  # features that a kernel takes at a time, and which may be all that it takes


@dataclass(frozen=True)
class OtherOutput:
    """What a log-sum-exp or a gradient is, that came with the output, under the output's dialect.

    Attributes:
        name: "lse", "dq", "dk" or "dv".
        residual: of a gradient, root mean square of the error over that of the right gradient; of a log-sum-exp, root
            mean square of the difference. times: the largest error over the largest that is rounding.
        change: what it is instead, a key of `explain_words.CHANGES`; "" where it is right, or nothing was found.
            factor: of a change that is one. features: of one that sums over so many. dialect: that which it is of,
            where it is not the output's. counts: how often parts count, as of `derivatives.counted`.
        where: the parts that are wrong; None where none are, or all.
        looked_at: heads of k and v of all entries, or rows of a log-sum-exp; of how many.
    """

    name: str
    verdict: Verdict
    residual: float
    times: float
    change: str = ""
    factor: float = 1.0
    features: int = 0
    dialect: dict[str, Any] = field(default_factory=dict)
    where: WrongRegions | None = None
    counts: tuple = ()
    looked_at: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class RightGradients:
    """The gradients of some heads of a call in a dialect, all rows of them.

    Attributes:
        groups: the query heads that share a head of k and v, of each entry that is looked at, of `across` heads of k
            and v each. values: their gradients. spreads: how far those of a right kernel may be from them.
        count: of groups that the call has. cost: multiplications of one. strength: as of `spreads`.
        choices: conventions that they may follow where the output does not. made: `_other_gradients` of groups.
    """

    call: CapturedCall
    dialect: Dialect
    groups: list[Group]
    across: int
    values: list[dict[str, Tensor]]
    spreads: list[dict[str, Spread]]
    count: int
    cost: int
    strength: float
    choices: list[Convention]
    made: dict[int, list[Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, call: CapturedCall, dialect: Dialect, choices: list[Convention]) -> "RightGradients":
        """Raises Unfit where there are no gradients of the dialect, or they are too many to compute."""
        q, k = (as_read(getattr(call, name), name, dialect.layout) for name in "qk")
        (batch, heads, n_q, d), (_, kv_heads, n_kv, _) = q.shape, k.shape
        if (cost := PASSES * heads // kv_heads * n_q * n_kv * d) > 4 * PRODUCTS:
            raise Unfit(f"{n_q:,} queries and {n_kv:,} keys would take too long")
        strength = math.sqrt(2 * math.log(2 * (q.numel() + k.numel() + call.v.numel()) / FALSE_ALARM))
        room = max(PRODUCTS / max(cost, 1), 1)
        across = spread(kv_heads, room).tolist()
        at = product(spread(batch, max(room / len(across), 1)).tolist(), across)
        groups = [Group.of(call, dialect, *each) for each in at]
        values = [gradients(each.rows, each.dO, each.dlse) for each in groups]
        known = dialect.is_standard
        found = [spreads(each.rows, each.dO, call.fmt, strength, each.dlse) for each in groups] if known else []
        return cls(call, dialect, groups, len(across), values, found, batch * kv_heads, cost, strength, choices)

    def bounds(self, name: str) -> Tensor:
        """How far a right gradient may be off, like `of_heads`: the derived bound; in a dialect that no kernel computes
        UNITS unit roundoffs of the largest gradient of TOGETHER rows."""
        if not self.spreads:
            units = UNITS * self.call.fmt.unit_roundoff
            return self.of_heads(name, (_largest(units * each[name].abs()) for each in self.values))
        output, pairs = Format.of(self.call.others[name].dtype), zip(self.spreads, self.values)
        return self.of_heads(name, (of[name].bound(each[name], output, self.strength) for of, each in pairs))

    def is_as_written_out(self, name: str, error: Tensor) -> bool:
        """Whether an error is about that of attention written out step by step: within ROOM * ALLOWED times Baseline's
        or an emulated flash kernel's in each TOGETHER rows, and within UNITS unit roundoffs of the terms on the
        whole."""
        if not self.spreads or self.call.stated in OF_P:
            return False
        sizes = (torch.maximum(of[name].size, each[name].square()) for of, each in zip(self.spreads, self.values))
        size = self.of_heads(name, sizes).mean().sqrt().item()
        if not error.square().mean().sqrt().item() <= UNITS * self.call.fmt.unit_roundoff * size:
            return False
        allowed = (_rounding(*each, self.call.fmt)[name] for each in zip(self.groups, self.values))
        return bool((error <= self.of_heads(name, allowed)).all())

    def of_heads(self, name: str, parts: Iterable[Tensor]) -> Tensor:
        """One tensor of those of the groups, of a gradient or like it: (entries, heads, n, d or 1)."""
        x = torch.stack([*parts])
        x = x if GRADIENTS[name] == "q" else x[:, None]
        return x.unflatten(0, (-1, self.across)).flatten(1, 2)

    def seen(self, name: str) -> Tensor:
        """Which rows of q see a key, or which keys are seen, bool (entries, heads, n)."""
        sees = (each.rows.bias[0] > -math.inf for each in self.groups)  # (heads, n_q, n_kv)
        of_q = GRADIENTS[name] == "q"
        return self.of_heads(name, ((x.any(-1) if of_q else x.any(0).any(0))[..., None] for x in sees))[..., 0]

    def shape(self, name: str) -> tuple[int, int, int, int]:
        """Of the whole gradient: batch, heads, n, d."""
        batch, heads, n_q, n_kv = self.groups[0].rows.shape
        of_q, features = GRADIENTS[name] == "q", self.values[0][name].shape[-1]
        return batch, heads if of_q else self.count // batch, n_q if of_q else n_kv, features

    def places(self, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """The indices of entries, heads and rows of `of_heads`."""
        entries = torch.cat([each.rows.places[0] for each in self.groups]).unique()
        first = self.groups[: self.across]
        of_q = GRADIENTS[name] == "q"
        heads = torch.cat([each.rows.places[1] for each in first]) if of_q else torch.tensor([g.kv_head for g in first])
        return entries, heads, torch.arange(self.values[0][name].shape[-2])


def gradient(right: RightGradients, name: str) -> OtherOutput:
    """What one of GRADIENTS is; raises Unfit where its shape is not that of the tensor that it is of."""
    given, as_read = _in_a_known_shape(right, name)
    x = right.of_heads(name, given)
    due, bounds = right.of_heads(name, (each[name] for each in right.values)), right.bounds(name)
    if not due.isfinite().any():
        raise Unfit("its right value is not finite")
    x, due = (each.where(due.isfinite(), 0.0) for each in (x, due))
    error = (x - due).abs().nan_to_num(math.inf)
    residual, times = _residual(x, due), (error / bounds).nan_to_num(0.0, math.inf).max().item()
    looked_at = len(right.groups), right.count
    as_output = partial(OtherOutput, name, residual=residual, times=times, looked_at=looked_at)
    if times <= 1 or right.is_as_written_out(name, error):
        return as_output(verdict=Verdict.CONVENTION if as_read else Verdict.ROUNDING, change=as_read)
    by_head = error.square().mean((2, 3))  # (entries, heads)
    worst = int(by_head.argmax()) * len(right.groups) // by_head.numel()
    near = min(NEAR, residual / NEARER)
    wrong = error > bounds
    unseen = ~right.seen(name) & wrong.any(-1)
    zero = (x == 0).all(-1) & wrong.any(-1)
    for value, bad in (("not_finite", (~x.isfinite()).any(-1)), ("zero", zero), ("not_zero", unseen)):
        if bad.any() and not (wrong & ~(rows := bad[..., None])).any():
            where = wrong_regions(rows.expand_as(x), right.places(name), right.shape(name))
            return as_output(verdict=Verdict.BUG, change=value, where=where)
    for made in (_like_others, _of_another_delta, _of_parts):
        tried = [(_residual(*each), change, more) for change, *each, more in made(right, name, given[worst], worst)]
        least, change, more = min(tried, key=lambda one: one[0], default=(math.inf, "", {}))
        if least <= (min(near, UNITS * right.call.fmt.unit_roundoff) if change == "factor" else near):
            if change in ("another_delta", "no_delta") and name == "dq":
                more |= dict(where=wrong_regions(wrong, right.places(name), right.shape(name)))
            return as_output(verdict=Verdict.PRECISION if change == "scores" else Verdict.BUG, change=change, **more)
    if residual <= NEAR and wrong.any(-1).double().mean() > MOST:
        return as_output(verdict=Verdict.PRECISION)
    where = wrong_regions(wrong, right.places(name), right.shape(name))
    return as_output(verdict=Verdict.BUG, where=where)


def _in_a_known_shape(right: RightGradients, name: str) -> tuple[list[Tensor], str]:
    """A gradient of each group that is looked at, and how it is read: "" is as the tensor that it is of."""
    of = GRADIENTS[name]
    whole, shape = turned(right.call, right.dialect, name, of), right.shape(name)
    batch, heads, n, d = shape
    for x, change in ((whole, ""), (whole.transpose(1, 2), "heads_last")):
        if x.shape == shape:
            at = ((each.rows.places[0][0], each.rows.places[1] if of == "q" else each.kv_head) for each in right.groups)
            return [x[entry, own].double().cpu() for entry, own in at], change
    if of != "q" and whole.shape == (batch, right.shape("dq")[1], n, d):
        at = (each.rows.places for each in right.groups)
        return [whole[entry[0], own].double().sum(0).cpu() for entry, own, _ in at], "for_each_query_head"
    raise Unfit(f"its shape is {tuple(right.call.others[name].shape)}, where {shape} is due, that of {of}")


Alternative = tuple[str, Tensor, Tensor, dict[str, Any]]  # the key of a mistake, the given gradient of a group, or
# some of its features, what the mistake makes of them, and fields of an OtherOutput


def _like_others(right: RightGradients, name: str, x: Tensor, worst: int) -> Iterator[Alternative]:
    """A gradient x of a group times a number, another tensor's, and those of `_other_gradients`."""
    group, values = right.groups[worst], right.values[worst]
    factor = ((x * values[name]).sum() / values[name].square().sum().clamp(min=1e-300)).item()
    if math.isfinite(factor) and abs(factor) > OFF and abs(factor - 1) > OFF and x.numel() >= FEWEST:
        scale, heads = group.rows.scale if name != "dv" else 1.0, 1 if name == "dq" else group.dO.shape[1]
        known = {"unscaled": 1 / scale, "scaled_twice": scale, "mean_of_heads": 1 / heads}
        like = [key for key, c in known.items() if abs(c - 1) > OFF > abs(factor / c - 1)]
        yield like[0] if len(like) == 1 else "factor", x, factor * values[name], dict(factor=factor)
    if name != "dv" and group.rows.dialect.is_standard:
        without = by_hand(group, delta=0.0)[name]
        own = values[name] - without  # what rowsum(dO * o) adds
        factor = (((x - without) * own).sum() / own.square().sum().clamp(min=1e-300)).item()
        if math.isfinite(factor) and abs(factor - 1) > OFF:
            yield ("delta_times" if abs(factor) > OFF else "without_delta", x, without + factor * own,
                   dict(factor=factor))  # fmt: skip
    for key, other in (("of_the_other", {"dq": "dk", "dk": "dq"}), ("exchanged", {"dk": "dv", "dv": "dk"})):
        if name in other and values[other[name]].shape == x.shape:
            yield key, x, values[other[name]], {}
    right.made[worst] = right.made.get(worst) or _other_gradients(right, worst)
    for key, made, more in right.made[worst]:
        if name in made:
            yield key, x, made[name], more


def _other_gradients(right: RightGradients, worst: int) -> list[tuple[str, dict[str, Tensor], dict[str, Any]]]:
    """The gradients of a group that mistakes make: key, name -> gradient of those that it changes, and fields of an
    OtherOutput."""
    group, made = right.groups[worst], []
    rows, dO, dlse, heads = group.rows, group.dO, group.dlse, group.dO.shape[1]  # heads that share keys

    def add(key, found, names="dq dk dv", **more):
        made.append((key, {name: found[name] for name in names.split()}, more))

    for head in range(heads if heads > 1 and dlse is None else 0):
        add("of_one_head", gradients(rows, dO * (torch.arange(heads) == head)[:, None, None]), "dk dv")
    add("of_ones", gradients(rows, torch.ones_like(dO)))
    if dlse is not None:
        add("without_dlse", gradients(rows, dO), "dq dk")
    if rows.dialect.is_standard:
        for times in (0, 2) if rows.softcap is not None else ():
            add(f"softcap_{times}", by_hand(group, bends=times), "dq dk")
        wrong_P = dict(
            scores=lambda x: (scores(replace(x, products=right.call.fmt(x.products))), log_sum_exp(x)),
            lse_as_base_2=lambda x: (scores(x), log_sum_exp(x) * math.log(2)),
            lse_as_natural=lambda x: (scores(x), log_sum_exp(x) / math.log(2)),
        )
        if dlse is None and rows.softcap is None:
            wrong_P["not_divided"] = lambda x: (scores(x), scores(x).amax(-1))
        for key, S_and_m in wrong_P.items():
            add(key, by_hand(group, lambda x, S_and_m=S_and_m: exp_less(x, *S_and_m(x))))
        for features in (each for each in PARTS_OF_HEADS if each < dO.shape[-1]):
            add("part_of_features", by_hand(group, features=features), "dq dk", features=features)
    whole = turned(right.call, right.dialect, "dO", "o")
    (batch, heads, n, d), (entries, at, _) = whole.shape, rows.places
    if (kv_heads := right.count // batch) not in (1, heads) and not right.dialect.heads:
        found = dict(dk=0.0, dv=0.0)
        for head in range(group.kv_head, heads, kv_heads):
            of = entries, torch.tensor([head]), rows.places[2]
            one = gradients(right.call.rows(right.dialect, places=of), taken(whole, *of).double().cpu())
            found = {name: x + one[name] for name, x in found.items()}
        add("of_other_heads", found, "dk dv")
    for memory in (whole.reshape(batch, n, heads, d).transpose(1, 2), whole.transpose(1, 2).reshape(whole.shape)):
        add("dO_in_memory_order", gradients(rows, memory[entries][:, at].double().cpu(), dlse))
    others = [changed(right.dialect, each.aspect, each.choice) for each in right.choices]
    shown = {each.aspect: each.choice for each in right.choices if (each.aspect, each.choice) in NOTHING_HIDDEN}
    if len(shown) > 1:  # one alone is among the choices
        others.insert(0, replace(right.dialect, **shown))
    for dialect in others[: int(4 * PRODUCTS / max(right.cost, 1))]:
        try:
            other = Group.of(right.call, dialect, int(entries[0]), group.kv_head)
        except Unfit:
            continue
        add("dialect", gradients(other.rows, dO, dlse), dialect=dialect.changes())
        if rows.dialect.is_standard and dialect.is_standard:
            add("saved", by_hand(other, o_of=rows), dialect=dialect.changes())
            add("saved_delta", by_hand(other, weights, o_of=rows), "dq dk", dialect=dialect.changes())
    return made


def _of_another_delta(right: RightGradients, name: str, x: Tensor, worst: int) -> Iterator[Alternative]:
    """The gradient with another delta in each row: it is solved for in dq, in every other feature, and holds in the
    others; dk has the deltas of dq."""
    group, values = right.groups[worst], right.values[worst]
    if name == "dv" or not group.rows.dialect.is_standard or not right.call.others.keys() >= {"dq", name}:
        return
    dq = _in_a_known_shape(right, "dq")[0][worst]
    along = along_delta(group.rows)
    error, first = ((each[..., ::2]) for each in (dq - values["dq"], along))
    less = (error * first).sum(-1) / first.square().sum(-1).clamp(min=1e-300)  # (heads, n_q)
    if not less.isfinite().all():
        return
    due = deltas(group.rows, group.dO)[0]  # (heads, n_q)
    off = less.abs() > OFF * due.abs().max()
    key = "no_delta" if ((due - less)[off].abs() < OFF * due.abs().max()).all() else "another_delta"
    if name == "dq":
        yield key, x[..., 1::2], (values["dq"] + less[..., None] * along)[..., 1::2], {}
    else:
        more = less[None] + (0.0 if group.dlse is None else group.dlse)
        yield key, x, gradients(group.rows, group.dO, more)[name], {}


def _of_parts(right: RightGradients, name: str, x: Tensor, worst: int) -> Iterator[Alternative]:
    """The gradient in which parts count another number of times."""
    group = right.groups[worst]
    if group.rows.dialect.is_standard and (found := counted(group, name, x)):
        yield "parts", *found[:2], dict(counts=found[2])


def _residual(x: Tensor, due: Tensor) -> float:
    """Root mean square of an error over that of what is due; infinite where one is not finite."""
    error, size = (x - due).square().mean().item(), due.square().mean().item()
    return math.sqrt(error / max(size, 1e-300)) if math.isfinite(error) and math.isfinite(size) else math.inf


def _rounding(group: Group, right: dict[str, Tensor], fmt: Format) -> dict[str, Tensor]:
    """The largest error of each gradient of attention written out step by step, of TOGETHER rows, (..., n, 1): the
    largest of ROOM * ALLOWED times Baseline's there, and the same of an emulated flash kernel. In FP32 eager code
    stands for Baseline where a head has more than SLOW scores."""
    rows = group.rows
    slow = fmt.precision >= FP32.precision and rows.products[0, 0].numel() > SLOW
    flash = partial(kernels.tiled, tiling=Tiling(64, 64), precision=Precision.kernel(fmt))
    found = dict.fromkeys(right, torch.zeros(1).double())
    for kernel in (kernels.unfused if slow else baseline_for(fmt), flash):
        q, k, v, dO = (x.nan_to_num(0.0).to(fmt.dtype) for x in (rows.q, rows.k[:, :1], rows.v[:, :1], group.dO))
        x = [each.requires_grad_() for each in (q, k, v)]
        dq, dk, dv = torch.autograd.grad(rows.dialect.factor * kernel(*x, **rows.options()), x, dO)
        for name, own in dict(dq=dq[0], dk=dk[0, 0], dv=dv[0, 0]).items():
            error = ROOM * ALLOWED[name] * _largest((own.double() - right[name]).abs())
            found[name] = torch.maximum(found[name], error)
    return found


def _largest(errors: Tensor) -> Tensor:
    """The largest of the errors (..., n, d) of each TOGETHER rows, (..., n, 1)."""
    parts = errors.amax(-1, keepdim=True).split(TOGETHER, -2)
    return torch.cat([part.amax(-2, keepdim=True).expand_as(part) for part in parts], -2).clamp(min=1e-300)


WITHOUT_SINKS = dict(sinks="ignored")  # what is added to o afterwards needs it so


def judged_log_sum_exp(call: CapturedCall, dialect: Dialect, choices: list[Convention]) -> OtherOutput:
    """What the log-sum-exp of a call is, of the rows that `Distance.scan` looks at. choices: conventions that it may
    follow where the output does not. Raises Unfit where its shape is not that of rows."""
    sample = call.rows(dialect)
    batch, heads, n_q, _ = sample.shape
    x = of_rows(call.others["lse"], "lse", (batch, heads, n_q))
    as_read = "" if x.shape == call.others["lse"].shape else "heads_last"
    fmt, squares, times, count, blind = Format.of(x.dtype), 0.0, 0.0, 0, 0
    places = places_of(call, sample)
    off = torch.zeros(batch, heads, n_q, dtype=torch.bool)
    for rows in parts(call, sample, places):
        due = log_sum_exp(rows)
        sees = due.isfinite()  # a NaN score, or no key, has none
        own = taken(x, *rows.places).double().cpu()
        blind += int((own[due == -math.inf].abs() < COUNTS).sum())
        error = (own - due)[sees].abs().nan_to_num(math.inf)
        if error.numel():
            over = error / _bound(rows, due, fmt)[sees]
            times = max(times, over.max().item())
            entries, at, rows_at = rows.places
            off[entries[:, None, None], at[:, None], rows_at] = sees.masked_scatter(sees, over > 1)
        squares, count = squares + error.square().sum().item(), count + error.numel()
    residual, looked_at = math.sqrt(squares / max(count, 1)), (len(places[2]) * batch * heads, x.numel())
    as_output = partial(OtherOutput, "lse", residual=residual, times=times, looked_at=looked_at)
    if times <= 1 and blind:
        return as_output(verdict=Verdict.CONVENTION, change="blind")
    if times <= 1:
        return as_output(verdict=Verdict.CONVENTION if as_read else Verdict.ROUNDING, change=as_read)

    def tried_as(x, due, change, more):
        error = (taken(x, *sample.places).double().cpu() - due)[due.isfinite()]
        return error.square().mean().sqrt().nan_to_num(math.inf).item(), change, more

    tried = [tried_as(x, due, *named) for due, *named in _other_log_sum_exps(call, sample, choices)]
    due = log_sum_exp(sample)
    for order in [*permutations(range(3))][1:]:  # of (batch, heads, n_q) in memory
        turned_back = x.reshape([x.shape[i] for i in order]).permute([order.index(i) for i in range(3)])
        tried.append(tried_as(turned_back, due, "other_order", {}))
    least, change, more = min(tried, key=lambda one: one[0])
    if least <= min(NEAR, residual / NEARER):
        faults = "other_order", "unscaled_maximum", "base_2_sum", "ln_2_more", "smoothed_k"
        is_fault = change in faults or change == "dialect" and more != WITHOUT_SINKS
        return as_output(verdict=Verdict.BUG if is_fault else Verdict.CONVENTION, change=change, dialect=more)
    if residual <= NEAR and off.sum() > MOST * count:
        return as_output(verdict=Verdict.PRECISION)
    where = wrong_regions(taken(off, *places)[..., None], places, (batch, heads, n_q, 1))
    return as_output(verdict=Verdict.BUG, where=where)


def _other_log_sum_exps(
    call: CapturedCall, rows: Rows, choices: list[Convention]
) -> Iterator[tuple[Tensor, str, dict[str, Any]]]:
    """What may be given for a log-sum-exp, the key of the change, and its dialect."""
    due, m = log_sum_exp(rows), scores(rows).amax(-1)
    made = dict(base_2=due / math.log(2), negative=-due, maximum=m, without_maximum=due - m, sum=(due - m).exp())
    made |= dict(base_2_sum=m + (due - m) / math.log(2), ln_2_more=due * math.log(2))
    made["smoothed_k"] = due - rows.products.mean(-1) * rows.scale
    yield from ((x, key, {}) for key, x in (made | dict(unscaled_maximum=due - m + m / rows.scale)).items())
    for each in choices:
        dialect = changed(rows.dialect, each.aspect, each.choice)
        try:
            yield log_sum_exp(call.rows(dialect, places=rows.places)), "dialect", dialect.changes()
        except Unfit:
            continue


def _bound(rows: Rows, due: Tensor, fmt: Format) -> Tensor:
    """Of the error of log-sum-exps whose products, exponentials and sums are in FP32, (entries, heads, rows)."""
    u, n_kv = FP32.unit_roundoff, rows.shape[3]
    products = (rows.q.abs() @ rows.k.abs().mT).amax(-1) * abs(rows.scale)
    bias = rows.bias.nan_to_num(neginf=0.0).abs().amax(-1)
    return (rows.q.shape[-1] + 4) * u * (products + bias) + (n_kv + 8) * u + 2 * fmt.unit_roundoff * due.abs()


SHARED = ("layout", "roles", "heads", "softmax")  # aspects that they have as the output has them: no other is tried


def with_other_outputs(call: CapturedCall, found: Explanation) -> Explanation:
    """An Explanation with what its log-sum-exp and its gradients are, and why some were not judged."""
    dialect, others, reasons = Dialect(**found.dialect), [], []
    choices = [each for each in CONVENTIONS if each.aspect not in (*SHARED, *found.dialect) and each.fits(call)]
    right = None  # of all gradients, computed for the first one
    for name in ("lse", *GRADIENTS):
        if name not in call.others:
            continue
        try:
            if name == "lse":
                others.append(judged_log_sum_exp(call, dialect, choices))
            elif "dO" not in call.others:
                raise Unfit("dO is needed beside it")
            elif name == "dv" and found.blind_rows == "mean":
                raise Unfit("rows that see no key are the mean of v, and have gradients that are not computed here")
            else:
                right = right or RightGradients.of(call, dialect, choices)
                others.append(gradient(right, name))
        except Unfit as error:
            reasons.append(f"{name}: {error}")
    return replace(found, others=tuple(others), not_judged="; ".join(reasons))
