"""A captured call at which a kernel fails, made as small as it still fails, and written as a test of its own.

Delta debugging (Zeller and Hildebrandt, IEEE Transactions on Software Engineering 28, 2002) in its plainest form: keep
a half while one of the halves will do, then drop one block after the other.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import torch

from attention_check.adapters import OwnNames
from attention_check.explain.standalone_test import judged, standalone
from attention_check.isolation.calls import KernelError, call_or_raise
from attention_check.isolation.worker import Outcome
from attention_check.measure.closeness import BoundCheck
from attention_check.probe.capture import AS_IT_IS, Capture, captured
from attention_check.probe.named_tensors import FILE_LAYOUTS, Reading
from attention_check.probe.skipped import place
from fa_lib import kernels
from fa_lib.execution.files import replacing
from fa_lib.kernels.kernel_ref import KernelRef

MARGIN = 1.5  # of the limit: a smaller call is kept where its error is so far beyond it, or as far as the whole call's
BLOCKS = (2, 4, 8, 16, 32)  # that an axis is cut into, one after the other
ROUNDS = 3  # of all axes, until none gets smaller
AXES = {  # of a Cut, in the order they are cut, and in words
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
        group, options = call.q.shape[1] // call.k.shape[1], dict(call.options)
        heads = [g * group + place for g in self.groups for place in self.places]
        q = _at(call.q, self.batch, heads, self.rows, self.features)
        k, v = (_at(x, self.batch, self.groups, self.keys, of)
                for x, of in ((call.k, self.features), (call.v, self.values)))  # fmt: skip
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


@dataclass(frozen=True)
class Failure:
    """How a kernel fails at a call.

    Attributes:
        kind: "raises" (or returns no output of attention), "nonfinite", "far", or "right": it does not fail.
        says: what it raises, each number as #; "" of the other kinds.
        ratio: its largest error over the limit of `judged`; infinite of the other kinds.
        at: (batch, head, query) where the error is largest, or None.
        o: the kernel's output, where it is "far".
    """

    kind: str
    says: str = ""
    ratio: float = torch.inf
    at: tuple[int, ...] | None = None
    o: torch.Tensor | None = field(default=None, compare=False, repr=False)

    def cause(self, call: Capture) -> str:
        """What makes this very error at its call; "" where no cause is known."""
        found = {} if self.o is None else BoundCheck.of(self.o, call.q, call.k, call.v, call.options).cause()
        return found["key"] if found.get("same") else ""

    def stays(self, other: "Failure") -> bool:
        """Whether another call's Failure is this one."""
        alike = (other.kind, other.says) == (self.kind, self.says)
        return alike and other.ratio >= min(self.ratio, MARGIN)


@dataclass(frozen=True)
class Shrunk:
    """A call made small, and how a kernel fails at it. cut: what it is of the whole one; whole: leaves nothing out."""

    kernel: KernelRef
    failure: Failure
    call: Capture
    cut: Cut
    whole: Cut

    def sizes(self) -> dict[str, tuple[int, int]]:
        """axis, of AXES -> indices before and left; an axis of one index is left out."""
        pairs = {axis: (len(getattr(self.whole, axis)), len(getattr(self.cut, axis))) for axis in AXES}
        return {axis: pair for axis, pair in pairs.items() if pair[0] > 1}


def failure(fn: Callable, call: Capture, device: str = "cpu") -> Failure:
    """How a kernel fails at a call. It is called with those options that the call has need of."""
    given = call.on(device)
    try:
        o = call_or_raise(fn, given.options, *(x.clone() for x in (given.q, given.k, given.v))).detach().cpu()
    except KernelError as error:
        if error.outcome == Outcome.NOT_CALLED:
            raise ValueError(f"kernel: it {error}; accepted are kernels that come back from their calls") from error
        return Failure("raises", re.sub(r"\d+", "#", str(error)))
    error, limit = judged(o, call.q, call.k, call.v, **call.options)
    if not error.isfinite().all():
        return Failure("nonfinite")
    ratio = error.max().item() / limit if limit else torch.inf if error.any() else 0.0
    at = tuple(int(i) for i in torch.unravel_index(error.argmax(), error.shape))
    return Failure("far", "", ratio, at, o) if ratio > 1 else Failure("right", "", ratio, at)


