"""Relations of masks: hidden keys change nothing, whatever hides them; edges of windows; decoding equals prefill."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attention_check.checks.relations.subject import Found, KernelUnderTest, cases, difference, not_asked
from attention_check.checks.relations.values import weights
from attention_check.isolation.calls import KernelError
from attention_check.isolation.worker import Outcome
from fa_lib.numerics.formats import FP16, FP32

HIDDEN = 40  # last keys that a mask hides: a part of most tiles
CHANGES = {  # case -> what is changed, and how many times larger; None is other values of the same size
    "other V": ("v", None), "V 8192 times as large": ("v", 8192), "other K": ("k", None),
    "K 256 times as large": ("k", 256),
}  # fmt: skip
ADDED = {"boolean mask": False, "mask of -inf": True}  # case -> whether the mask is added to the scores
FINITE = "mask of -1e4, which hides nothing"
LOW = -(2.0**14)  # a score: below a mask of -1e4, above one of FP16's smallest number, -65504
UNUSABLE = {  # case -> what holds what, and whether a causal mask hides it
    "NaN in K": ("k", math.nan, False), "NaN in V": ("v", math.nan, False), "infinite K": ("k", math.inf, False),
    "infinite V": ("v", math.inf, False), "causal, NaN in later K": ("k", math.nan, True),
    "causal, NaN in later V": ("v", math.nan, True),
}  # fmt: skip
WIDE = {"as long as the keys": -1, "longer than the keys": 50}  # case -> window, beyond n


@dataclass(frozen=True)
class Edge:
    """A key at the edge of a row's window: the last that it shows, or the first that it hides."""

    hidden: bool
    right: bool = False
    causal: bool = False
    left: int | None = None  # the window's size beyond n, and the last row; None is 16 keys and a row in the middle


EDGES = {
    "16 keys, first shown": Edge(False), "16 keys, hidden before": Edge(True),
    "16 keys, last shown": Edge(False, right=True), "16 keys, hidden behind": Edge(True, right=True),
    "causal, first shown": Edge(False, causal=True), "causal, hidden before": Edge(True, causal=True),
    "one less than all, first shown": Edge(False, left=-2), "one less than all, hidden before": Edge(True, left=-2),
}  # fmt: skip
MORE_QUERIES = "causal, more queries than keys"


