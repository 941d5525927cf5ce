"""Whether a kernel's casts round to nearest or drop bits, seen from outside: of P, and of the output.

Each cast is shown values a quarter and three quarters of the way between two neighbours of a format. Truncation is
biased: its errors have one sign, and add up over layers (ROCm/aiter#5151)."""

from collections.abc import Callable, Iterator

import pandas as pd
import torch

from attention_check.checks.carry import carried, sums_seen
from attention_check.isolation.calls import Answer, call_kernel
from attention_check.judge.findings import Finding, Severity
from attention_check.measure.capability import kernel_fn
from attention_check.measure.checked_kernel import CheckedKernel
from attention_check.measure.measurements import Measurements
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.numerics.formats import FP32, Format

KEYS = 16  # that O is the mean of: few, so that one tile holds them, and a carry in low precision loses nothing
ROWS, N = 256, 128  # queries, and keys, where the output is asked for, and P: a kernel may remember one call's K
HEAD_DIM = 64  # where P is asked for: between so many pairs of neighbours
EVERY = 16  # of so many keys one has the largest score
HIDDEN = -1000.0  # score of a key whose P is 0


def rounding_mode(
    kernel: KernelRef | str | Callable, fmt: str, head_dim: int = 64, causal: bool = False, device: str = "cpu"
) -> list[dict]:
    """A cell: how the casts of a kernel round.

    Args:
        fmt: of Q, K, V: "BF16" or "FP16".
        head_dim: at least 16. P is asked for with 64 alone, whose default scale, 1 / 8, is a power of two.
        causal: whether the kernel masks.

    Returns:
        rows of `rounding`, whose columns data/columns.csv explains. mode is "not_seen" where there is no such cast: P
        that is not rounded, or is rounded after it was divided by l.
    """
    fn, form = kernel_fn(kernel, causal), Format.of(fmt)

    def ask(*tensors) -> Answer:
        answer = call_kernel(fn, *(x[None, None].to(device, form.dtype) for x in tensors))
        o = None if answer.o is None else answer.o.detach().double().cpu()[0, 0]
        return Answer(o, answer.outcome, answer.problem)

    casts = {"output": _output(ask, form, head_dim)} | ({"probs": _probs(ask, form, causal)} if head_dim == 64 else {})
    return [
        dict(what=what, into=form.name, mode=mode, outcome=answer.outcome, problem=answer.problem)
        for what, (mode, answer) in casts.items()
    ]


def _output(ask, fmt, head_dim):
    """Equal P over KEYS keys, the others hidden. V are one of two neighbours, so that O lies between them, where the
    share of keys puts it. In the last share one V is a neighbour nearer to zero: only bits that are dropped bring O
    there. Without a maximum subtracted P is not 1, and its rounding alone may take O half an ulp down."""
    ulp = 2 * fmt.unit_roundoff
    sign = torch.tensor([1, 1, -1, -1])
    low = sign * (1 + torch.tensor([0, ulp, 0, ulp], dtype=torch.float64))  # (4,): of a last bit that is 0, 1, 0, 1
    up = low + sign * ulp
    shares = torch.tensor([KEYS // 4, 3 * KEYS // 4, 0])
    V = torch.where(torch.arange(KEYS)[:, None, None] < shares[:, None], up, low)  # (KEYS, shares, 4)
    V[0, -1] -= ulp * sign
    v = torch.nn.functional.pad(V.flatten(1), (0, head_dim - 3 * 4, 0, ROWS - KEYS))
    q, k = torch.zeros(2, ROWS, head_dim, dtype=torch.float64)
    q[:, 0], k[KEYS:, 0] = 8, HIDDEN
    answer = ask(q, k, v)
    if answer.o is None:
        return "not_seen", answer
    below, above, last = answer.o[-1, : 3 * 4].reshape(3, 4)
    on_grid = all(((x == low) | (x == up)).all() for x in (below, above))
    mode = _named(below == up, above == up) if on_grid else "not_seen"
    drops = bool((last.abs() < low.abs()).all())
    return "not_seen" if mode == "truncates" and not drops else mode, answer


def _named(below, above):
    """The mode by whether numbers went away from zero: those a quarter above a neighbour, and three quarters."""
    if below.any() or above.any() != above.all():
        return "not_seen"
    return "nearest" if above.all() else "truncates"


def _probs(ask, fmt, causal):
    """One key has P between two neighbours; those with the largest score have P = 1, and the first of them a V that
    takes the lower neighbour away again: O is 0 or the neighbours' distance, over l."""
    u = fmt.unit_roundoff  # the distance of neighbours in [0.5, 1)
    low = 0.5 + 0.5 / HEAD_DIM * torch.arange(HEAD_DIM // 2, dtype=torch.float64)  # of an even last bit, below 0.75
    low = torch.stack([low, low + u], 1).flatten()  # (HEAD_DIM,), even and odd in turn
    S = FP32(torch.stack([(low + u / 4).log(), (low + 3 * u / 4).log()], 1))  # (HEAD_DIM, 2)
    q, k = torch.zeros(2, N, HEAD_DIM, dtype=torch.float64)
    left = S.flatten()
    for i in range(3):  # as a sum of three numbers of the format; 8 times 1 / 8 is 1
        q[:, i] = fmt(left * 8)
        left = left - q[:, i] / 8
    q[:, 3], k[:, 3], k[::EVERY, 3], k[1, :4] = 8, HIDDEN, 0, torch.tensor([1.0, 1.0, 1.0, 0.0])
    v = torch.zeros(N, HEAD_DIM, dtype=torch.float64)
    v[0], v[1] = -low, 1
    answer = ask(q, k, v)
    if answer.o is None:
        return "not_seen", answer
    largest = torch.arange(N) // EVERY + 1 if causal else torch.full((N,), N // EVERY)  # keys that a row sees
    o = answer.o.reshape(HEAD_DIM, 2, HEAD_DIM)[torch.arange(HEAD_DIM), :, torch.arange(HEAD_DIM)]
    steps = o * (largest.reshape(S.shape) + S.exp()) / u  # 0 or 1, where P is rounded to fmt
    steps[0, 0] = 0 if causal else steps[0, 0]  # this row does not see the key
    rounded = bool(((steps.abs() < 1 / 8) | ((steps - 1).abs() < 1 / 8)).all())
    return _named(*(steps > 0.5).T) if rounded else "not_seen", answer


def measured(checked: CheckedKernel, found: Measurements) -> pd.DataFrame:
    """See how its casts round, in the 16-bit formats that it is judged in: rows of `rounding_mode`."""
    settings = [dict(fmt=fmt) for fmt in checked.judged if fmt != "FP32"]
    return checked.table(rounding_mode, settings, causal=checked.way.able.causal, **checked.call)


def judged(found: Measurements) -> Iterator[Finding]:
    """How casts round, a finding for each cast and mode: truncation fails. A sum carried in low precision rounds as the
    output does, and says nothing of it."""
    rounding, (sums, _) = found.rounding, sums_seen(found)
    if not len(rounding):
        return
    low = len(sums) and any(one["low"] for one in carried(sums))
    seen = rounding[(rounding["mode"] != "not_seen") & ((rounding.what != "output") | (not low))]
    for (what, mode), rows in seen.groupby(["what", "mode"], sort=False):
        where = dict(what=what, mode=mode, into=[*dict.fromkeys(rows.into)])
        yield Finding("rounding_mode", Severity.FAILS if mode == "truncates" else Severity.REPORTED, where)
