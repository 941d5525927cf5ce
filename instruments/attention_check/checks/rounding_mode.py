"""How a kernel's casts round, seen from outside: to nearest, ties to even or away from zero, or by dropping bits.

Each cast is shown values a quarter, half and three quarters of the way between two neighbours of a format. Truncation
is biased: its errors have one sign, and add up over layers (ROCm/aiter#5151)."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pandas as pd
import torch
from torch import Tensor

from attention_check.checks.carry import carried, sums_seen
from attention_check.isolation.calls import Answer, call_kernel
from attention_check.judge.findings import Finding, Severity
from attention_check.measure.capability import kernel_fn
from attention_check.measure.measurements import Measurements
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.numerics.formats import BF16, FP16, FP32, TF32, Format

if TYPE_CHECKING:
    from attention_check.measure.checked_kernel import CheckedKernel

MODES = ("nearest_even", "nearest_away", "nearest", "truncates", "not_seen")  # nearest: its ties were not seen
KEYS = 16  # that O is the mean of: few, so that one tile holds them, and a carry in low precision loses nothing
FEW = 128  # queries, and keys, where P is not asked for
NARROW = (BF16, FP16, TF32)  # that FP32 inputs may be cast to
TINY = 2.0**-30  # 0 in FP16, which has the precision of TF32
HEAD_DIM = 64  # where P is asked for: of so many ties
NEAR = 14  # scores around a tie of P, of neighbouring FP32 values
N = HEAD_DIM * (2 + NEAR)  # queries, one for each tie and score; and keys
EVERY = 16  # of so many keys one has the largest score
HIDDEN = -1000.0  # score of a key whose P is 0


def rounding_mode(
    kernel: KernelRef | str | Callable, fmt: str, head_dim: int = 64, causal: bool = False, device: str = "cpu"
) -> list[dict]:
    """A cell: how the casts of a kernel round.

    Args:
        fmt: of Q, K, V: "BF16" or "FP16", whose casts of the output and of P are asked for; or "FP32", for casts of
            inputs, of V, to a narrower format.
        head_dim: at least 32. P is asked for with 64 alone, whose default scale, 1 / 8, is a power of two.
        causal: whether the kernel masks.

    Returns:
        rows: what ("output", "probs" or "inputs"), into (name of the format of the cast), mode (of MODES), outcome and
        problem (of `call_kernel`). "not_seen" where there is no such cast: P that is not rounded, or is rounded after
        it was divided by l; FP32 inputs that stay FP32.
    """
    fn, form = kernel_fn(kernel, causal), Format.of(fmt)

    def ask(*tensors) -> Answer:
        answer = call_kernel(fn, *(x.to(device, form.dtype) for x in tensors))
        o = None if answer.o is None else answer.o.detach().double().cpu()
        return Answer(o, answer.outcome, answer.problem)

    if form == FP32:
        casts = [_inputs(ask, into, head_dim) for into in NARROW]
    else:
        casts = [_output(ask, form, head_dim), *([_probs(ask, form, causal)] if head_dim == HEAD_DIM else [])]
    return [dict(zip(("what", "into", "mode", "outcome", "problem"), row)) for row in casts]


def _output(ask, fmt, head_dim):
    """Equal P over KEYS keys, the others hidden. Most V are one of two neighbours, so that O lies between them, where
    the share of keys puts it; one V is twice the lower neighbour, and one is small: it moves the sum a little to either
    side of the tie. Where that does not decide, the sum itself is not exact, and nothing is said of ties. In the last
    share one V is a neighbour nearer to zero: only bits that are dropped bring O there. Without a maximum subtracted P
    is not 1, and its rounding alone may take O half an ulp down."""
    low, up = _neighbours(fmt)  # (4,)
    ulp = (up - low).abs().max()
    shares = torch.tensor([KEYS // 4, KEYS // 2, KEYS // 2, KEYS // 2, 3 * KEYS // 4, 0])
    little = torch.tensor([0.0, -1.0, 0.0, 1.0, 0.0, 0.0]) * ulp / 64  # a thousandth of ulp in O
    V = torch.where(torch.arange(KEYS)[:, None, None] < shares[:, None], up, low)  # (KEYS, shares, 4)
    V[-2], V[-1] = 2 * low, little[:, None] * low.sign()
    V[0, -1] -= ulp * low.sign()
    V = V.flatten(1)
    v = torch.nn.functional.pad(V, (0, head_dim - V.shape[1], 0, FEW - KEYS))
    q, k = torch.zeros(2, FEW, head_dim, dtype=torch.float64)
    q[:, 0], k[KEYS:, 0] = 8, HIDDEN
    answer = ask(*(x[None, None] for x in (q, k, v)))
    if answer.o is None:
        return "output", fmt.name, "not_seen", answer.outcome, answer.problem
    o = answer.o[0, 0, -1, : V.shape[1]].reshape(len(shares), 4)
    went_up, on_grid = (o - low).abs() > (o - up).abs(), ((o == low) | (o == up))[:-1].all()
    below, just_below, tie, just_above, above, _ = went_up
    exact = bool((~just_below).all() and just_above.all())
    mode = _named(below, tie if exact else None, above) if on_grid else "not_seen"
    if mode == "truncates" and not (o[-1].abs() < low.abs()).all():
        mode = "not_seen"
    return "output", fmt.name, mode, answer.outcome, answer.problem


def _inputs(ask, into, head_dim):
    """V is the same FP32 value for every key, and O is that value, or what a cast of V made of it."""
    low, up = _neighbours(into)
    shares = torch.tensor([1 / 4, 1 / 2, 3 / 4], dtype=torch.float64)
    values = FP32(low + shares[:, None] * (up - low))  # (shares, 4); exact
    V = torch.nn.functional.pad(values.flatten(), (0, head_dim - values.numel()))
    V[-1] = TINY
    V = V.expand(FEW, head_dim)
    zeros = torch.zeros(1, 1, FEW, head_dim, dtype=torch.float64)
    answer = ask(zeros, zeros, V[None, None])
    mode = "not_seen"
    if answer.o is not None:
        o = answer.o[0, 0, -1, : values.numel()].reshape(values.shape)
        near = torch.minimum((o - low).abs(), (o - up).abs()) < 2**-3 * (up - low).abs()  # its sums round in FP32
        if near.all() and bool(into(V[0, -1:]) == 0) == bool(answer.o[0, 0, -1, -1] == 0):
            mode = _named(*((o - low).abs() > (o - up).abs()))
    return "inputs", into.name, mode, answer.outcome, answer.problem


def _neighbours(fmt):
    """Numbers near 1 and -1 whose last bit is 0, 1, 0, 1; and the next ones further from zero."""
    ulp = 2 * fmt.unit_roundoff
    low = 1 + torch.tensor([0, ulp, 0, ulp], dtype=torch.float64)
    sign = torch.tensor([1, 1, -1, -1])
    return low * sign, (low + ulp) * sign


def _named(below, tie, above):
    """The mode of what rounds away from zero: a quarter above a neighbour, half (of neighbours whose last bit is 0, 1,
    0, 1; None where it could not be seen), and three quarters."""
    if below.any() or not (above.all() or not above.any()):
        return "not_seen"
    if not above.any():
        return "truncates" if tie is None or not tie.any() else "not_seen"
    if tie is None:
        return "nearest"
    odd = torch.tensor([False, True, False, True])
    return "nearest_even" if tie.equal(odd) else "nearest_away" if tie.all() else "nearest"


def _probs(ask, fmt, causal):
    """One key has P near a tie; those with the largest score have P = 1, and the first of them a V that takes the lower
    neighbour away again: O is 0 or the neighbours' distance, over l.

    Around each tie NEAR neighbouring FP32 scores are tried, of which P goes through the tie: an exponential is right to
    an ulp or two of FP32, and seldom to the last. Where ties go to even, P goes up one ulp later above an even
    neighbour than above an odd one. Where they go away from zero, P goes up at the same place.
    """
    u = fmt.unit_roundoff  # the distance of neighbours in [0.5, 1)
    low = 0.5 + 0.5 / HEAD_DIM * torch.arange(HEAD_DIM // 2, dtype=torch.float64)  # of an even last bit, below 0.75
    low = torch.stack([low, low + u], 1).flatten()  # (ties,), even and odd in turn
    wide = torch.stack([(low + u / 4).log(), (low + 3 * u / 4).log()], 1)
    tie = FP32((low + u / 2).log())
    near = tie[:, None] + FP32.ulp(tie)[:, None] * (torch.arange(NEAR) - NEAR // 2)
    S = FP32(torch.cat([wide, near], 1))  # (ties, 2 + NEAR)
    q, k = torch.zeros(2, N, HEAD_DIM, dtype=torch.float64)
    left = S.flatten()
    for i in range(3):  # as a sum of three numbers of the format; 8 times 1 / 8 is 1
        q[:, i] = fmt(left * 8)
        left = left - q[:, i] / 8
    q[:, 3], k[:, 3], k[::EVERY, 3], k[1, :4] = 8, HIDDEN, 0, torch.tensor([1.0, 1.0, 1.0, 0.0])
    v = torch.zeros(N, HEAD_DIM, dtype=torch.float64)
    v[0], v[1] = -low, 1
    answer = ask(*(x[None, None] for x in (q, k, v)))
    if answer.o is None:
        return "probs", fmt.name, "not_seen", answer.outcome, answer.problem
    P = S.exp()
    largest = torch.arange(N) // EVERY + 1 if causal else torch.full((N,), N // EVERY)  # keys that a row sees
    o = answer.o[0, 0].reshape(HEAD_DIM, -1, HEAD_DIM)[torch.arange(HEAD_DIM), :, torch.arange(HEAD_DIM)]
    steps = o * (largest.reshape(P.shape) + P) / u  # 0 or 1, where P is rounded to fmt
    steps[0, 0] = 0 if causal else steps[0, 0]  # this row does not see the key
    mode = "not_seen"
    if bool(((steps.abs() < 1 / 8) | ((steps - 1).abs() < 1 / 8)).all()):
        up = steps > 0.5
        mode = _named(up[:, 0], _ties(up[:, 2:], (P[:, 2:] - low[:, None] - u / 2) * 2**24), up[:, 1])
    return "probs", fmt.name, mode, answer.outcome, answer.problem


def _ties(up: Tensor, at: Tensor) -> Tensor | None:
    """What `_named` wants to know of ties, from whether P goes up (ties, NEAR) at distances from the tie, in ulp of
    FP32; None where P does not go up within them, at a fourth of the ties or more."""
    seen = ~up[:, 0] & up[:, -1]
    if not seen.double().mean() > 0.75:
        return None
    first = up.double().argmax(1, keepdim=True)
    turn = (at.gather(1, first) + at.gather(1, (first - 1).clamp(min=0)))[:, 0] / 2
    even, odd = (turn[i::2][seen[i::2]].mean() for i in (0, 1))
    later = bool(even - odd > 0.5)  # of an ulp: 1 where ties go to even, else 0
    return torch.tensor([not later, True, not later, True])


def measured(checked: "CheckedKernel", found: Measurements) -> pd.DataFrame:
    """See how its casts round, in the formats that it is judged in and in FP32: rows of `rounding_mode`."""
    formats = dict.fromkeys([*checked.judged, *(fmt for fmt in checked.way.formats if fmt == "FP32")])
    settings = [dict(fmt=fmt) for fmt in formats]
    return checked.table(rounding_mode, settings, causal=checked.able.causal, **checked.call)


def judged(found: Measurements) -> Iterator[Finding]:
    """How casts round, a finding for each cast and mode: truncation of P or of the output fails. A sum carried in low
    precision rounds as the output does, and says nothing of it."""
    rounding, (sums, _) = found.rounding, sums_seen(found)
    if not len(rounding):
        return
    low = len(sums) and any(one["low"] for one in carried(sums))
    seen = rounding[(rounding["mode"] != "not_seen") & ((rounding.what != "output") | (not low))]
    for (what, mode), rows in seen.groupby(["what", "mode"], sort=False):
        fails = mode == "truncates" and what != "inputs"
        where = dict(what=what, mode=mode, into=[*dict.fromkeys(rows.into)])
        yield Finding("rounding_mode", Severity.FAILS if fails else Severity.REPORTED, where)