@cases(*CHANGES)
def causality(subject: KernelUnderTest, case: str) -> Found:
    """Under a causal mask an output knows keys up to its own, so that other later K and V leave its bits as they are:
    also where they are large, which shows in a scale that is shared by a block of keys. It is asked with an early
    change, in the first block of all, and with one in the middle, off the edges of tiles; and with one of the last key,
    of the last 2 and 9 queries alone, as drafts are verified. The largest difference is told. Limit: 2 `allowed`."""
    q, k, v = subject.draw()
    o, limit, found = subject(q, k, v, causal=True), subject.apart(q, k, v, causal=True), []
    for past in (23, subject.n // 2 + 7):
        other = subject(q, *_changed(k, v, past, case), causal=True)
        found.append(difference(other[:, :, :past], o[:, :, :past], limit))
    changed = _changed(k, v, subject.n - 1, case)
    for last in () if subject.able.top_left else (q[:, :, -2:].contiguous(), q[:, :, -9:].contiguous()):
        try:
            o, other = (subject(last, *both, causal=True)[:, :, :-1] for both in ((k, v), changed))
        except KernelError as error:
            if error.outcome != Outcome.REFUSED:
                raise
        else:
            found.append(difference(other, o, limit))
    return max(found, key=lambda each: each.number)


@cases(*CHANGES)
def masked_values(subject: KernelUnderTest, case: str) -> Found:
    """Keys that a mask hides from every row, boolean and of -inf, may hold any finite value; the larger difference is
    told. Limit: 2 `allowed`."""
    q, k, v = subject.draw()
    changed, found, refused = _changed(k, v, subject.n - HIDDEN, case), [], None
    for added in ADDED.values():
        mask = visible(subject, added)
        try:
            o, other = (subject(q, *both, mask=mask) for both in ((k, v), changed))
        except KernelError as error:
            if error.outcome == Outcome.MALFORMED:
                raise
            refused = error
        else:
            found.append(difference(other, o, subject.apart(q, k, v, mask=mask)))
    if not found:
        raise refused or not_asked("takes no mask")
    return max(found, key=lambda each: each.number)


@cases(*ADDED, "causal", FINITE)
def low_scores(subject: KernelUnderTest, case: str) -> Found:
    """Rows whose keys all have one score weigh them alike, whatever it is: as low as LOW to 2 LOW, or 0. Hidden keys,
    with scores of 0 and other values, have no weight in either: a mask of -1e4 gives them all of it. Where such a mask
    is what was asked for, that is right, and the output is compared with the golden value. Of a causal mask the rows
    before the hidden keys are compared. In FP16 a scale of 1 is asked for, so that no product overflows.

    Limit: both answers are within the rule of the first call, 2 `allowed`; and where parts of the keys are merged by
    log-sum-exps in FP32, as large as the scores S and off by up to 2 u abs(S), in powers of 2, weights of two parts are
    off by 4 u abs(S), and outputs by 8 u abs(S) times the largest abs(V)."""
    causal, scale = case == "causal", 1.0 if subject.fmt == FP16 else subject.head_dim**-0.5
    q, k, v = subject.draw()
    first = subject.n // 2 if causal else subject.n - HIDDEN
    if first <= 0:
        raise not_asked(f"it is asked with {subject.n} keys, of which {HIDDEN} would be hidden")
    options: dict[str, Any] = dict(causal=True) if causal else dict(mask=visible(subject, ADDED.get(case, True)))
    options |= dict(mask=options["mask"].nan_to_num(neginf=-1e4)) if case == FINITE else {}
    options |= dict(scale=scale) if subject.fmt == FP16 else {}
    q, k = torch.zeros_like(q), torch.zeros_like(k)
    product = 2.0 ** math.ceil(math.log2(-LOW / scale))
    q[..., 0], k[..., :first, 0] = 512, product / -512
    merged = 8 * FP32.unit_roundoff * product * scale * v[..., :first, :].abs().max().item()
    v[..., first:, :] += 4
    if case == FINITE:
        return difference(subject(q, k, v, **options), subject.golden(q, k, v, **options),
                          subject.allowed(q, k, v, **options) + merged)  # fmt: skip
    rows = slice(first if causal else None)
    o, other = (subject(x, k, v, **options)[:, :, rows] for x in (q, torch.zeros_like(q)))
    return difference(o, other, 2 * subject.allowed(q, k, v, **options) + merged)


@cases(*UNUSABLE)
def masked_nan(subject: KernelUnderTest, case: str) -> Found:
    """Keys that a mask hides may hold NaN or infinity, as unused places of a cache do. Limit: 2 `allowed`. (IEEE's
    0 * NaN is NaN, so that many kernels give NaN here: it is told.)"""
    q, k, v = subject.draw()
    name, value, causal = UNUSABLE[case]
    options = dict(causal=True) if causal else dict(mask=visible(subject))
    bad = dict(k=k.clone(), v=v.clone())
    bad[name][:, :, -HIDDEN:] = value
    o, other = subject(q, k, v, **options), subject.anything(q, bad["k"], bad["v"], **options)
    rows = slice(0, -HIDDEN) if causal else slice(None)
    return difference(other[:, :, rows], o[:, :, rows], subject.apart(q, k, v, **options))


@cases(*ADDED, MORE_QUERIES)
def hidden_row(subject: KernelUnderTest, case: str) -> Found:
    """A row that sees no key is 0: no weight is left, so no value. 160 of 256 rows see none, whole tiles, which a
    kernel may skip and leave unwritten. Two other answers are conventions: NaN, 0 / 0, and the mean of V, of scores
    that are all the same finite number (limit: 2 `allowed`)."""
    q, k, v, blind, options = with_hidden_rows(subject, case, subject.n * 5 // 8)
    o = subject.anything(q, k, v, **options)
    if not o[:, :, ~blind].isfinite().all():
        problem = "returns NaN or infinite values in rows that see keys, beside rows that see none"
        raise KernelError(Outcome.MALFORMED, problem)
    rows = o[:, :, blind]
    apart = difference(rows, 0.0)
    if rows.isnan().all():
        return replace(apart, convention="NaN")
    mean = v.double().mean(2, keepdim=True)
    if difference(rows, mean).number <= 2 * subject.allowed(torch.zeros_like(q), k, v):
        return replace(apart, convention="the mean of V")
    return apart


def with_hidden_rows(subject: KernelUnderTest, case: str, first: int) -> tuple[Tensor, Tensor, Tensor, Tensor, dict]:
    """q, k and v of a call whose `first` rows see no key, a boolean (rows,) that is True there, and the call's options,
    by a case of `hidden_row`."""
    causal = case == MORE_QUERIES
    if causal and subject.able.top_left:
        raise not_asked("masks causally, aligned top-left: every row sees a key")
    q, k, v = subject.draw(n_q=subject.n + first if causal else subject.n)
    blind = torch.zeros(q.shape[-2], dtype=torch.bool, device=q.device)
    blind[:first] = True
    if causal:
        return q, k, v, blind, dict(causal=True)
    mask = _written(~blind[:, None].expand(-1, subject.n), ADDED[case], q.dtype)
    return q, k, v, blind, dict(mask=mask)


@cases(*WIDE, "one key")
def window(subject: KernelUnderTest, case: str) -> Found:
    """window=(left, right) hides what lies further than that from a row's own key: of n - 1 keys to either side it
    hides nothing (limit: 2 `allowed`); of none it leaves the row's own value, as of one key (`weights`)."""
    q, k, v = subject.draw()
    if case in WIDE:
        wide = subject.n + WIDE[case]
        return difference(subject(q, k, v, window=(wide, wide)), subject(q, k, v), subject.apart(q, k, v))
    v = subject.rounded(1 + v.double().abs())
    return difference(subject(q, k, v, window=(0, 0)).double() / v.double(), 1.0, weights(subject, 1))


@cases(*EDGES)
def window_edges(subject: KernelUnderTest, case: str) -> Found:
    """One key is made so loud for one row, K = 16 Q of that row, that its score, 2 |Q|^2 at head_dim 64, leaves others
    no weight that any format holds. As the last key that the window shows, it gives the row its value (`weights` of one
    key); as the first that it hides, it leaves the row's bits as they are (limit: 2 `allowed`)."""
    edge = EDGES[case]
    if edge.right and subject.able.causal:
        raise not_asked("masks causally: keys behind a row are hidden anyway")
    q, k, v = subject.draw()
    v = subject.rounded(1 + v.double().abs())
    left, row = (16, subject.n // 2) if edge.left is None else (subject.n + edge.left, subject.n - 1)
    options = dict(causal=True, window=(left, 0)) if edge.causal else dict(window=(left, left))
    key = row + (left + edge.hidden if edge.right else -left - edge.hidden)
    loud = k.clone()
    loud[:, :, key] = 16 * q[:, :, row]
    o = subject(q, loud, v, **options)[:, :, row]
    if not edge.hidden:
        return difference(o.double() / v[:, :, key].double(), 1.0, weights(subject, 1))
    return difference(o, subject(q, k, v, **options)[:, :, row], subject.apart(q, k, v, **options))


@cases("token by token", "chunks of 64", "two chunks")
def prefill_decode(subject: KernelUnderTest, case: str) -> Found:
    """Causally, a row of the whole is the last row of the keys up to its own, and so are chunks of rows (aligned
    bottom-right). Both answers are within the rule of the whole call, which has every row: 2 `allowed`."""
    if subject.able.top_left and (subject.able.causal or case != "token by token"):
        raise not_asked("masks causally, aligned top-left: fewer queries are other queries")
    q, k, v = subject.draw()
    n = subject.n
    prefilled, limit = subject(q, k, v, causal=True), subject.apart(q, k, v, causal=True)
    if case == "token by token":
        rows = [(i, i + 1) for i in sorted({0, 1, 15, 16, 63, 64, n // 2 - 1, n // 2, n - 2, n - 1} & set(range(n)))]
    else:
        step = 64 if case == "chunks of 64" else n // 2 + 7
        rows = [(i, min(i + step, n)) for i in range(0, n, step)]
    options = {} if case == "token by token" else dict(causal=True)
    parts = [subject(*(x.contiguous() for x in (q[:, :, i:j], k[:, :, :j], v[:, :, :j])), **options) for i, j in rows]
    return difference(torch.cat(parts, 2), torch.cat([prefilled[:, :, i:j] for i, j in rows], 2), limit)


def visible(subject: KernelUnderTest, added: bool = False) -> Tensor:
    """A mask (n, n) that hides the last keys from every row: boolean, or of -inf to be added."""
    mask = torch.ones(subject.n, subject.n, dtype=torch.bool, device=subject.device)
    mask[:, -HIDDEN:] = False
    return _written(mask, added, subject.fmt.dtype)


def _written(mask, added, dtype):
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -math.inf) if added else mask


def _changed(k, v, first, case):
    """K and V, one of them with other values from key `first` on: other features, or so many times larger."""
    name, times = CHANGES[case]
    both = dict(k=k.clone(), v=v.clone())
    x = both[name][:, :, first:]
    both[name][:, :, first:] = x.roll(1, -1) if times is None else x * times
    return both["k"], both["v"]
