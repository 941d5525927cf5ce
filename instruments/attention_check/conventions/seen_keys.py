"""What each row sees, read off an output row by row: a range of keys alone, or one more or fewer than it should, or one
of zeros; or all that it should, with a scale of its own."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_check.conventions.attention import Dialect, scores
from attention_check.conventions.reading import CapturedCall, Places, Unfit
from attention_check.conventions.search import HELD_OUT, TINY, unnormalised
from attention_check.conventions.solved_weights import EXPLAINED

MOST = 4096  # keys: of more there are too many ranges
LEAST = 1e-9  # of the sum of all exp(S - m), that a row must see
FITTED, HELD = slice(None, None, 2), slice(1, None, 2)  # features: those that a range is fitted to, and the others
Keys = tuple[int, int]  # the first key of a range, and the one behind its last


class Sees(StrEnum):
    """What a row sees of a range of keys."""

    ALONE = "alone"  # it, and nothing else
    MISSED = "missed"  # nothing of it, but all else that it should see
    ADDED = "added"  # it, and all that it should see
    BUT = "but"  # nothing of it, but all other keys
    EMPTY = "empty"  # zeros in its place, keys and values
    SCALED = "scaled"  # all that it should see, with another scale


RANGES = Sees.ALONE, Sees.MISSED, Sees.ADDED, Sees.BUT, Sees.EMPTY


@dataclass(frozen=True)
class SeenKeys:
    """What a row of an entry sees, in all heads. due: from the first key that it should see to behind the last, of so
    many. times: its scale, over what is due."""

    entry: int
    row: int
    due: Keys
    count: int
    sees: Sees
    keys: Keys
    times: float = 1.0


def seen_keys(call: CapturedCall, places: Places) -> tuple[SeenKeys, ...]:
    """The rows at these places that see other keys than they should, where with the keys that are found each of them is
    right to rounding, in features that nothing was fitted to; () where one is not, or none does."""
    try:
        believed = call.rows(Dialect(), places=places)
        rows = call.rows(Dialect(causal="none", window="ignored"), places=places)
    except Unfit:
        return ()
    if rows.shape[3] > MOST:
        return ()
    rows = replace(rows, bias=rows.bias.where(rows.bias > -torch.inf, 0.0))
    P, sinks = unnormalised(rows)
    zero = torch.exp(-torch.maximum(scores(rows).amax(-1, keepdim=True), rows.sinks))
    is_plain = rows.softcap is None and not rows.bias.any() and bool(rows.sinks.isneginf().all())
    allowed, found = (HELD_OUT * call.rounding()) ** 2, []
    for i, j in torch.cartesian_prod(*map(torch.arange, P[:, 0, :, 0].shape)).tolist():
        due = (believed.bias[i, :, j] > -torch.inf).any(0)
        row = _Row(P[i, :, j], sinks[i, :, j], zero[i, :, j], rows.v[i], rows.o[i, :, j], due)
        golden = believed.golden[i, :, j, HELD]
        right, off = allowed * golden.square().sum().item(), (golden - row.o[:, HELD]).square().sum().item()
        if off <= right:
            continue
        if (seen := row.seen(min(right, EXPLAINED * off), is_plain)) is None:
            return ()
        at = int(rows.places[0][i]), int(rows.places[2][j])
        found.append(SeenKeys(*at, row.hull, int(row.due.sum()), *seen))
    return tuple(found)


@dataclass(frozen=True)
class _Row:
    """A row of an output, and what makes it: p, exp(S - m), (heads, n_kv); sinks, exp(sink - m), and zero, exp(0 - m),
    (heads, 1); v, (heads, n_kv, d_v); o, (heads, d_v); due, whether it should see a key, bool (n_kv,)."""

    p: Tensor
    sinks: Tensor
    zero: Tensor
    v: Tensor
    o: Tensor
    due: Tensor

    @property
    def hull(self) -> Keys:
        """From the first key that is due to behind the last."""
        keys = self.due.nonzero().flatten().tolist()
        return (keys[0], keys[-1] + 1) if keys else (0, 0)

    def seen(self, right: float, is_plain: bool) -> tuple[Sees, Keys, float] | None:
        """What it sees, with a squared error of at most `right` in HELD; None where nothing makes that. is_plain: all
        scores have one scale: there is no softcap, no sink, and no number of a mask."""
        if not self.o.any():
            return Sees.ALONE, (0, 0), 1.0
        first, end = self.hull
        for sees in RANGES:
            fitted = self.errors(sees, FITTED)
            nearest = divmod(int(fitted.argmin()), len(fitted))
            begun = int(fitted[:, end].argmin()), end
            for keys in (begun, (first, int(fitted[first].argmin())), nearest):  # of an end that is due first
                if self.errors(sees, HELD, *([key] for key in keys)) <= right:
                    return sees, keys, 1.0
        power = self.power() if is_plain else 0.0
        return (Sees.SCALED, self.hull, 2.0**power) if power and self.scaled(power, HELD) <= right else None

    def errors(self, sees: Sees, features: slice, firsts: Any = slice(None), ends: Any = slice(None)) -> Tensor:
        """The squared error with ranges of keys, all or some, (firsts, ends), up to (n_kv + 1, n_kv + 1), of the first
        key and the one behind the last: of the sum of p (v - o) over what is seen, the distance of two running sums,
        over l."""
        o, every = self.o[:, features], self.due | True
        off = self.v[..., features] - o[:, None]
        of_keys = self.p[..., None] * F.pad(off, (0, 1), value=1.0)  # (heads, n_kv, features + 1)
        of_zero = (self.zero * F.pad(-o, (0, 1), value=1.0))[:, None]
        before, of_range = {  # which keys are seen before the range changes it, and what it changes
            Sees.ALONE: (~every, of_keys), Sees.MISSED: (self.due, -of_keys * self.due[:, None]),
            Sees.ADDED: (self.due, of_keys * ~self.due[:, None]), Sees.BUT: (every, -of_keys),
            Sees.EMPTY: (self.due, (of_zero - of_keys) * self.due[:, None]),
        }[sees]  # fmt: skip
        base = (of_keys * before[:, None]).sum(1) + self.sinks * F.pad(-o, (0, 1), value=1.0)  # (heads, features + 1)
        running = F.pad(of_range.cumsum(1), (0, 0, 1, 0))
        to, places = (running + base[:, None])[:, ends], torch.arange(running.shape[1])
        running = running[:, firsts]
        l = to[:, None, :, -1] - running[:, :, None, -1]  # (heads, first, end)
        error = (torch.cdist(running[..., :-1], to[..., :-1]) / l.clamp(min=TINY)).square().sum(0)
        is_range = places[firsts][:, None] < places[ends]
        return error.where(is_range & (l > LEAST * self.p.sum(-1)[:, None, None]).all(0), torch.inf)

    def scaled(self, power: float, features: slice) -> float:
        """The squared error with a scale that is 2**power times what is due."""
        p = self.p.pow(2.0**power) * self.due
        O = torch.einsum("hk,hkf->hf", p / p.sum(-1, keepdim=True).clamp(min=TINY), self.v[..., features])
        return (O - self.o[:, features]).square().sum().item()

    def power(self) -> float:
        """The power of 2 of its scale that is nearest in FITTED."""
        from scipy.optimize import minimize_scalar

        nearest = min((i / 4 for i in range(-16, 17)), key=lambda power: self.scaled(power, FITTED))
        around = (nearest - 0.25, nearest + 0.25)
        found: Any = minimize_scalar(self.scaled, args=(FITTED,), bounds=around, options=dict(xatol=1e-6))
        return float(found.x)
