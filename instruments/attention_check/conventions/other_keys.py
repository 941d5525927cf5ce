"""Up to which key each row of an output saw, where that is not as believed; and a page that was read from elsewhere."""

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_check.conventions.attention import Dialect, Rows, changed, scores, weights
from attention_check.conventions.reading import HIDDEN, CapturedCall, Reader, Unfit
from attention_check.conventions.search import FEATURES, HELD_OUT, TINY, prefix_errors

ENTRIES, HEADS = 16, 3  # that are looked at, at most
SUMS = 2**21  # entries times rows times keys of a head, at most
NEAREST = 3.0  # times the least squared error of a row with any last key: so near, another one is as good
MOST = 4  # spans of an entry: more are no pattern
PAGES = (256, 128, 64, 32, 16)  # keys of a page
FEW = (1, 2, 16)  # entries, heads and rows on which pages are tried
KEYS = 2**15  # of all entries, at most, of which pages are tried
WRONG = 4.0  # times what is rounding: so far off is a page, or a row, that is wrong
VALUES, TILES = (2, 3, 16), 32  # entries, heads and rows on which other values are tried; tiles, at most
TRIES = 2**16  # pages of an entry times those of all entries, at most


@dataclass(frozen=True)
class Span:
    """Rows of an entry that see keys up to another one than believed.

    Attributes:
        entry: of the batch. first, last: of the rows.
        end: the last key that they see; None where each sees `more` keys than believed.
        more: how many more than believed they see; below 0, fewer.
    """

    entry: int
    first: int
    last: int
    end: int | None
    more: int


@dataclass(frozen=True)
class Page:
    """Keys of an entry in whose place others were read.

    Attributes:
        size: how many. entry, first: where they belong. of_entry, of_first: where those come from that were read.
    """

    size: int
    entry: int
    first: int
    of_entry: int
    of_first: int


