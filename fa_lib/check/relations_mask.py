"""Relations of masks: hidden keys change nothing, whatever hides them; edges of windows; decoding equals prefill."""

import math

import torch
from torch import Tensor

from fa_lib.check.attempt import KernelError
from fa_lib.check.relations_value import weights
from fa_lib.check.subject import Found, Subject, apart, cases, unasked

HIDDEN = 40  # last keys that a mask hides: a part of most tiles


@cases("other V", "V 256 times as large", "other K", "K 256 times as large")
def causality(subject: Subject, case: str) -> Found:
    """Under a causal mask an output knows keys up to its own, so that other later K and V leave its bits as they are:
    also where they are large, which shows in a scale that is shared by a block of keys. Limit: 2 `allowed`."""
    q, k, v = subject.draw()
    past = subject.n // 2 + 7  # not at a tile's edge
    changed = _changed(k, v, slice(past, None), case)
    o, other = (subject(q, *both, causal=True)[:, :, :past] for both in ((k, v), changed))
    return apart(other, o, 2 * subject.allowed(q, k, v, causal=True))


@cases("other V", "V 256 times as large", "other K", "K 256 times as large", "other K, mask of -inf")
def masked_values(subject: Subject, case: str) -> Found:
    """Keys that a mask hides from every row may hold any finite value. Limit: 2 `allowed`."""
    q, k, v = subject.draw()
    mask = visible(subject, minus_infinity="inf" in case)
    changed = _changed(k, v, slice(-HIDDEN, None), case.split(",")[0])
    o, other = (subject(q, *both, mask=mask) for both in ((k, v), changed))
    return apart(other, o, 2 * subject.allowed(q, k, v, mask=mask))


@cases("NaN in K", "NaN in V", "infinite K", "infinite V", "causal, NaN in later K", "causal, NaN in later V")
def masked_nan(subject: Subject, case: str) -> Found:
    """Keys that a mask hides may hold NaN or infinity, as unused places of a cache do. Limit: 2 `allowed`. (IEEE's
    0 * NaN is NaN, so that many kernels give NaN here: it is told.)"""
    q, k, v = subject.draw()
    causal = case.startswith("causal")
    options = dict(causal=True) if causal else dict(mask=visible(subject))
    rows = slice(0, -HIDDEN) if causal else slice(None)
    bad = {"K": k.clone(), "V": v.clone()}
    bad[case[-1]][:, :, -HIDDEN:] = math.nan if "NaN" in case else math.inf
    o, other = subject(q, k, v, **options), subject.anything(q, bad["K"], bad["V"], **options)
    return apart(other[:, :, rows], o[:, :, rows], 2 * subject.allowed(q, k, v, **options))


@cases("boolean mask", "mask of -inf", "causal, more queries than keys")
def hidden_row(subject: Subject, case: str) -> Found:
    """A row that sees no key is 0: no weight is left, so no value. NaN, 0 / 0, is told."""
    causal = case.startswith("causal")
    if causal and subject.able.top_left:
        raise unasked("masks causally, aligned top-left: every row sees a key")
    q, k, v = subject.draw(n_q=subject.n + HIDDEN if causal else subject.n)
    blind = torch.zeros(q.shape[-2], dtype=torch.bool, device=q.device)
    blind[:HIDDEN] = True
    mask = _written(~blind[:, None].expand(-1, subject.n), "inf" in case, q.dtype)
    o = subject.anything(q, k, v, **(dict(causal=True) if causal else dict(mask=mask)))
    if not o[:, :, ~blind].isfinite().all():
        raise KernelError("broken", "returns NaN or infinite values in rows that see keys, beside rows that see none")
    return apart(o[:, :, blind], 0.0)


@cases("as long as the keys", "longer than the keys", "one key", "one key less than all", "16 keys", "causal, 16 keys")
def window(subject: Subject, case: str) -> Found:
    """window=(left, right) hides what lies further than that from a row's own key. Of n - 1 keys to either side it
    hides nothing (limit: 2 `allowed`); of none it leaves the row's own value, as of one key (`weights`); at other edges
    the answer is within the rule of the golden value (`allowed`), V at both ends so large that one key shows."""
    q, k, v = subject.draw()
    n = subject.n
    if case in ("as long as the keys", "longer than the keys"):
        wide = n - 1 if case == "as long as the keys" else n + 50
        return apart(subject(q, k, v, window=(wide, wide)), subject(q, k, v), 2 * subject.allowed(q, k, v))
    if case == "one key":
        v = subject.rounded(1 + v.double().abs())
        o = subject(q, k, v, window=(0, 0))
        return apart(o.double() / v.double(), 1.0, weights(subject, 1))
    v[:, :, 0] *= 64
    v[:, :, -1] *= 64
    options = dict(window=(n - 2, n - 2) if case.startswith("one") else (16, 16))
    options = dict(window=(16, 0), causal=True) if case.startswith("causal") else options
    return apart(subject(q, k, v, **options), subject.golden(q, k, v, **options), subject.allowed(q, k, v, **options))


@cases("token by token", "chunks of 64", "two chunks")
def prefill_decode(subject: Subject, case: str) -> Found:
    """Causally, a row of the whole is the last row of the keys up to its own, and so are chunks of rows (aligned
    bottom-right). Both answers are within the rule of the whole call, which has every row: 2 `allowed`."""
    if subject.able.top_left and (subject.able.causal or case != "token by token"):
        raise unasked("masks causally, aligned top-left: fewer queries are other queries")
    q, k, v = subject.draw()
    n = subject.n
    whole, limit = subject(q, k, v, causal=True), 2 * subject.allowed(q, k, v, causal=True)
    if case == "token by token":
        rows = [(i, i + 1) for i in sorted({0, 1, 15, 16, 63, 64, n // 2 - 1, n // 2, n - 2, n - 1} & set(range(n)))]
    else:
        step = 64 if case == "chunks of 64" else n // 2 + 7
        rows = [(i, min(i + step, n)) for i in range(0, n, step)]
    options = {} if case == "token by token" else dict(causal=True)
    parts = [subject(*(x.contiguous() for x in (q[:, :, i:j], k[:, :, :j], v[:, :, :j])), **options) for i, j in rows]
    return apart(torch.cat(parts, 2), torch.cat([whole[:, :, i:j] for i, j in rows], 2), limit)


def visible(subject: Subject, minus_infinity: bool = False) -> Tensor:
    """A mask (n, n) that hides the last keys from every row, boolean or added."""
    mask = torch.ones(subject.n, subject.n, dtype=torch.bool, device=subject.device)
    mask[:, -HIDDEN:] = False
    return _written(mask, minus_infinity, subject.fmt.dtype)


def _written(mask, minus_infinity, dtype):
    return (
        torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, -math.inf)
        if minus_infinity
        else mask
    )


def _changed(k, v, where, case):
    """K and V with other values there: those of the keys before, or larger ones."""
    k, v = k.clone(), v.clone()
    x = v if "V" in case else k
    x[:, :, where] = x[:, :, where] * 256 if "256" in case else x[:, :, where].roll(1, -1)
    return k, v
