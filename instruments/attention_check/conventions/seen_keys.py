"""Which keys each row sees, read off an output row by row: one range alone, or a range more or fewer than it should."""

from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import Tensor

from attention_check.conventions.attention import Dialect
from attention_check.conventions.reading import CapturedCall, Places, Unfit
from attention_check.conventions.search import HELD_OUT, TINY, unnormalised
from attention_check.conventions.solved_weights import EXPLAINED

MOST = 4096  # keys: of more there are too many ranges
FITTED, HELD = slice(None, None, 2), slice(1, None, 2)  # features: those that a range is fitted to, and the others
Keys = tuple[int, int]  # the first key of a range, and the one behind its last


class Sees(StrEnum):
    """What a row sees of a range of keys."""

    ALONE = "alone"  # it, and nothing else
    MISSED = "missed"  # nothing of it, but all else that it should see
    ADDED = "added"  # it, and all that it should see


@dataclass(frozen=True)
class SeenKeys:
    """What a row of an entry sees, in all heads: a range of keys, and how. due: from the first key that it should see
    to behind the last, of so many."""

    entry: int
    row: int
    sees: Sees
    keys: Keys
    due: Keys
    count: int


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
    P, sinks = unnormalised(replace(rows, bias=rows.bias.where(rows.bias > -torch.inf, 0.0)))
    allowed, found = (HELD_OUT * call.rounding()) ** 2, []
    for i, j in torch.cartesian_prod(*map(torch.arange, P[:, 0, :, 0].shape)).tolist():
        row = _Row(P[i, :, j], sinks[i, :, j], rows.v[i], rows.o[i, :, j], (believed.bias[i, :, j] > -torch.inf).any(0))
        golden = believed.golden[i, :, j, HELD]
        right, off = allowed * golden.square().sum().item(), (golden - row.o[:, HELD]).square().sum().item()
        if off <= right:
            continue
        seen = row.seen(min(right, EXPLAINED * off)) if row.o.any() else (Sees.ALONE, (0, 0))
        if seen is None:
            return ()
        at = int(rows.places[0][i]), int(rows.places[2][j])
        found.append(SeenKeys(*at, *seen, row.hull, int(row.due.sum())))
    return tuple(found)


@dataclass(frozen=True)
class _Row:
    """A row of an output, and what makes it: p, exp(S - m), (heads, n_kv); sinks, exp(sink - m), (heads, 1); v, (heads,
    n_kv, d_v); o, (heads, d_v); due, whether it should see a key, bool (n_kv,)."""

    p: Tensor
    sinks: Tensor
    v: Tensor
    o: Tensor
    due: Tensor

    @property
    def hull(self) -> Keys:
        """From the first key that is due to behind the last."""
        keys = self.due.nonzero().flatten().tolist()
        return (keys[0], keys[-1] + 1) if keys else (0, 0)

    def seen(self, right: float) -> tuple[Sees, Keys] | None:
        """What it sees, with a squared error of at most `right` in HELD; None where nothing makes that."""
        first, end = self.hull
        for sees in Sees:
            fitted, held = (self.errors(sees, features) for features in (FITTED, HELD))
            nearest = divmod(int(fitted.argmin()), len(fitted))
            begun = int(fitted[:, end].argmin()), end
            for keys in (begun, (first, int(fitted[first].argmin())), nearest):  # of an end that is due first
                if held[keys] <= right:
                    return sees, keys
        return None

    def errors(self, sees: Sees, features: slice) -> Tensor:
        """The squared error with each range of keys, (n_kv + 1, n_kv + 1), of its first key and the one behind its
        last: of the sum of p (v - o) over what is seen, the distance of two running sums, over l."""
        o, sign = self.o[:, features], -1 if sees == Sees.MISSED else 1
        off = self.v[..., features] - o[:, None]
        of_keys = self.p[..., None] * torch.cat([off, torch.ones_like(off[..., :1])], -1)  # (heads, n_kv, features + 1)
        seen = {Sees.ALONE: self.due | True, Sees.MISSED: self.due, Sees.ADDED: ~self.due}[sees]
        base = (of_keys * self.due[:, None] * (sees != Sees.ALONE)).sum(1)  # (heads, features + 1)
        base += torch.cat([-self.sinks * o, self.sinks], -1)
        running = sign * torch.cat([0 * of_keys[:, :1], (of_keys * seen[:, None]).cumsum(1)], 1)
        ends = running + base[:, None]
        l = ends[:, None, :, -1] - running[:, :, None, -1]  # (heads, first, end)
        error = (torch.cdist(running[..., :-1], ends[..., :-1]) / l.clamp(min=TINY)).square().sum(0)
        return error.where(torch.ones_like(error).triu(1) > 0, torch.inf)
