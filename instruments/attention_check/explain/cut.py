"""A part of a captured call: which of its heads, queries, keys and features are left."""

from dataclasses import dataclass

import torch

from attention_check.probe.capture import Capture

AXES = ("batch", "groups", "places", "rows", "keys", "features", "values")  # of a Cut, in the order they are cut
CALLED = {  # as they are told
    "batch": "batch", "groups": "heads of keys", "places": "query heads of each", "rows": "queries", "keys": "keys",
    "features": "head_dim", "values": "head_dim of V",
}  # fmt: skip


@dataclass(frozen=True)
class Cut:
    """The indices of a call that are left, along each of AXES. A head of Q is its group's (a head of K and V) times the
    group's size plus its place."""

    batch: tuple[int, ...]
    groups: tuple[int, ...]
    places: tuple[int, ...]
    rows: tuple[int, ...]
    keys: tuple[int, ...]
    features: tuple[int, ...]
    values: tuple[int, ...]

    @classmethod
    def whole(cls, call: Capture) -> "Cut":
        """Nothing of a call is left out."""
        q, k, v = call.q, call.k, call.v
        sizes = (len(q), k.shape[1], q.shape[1] // k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3])
        return cls(*(tuple(range(size)) for size in sizes))

    def of(self, call: Capture) -> Capture:
        """What is left of a call."""
        group = call.q.shape[1] // call.k.shape[1]
        heads = [g * group + place for g in self.groups for place in self.places]
        q = _at(call.q, self.batch, heads, self.rows, self.features)
        k = _at(call.k, self.batch, self.groups, self.keys, self.features)
        v = _at(call.v, self.batch, self.groups, self.keys, self.values)
        options = dict(call.options)
        if "mask" in options:
            full = options["mask"].expand(*call.q.shape[:3], call.k.shape[2])
            options["mask"] = _at(full, self.batch, heads, self.rows, self.keys)
        if "sinks" in options:
            options["sinks"] = _at(options["sinks"], heads)
        return Capture(q, k, v, options, about=call.about)


def _at(x, *along):
    for axis, index in enumerate(along):
        x = x.index_select(axis, torch.tensor(index))
    return x