def last_keys(call: CapturedCall) -> tuple[Span, ...]:
    """The rows that see keys up to another one than believed, if every row is right to rounding with a last key of its
    own, on features that it was not sought in; () where that does not hold, or without a pattern."""
    open_ended = Dialect(causal="none" if call.options.get("causal") else "")
    if call.options.get("mask") is not None:
        open_ended = changed(open_ended, "mask", "shown")
    if call.options.get("window"):
        open_ended = changed(open_ended, "window", (None, None))
    most = ENTRIES, HEADS, max(SUMS // (min(len(call.k), ENTRIES) * call.k.shape[2]), 1)
    try:
        believed, rows = (Reader(call, most).rows(each) for each in (Dialect(), open_ended))
    except Unfit:
        return ()
    seen = believed.bias[:, 0] > HIDDEN  # (entries, rows, n_kv)
    alike = not (believed.bias > HIDDEN).ne(seen[:, None]).any()  # in all heads
    if not alike or not rows.o.isfinite().all() or rows.v.shape[-1] < 2:
        return ()
    n_kv = seen.shape[-1]
    first = seen.int().argmax(-1, keepdim=True)  # (entries, rows, 1)
    last = (n_kv - 1 - seen.flip(-1).int().argmax(-1)).where(seen.any(-1), -1)  # (entries, rows)
    hidden = torch.arange(n_kv) < first
    size = rows.o.square().sum((1, 3))  # (entries, rows)
    halves = [_cumulative(rows, hidden, slice(start, None, 2)) for start in (0, 1)]
    allowed = (HELD_OUT * call.rounding()) ** 2 * torch.maximum(size, size.mean() / n_kv) / 2
    held = halves[1].gather(-1, halves[0].argmin(-1, keepdim=True))[..., 0]
    if not ((held <= 4 * allowed).double().mean() >= 0.98 and held.sum() <= allowed.sum()):
        return ()
    spans = [_spans(int(entry), rows.places[2], halves[0][i], last[i]) for i, entry in enumerate(rows.places[0])]
    return tuple(span for each in spans for span in each) if max(map(len, spans)) <= MOST else ()


def _cumulative(rows: Rows, hidden: Tensor, features: slice) -> Tensor:
    """The squared error of each row over its first 1, 2, ... keys, (entries, rows, n_kv), summed over heads and some
    features."""
    S = scores(rows).nan_to_num(nan=-math.inf).masked_fill(hidden[:, None], -math.inf)
    step = 2 * max(rows.v.shape[-1] // (2 * FEATURES), 1)
    v, o = (x[..., features.start :: step] for x in (rows.v, rows.o))
    scale = rows.v.shape[-1] / (2 * v.shape[-1])  # of the half that they stand for
    m = S.amax(-1, keepdim=True)
    m = torch.maximum(m.where(m > -math.inf, 0.0), rows.sinks)
    errors = prefix_errors(torch.exp(S - m), replace(rows, v=v, o=o), sink=torch.exp(rows.sinks - m))
    return errors.nan_to_num(math.inf) * scale


def _spans(entry, at, errors, last):
    """The Spans of an entry. at: indices of the rows. errors: (rows, n_kv). last: as believed, (rows,)."""
    (n, n_kv), least = errors.shape, errors.amin(-1)
    allowed = NEAREST * torch.maximum(least, least.median())

    def fine(row, key):
        return 0 <= key < n_kv and errors[row, key] <= allowed[row]

    spans, row = [], 0
    while row < n:
        if fine(row, int(last[row])) or last[row] < 0:
            row += 1
            continue
        end = int(errors[row].argmin())
        more = end - int(last[row])
        block = next((i for i in range(row, n) if not fine(i, end) or (int(last[i]) - end) * more >= 0), n)
        shifted = next((i for i in range(row, n) if not fine(i, int(last[i]) + more)), n)
        stop = max(block, shifted, row + 1)
        spans.append(Span(entry, int(at[row]), int(at[stop - 1]), end if block >= shifted else None, more))
        row = stop
    return spans


def moved_values(call: CapturedCall) -> tuple[Page, ...]:
    """Tiles of keys that have the values of other tiles of their entry and head, the same in all sampled rows, if these
    are then right to rounding in features in which no tile was sought; () if not."""
    rows, n_kv = call.rows(Dialect(), VALUES), call.k.shape[2]
    P, tries = weights(rows), [size for size in PAGES if 2 <= -(-n_kv // size) <= TILES]
    if not rows.counted.all() or not rows.v.isfinite().all():
        return ()
    size_of, allowed = rows.o[..., 1::2].norm(), HELD_OUT * call.rounding()
    for size in tries:
        more = -n_kv % size
        p, v = F.pad(P, (0, more)).unflatten(-1, (-1, size)), F.pad(rows.v, (0, 0, 0, more)).unflatten(2, (-1, size))
        O = torch.einsum("bhrts,bhusd->tubhrd", p, v)
        moves = O - O.diagonal().movedim(-1, 0)[:, None]  # (tiles, tiles, entries, heads, rows, d_v)
        left, found = rows.o - P @ rows.v, dict[int, int]()
        while left[..., 1::2].norm() > allowed * size_of and len(found) < MOST:
            errors = (left - moves)[..., ::2].square().sum((2, 3, 4, 5))
            at, of = divmod(int(errors.argmin()), len(errors))
            if at == of or at in found:
                break
            left, found[at] = left - moves[at, of], of
        if found and left[..., 1::2].norm() <= allowed * size_of:
            entry = int(rows.places[0][0])
            return tuple(Page(size, entry, at * size, entry, of * size) for at, of in sorted(found.items()))
    return ()


def foreign_page(call: CapturedCall, entry: int) -> Page | None:
    """The page of keys of an entry in whose place another one was read, of any entry; None where none makes the entry
    right to rounding in features in which it was not sought."""
    batch, n_kv = len(call.k), call.k.shape[2]
    if batch * n_kv > KEYS:
        return None
    try:
        rows = call.rows(Dialect(), places=(torch.tensor([entry]), *call.rows(Dialect(), FEW).places[1:]))
    except Unfit:
        return None
    heads = rows.places[1] * call.k.shape[1] // call.q.shape[1]
    S, seen = scores(rows)[0], rows.bias[0] > -math.inf  # (heads, rows, n_kv)
    shift = S.amax(-1, keepdim=True)
    if not shift.isfinite().all() or (rows.sinks > -math.inf).any() or rows.softcap is not None:
        return None
    k, v = (x[:, heads].double().cpu() for x in (call.k, call.v))  # (batch, heads, n_kv, head_dim)
    others = torch.exp(rows.q @ k.mT * rows.scale - shift)  # (batch, heads, rows, n_kv)
    own, allowed = torch.exp(S - shift), HELD_OUT * call.rounding()
    for size in PAGES:
        if n_kv % size or n_kv == size or batch * (n_kv // size) ** 2 > TRIES:
            continue
        pages = torch.arange(n_kv).split(size)
        due = (own @ rows.v[0]) / own.sum(-1, keepdim=True)  # (heads, rows, d_v)
        off = (due - rows.o[0]).square().sum((0, 2)) / rows.o[0].square().sum((0, 2)).clamp(min=TINY)
        right = off.sqrt() <= WRONG * allowed  # (rows,), as believed
        whole = [i for i, page in enumerate(pages) if seen[..., page].all((0, 2)).any()]
        foreign = others.unflatten(-1, (-1, size))  # (batch, heads, rows, pages, size)
        O_of = torch.einsum("bhrps,bhpsd->bprhd", foreign, v.unflatten(2, (-1, size)))
        l_of = foreign.sum(-1).permute(0, 3, 2, 1)[..., None]  # (batch, pages, rows, heads, 1)
        o = rows.o[0].transpose(0, 1)  # (rows, heads, d_v)
        for i in whole:
            at = seen[..., pages[i]].all((0, 2))  # rows that see all of the page
            rest = own.clone()
            rest[..., pages[i]] = 0
            O, l = (rest @ rows.v[0]).transpose(0, 1), rest.sum(-1).T[..., None]
            error = ((O + O_of) / (l + l_of) - o)[:, :, at]  # (batch, pages, rows, heads, d_v)
            of_entry, of_page = divmod(int(error[..., ::2].square().sum((2, 3, 4)).argmin()), len(pages))
            size_of = o[at][..., 1::2].square().sum()
            left, own_page = (
                (error[place][..., 1::2].square().sum() / size_of).sqrt() for place in ((of_entry, of_page), (entry, i))
            )
            if left <= allowed and own_page > WRONG * allowed and right[~seen[..., pages[i]].any((0, 2))].all():
                return Page(size, entry, i * size, of_entry, of_page * size)
    return None