def smallest(items: tuple[int, ...], stays: Callable[[tuple[int, ...]], bool]) -> tuple[int, ...]:
    """Few of some items, in their order, for which `stays` still holds, as it does for all: halves, then all but a
    block, one block after the other, of a half to a 32nd."""
    while len(items) > 1:
        middle = len(items) // 2
        half = next((half for half in (items[:middle], items[middle:]) if stays(half)), None)
        if half is None:
            break
        items = half
    for count in BLOCKS:
        if count // 2 >= len(items):
            break
        edges = [len(items) * i // count for i in range(count + 1)]
        for block in [set(items[i:j]) for i, j in pairwise(edges)]:
            fewer = tuple(i for i in items if i not in block)
            if fewer and block and len(fewer) < len(items) and stays(fewer):
                items = fewer
    return items


def last_ones(items: tuple[int, ...], stays: Callable[[tuple[int, ...]], bool]) -> tuple[int, ...]:
    """As `smallest`, but what is left are the last items: of a window, whose distances stay then."""
    fewer = len(items) // 2
    while fewer:
        while len(items) > fewer and stays(items[-max(1, len(items) - fewer) :]):
            items = items[-max(1, len(items) - fewer) :]
        fewer //= 2
    return items


def shrink(kernel: KernelRef | str, path: str | Path, device: str = "cpu", reading: Reading = AS_IT_IS) -> Shrunk:
    """The smallest heads, then queries, keys and head_dim of a captured call at which a kernel's failure stays.

    Where the call is causal with as many queries as keys, one query is asked alone, without a mask, with the keys that
    it sees. If that will not do, queries and keys are cut together: a kernel may align its mask otherwise where they
    differ, and that would be another failure. Where a mistake is known that makes the error of the whole call, it must
    make that of the small one, too: an axis whose cut turns it into another failure stays whole.

    Args:
        kernel: a KernelRef, or the text of one, of a kernel of q, k, v alone, of one layout of FILE_LAYOUTS.
        path, reading: as of `capture.captured`.

    Raises:
        ValueError: the file cannot be read, there is no such kernel, or it does not fail.
    """
    kernel = KernelRef.of(kernel)
    if kernels.emulates(kernels.get(kernel)):
        raise ValueError(f"kernel: got {kernel.key!r}; accepted are kernels of q, k, v alone, such as 'every_step'")
    if kernel.conventions or kernel.layout not in FILE_LAYOUTS:
        raise ValueError(f"kernel: got {kernel.label!r}; accepted are the layouts {', '.join(FILE_LAYOUTS)}")
    fn = kernels.plain(kernel)
    call = _needed(captured(path, reading))
    first = failure(fn, call, device)
    if first.kind == "right":
        limit = "twice Baseline's, or what roundings of P and of the output can come to where that is more"
        size = f"its largest error is {first.ratio:.2f} of what a right kernel may have ({limit})"
        raise ValueError(f"kernel: {kernel.label} does not fail on {path}: {size}")
    _steady(kernel, first, failure(fn, call, device))
    full = cut = Cut.whole(call)
    why = first.cause(call)

    if _square(call):
        row = call.q.shape[2] - 1 if first.at is None else first.at[2]
        one_row = replace(cut, rows=(row,), keys=tuple(range(row + 1)))
        unmasked = replace(call, options={name: x for name, x in call.options.items() if name != "causal"})
        small = one_row.of(unmasked)
        found = failure(fn, small, device)
        if first.stays(found) and why in ("", found.cause(small)):
            call, cut = unmasked, one_row

    def same(cut):
        small = cut.of(call)
        return why in ("", failure(fn, small, device).cause(small))

    def tried(changed):
        return first.stays(failure(fn, changed.of(call), device))

    def shorter(cut, names):
        def stays(items):
            return tried(replace(cut, **dict.fromkeys(names, items)))

        fewer = last_ones if "window" in call.options and {"rows", "keys"} & {*names} else smallest
        return replace(cut, **dict.fromkeys(names, fewer(getattr(cut, names[0]), stays)))

    for _ in range(ROUNDS):
        before = cut
        one_row = _worst_alone(cut, failure(fn, cut.of(call), device), tried)
        cut = one_row if one_row == cut or same(one_row) else cut
        for names in _moved_together(call):
            fewer = shorter(cut, names)
            cut = fewer if fewer == cut or same(fewer) else cut
        if cut == before:
            break
    left = failure(fn, cut.of(call), device)
    _steady(kernel, first, left)
    return Shrunk(kernel, left, cut.of(call), cut, full)


def _steady(kernel, first, again):
    if not first.stays(again):
        raise ValueError(f"kernel: {kernel.label} fails at times and at times not at one call: two runs differ")


def _needed(call):
    """A call of (batch, heads, sequence, head_dim), its options without those that are a kernel's defaults."""
    call = call.in_four_dimensions()
    options = {name: x for name, x in call.options.items() if x is not None}
    if abs(options.get("scale", 0.0) * call.q.shape[-1] ** 0.5 - 1) < 1e-6:
        options.pop("scale")
    return replace(call, options=options)


def _square(call):
    return bool(call.options.get("causal")) and call.q.shape[2] == call.k.shape[2]


def _moved_together(call):
    """The axes that are cut at once, in their order."""
    rows = [("rows", "keys")] if _square(call) else [("rows",), ("keys",)]
    features = [("features", "values")] if call.q.shape[-1] == call.v.shape[-1] else [("features",), ("values",)]
    return [("batch",), ("groups",), ("places",), *rows, *features]


def _worst_alone(cut, failed, tried):
    """A Cut to the batch entry and head where the error is largest, if that will do: sooner than by halves."""
    if failed.at is None:
        return cut
    batch, head, _ = failed.at
    group, place = divmod(head, len(cut.places))
    single = replace(cut, batch=(cut.batch[batch],), groups=(cut.groups[group],), places=(cut.places[place],))
    return single if single != cut and tried(single) else cut


KINDS = {  # of a Failure: what the test's first line says
    "raises": "{kernel} {says} on this call.",
    "nonfinite": "{kernel} returns NaN or infinities on finite inputs.",
    "far": "The error of {kernel} is {ratio:.2f} times what a right kernel may have.",
}


def failure_sentence(shrunk: Shrunk) -> str:
    """What failed, in a sentence."""
    f = shrunk.failure
    return KINDS[f.kind].format(kernel=shrunk.kernel.label, says=f.says, ratio=f.ratio)


def sizes_sentence(shrunk: Shrunk) -> str:
    """What is left of each axis: "keys 512 to 65, head_dim 64 to 1"."""
    return ", ".join(f"{AXES[axis]} {was} to {left}" for axis, (was, left) in shrunk.sizes().items()) or "one of each"


def write(shrunk: Shrunk, path: str | Path, device: str = "cpu") -> None:
    """Write a pytest file that fails as long as the kernel does. It holds the tensors, and needs no fa_lib."""
    kernel = shrunk.kernel
    fn = kernels.get(kernel.bare)
    if not kernel.module:
        kernel = replace(kernel, module=fn.__module__, function=fn.__qualname__)
    where = f"Captured at {place(shrunk.call.about)}. " if "layer" in shrunk.call.about else ""
    about = f"{where}The call is the smallest of that kind which was found: {sizes_sentence(shrunk)}."
    with replacing(path) as temporary:
        temporary.write_text(standalone(kernel, shrunk.call, failure_sentence(shrunk), about, device, OwnNames.of(fn)))
