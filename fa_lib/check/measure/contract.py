"""What somebody's kernel can do: formats, shapes, options and gradients, each asked for once."""

import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pandas as pd
import torch

from fa_lib import kernels
from fa_lib.check.isolation.calls import KernelError, call_kernel, kernel_errors, with_kernel_errors
from fa_lib.check.isolation.worker import Outcome
from fa_lib.check.measure import wrong_answers
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.layouts import first_output
from fa_lib.kernels.options import finite
from fa_lib.kernels.variants import Call, by_key
from fa_lib.numerics.formats import BF16, FP16, FP32, FP64


@dataclass(frozen=True)
class Capabilities:
    """What `contract` found that decides how a kernel is called: it has gradients; it always masks causally; its causal
    mask is aligned top-left where queries are fewer than keys."""

    gradients: bool = True
    causal: bool = False
    top_left: bool = False


ALL_CAPABILITIES = Capabilities()  # where nothing else is known


def _alibi(heads, n):
    """-slope |i - j|, slopes 1/4, 1/16 ... as of arXiv 2108.12409, here for later keys too: there twice as steep, so
    that a transposed one is another. Whole numbers times a power of two: 16 bits hold them. (heads, n, n)."""
    slopes = torch.tensor([4.0**-h for h in range(1, heads + 1)])[:, None, None]
    later = torch.arange(n) - torch.arange(n)[:, None]  # of a query's key: how many keys behind its own
    return -slopes * torch.where(later > 0, 2 * later, -later)


def _boolean(n):
    """A mask (n, n) that hides two of three keys behind a row's own and one of three before it, and all beyond 20."""
    behind = torch.arange(n) - torch.arange(n)[:, None]  # of a query's key: how many keys behind its own
    return torch.where(behind > 0, behind % 3 == 1, behind % 3 != 1) & (behind <= 20)


def _last_row(option):
    return {name: x[..., -1:, :] if name == "mask" else x for name, x in option.items()}


def _hidden_first(added):
    """A mask (64, 1300) that hides the first 1,100 keys from every second row: whole tiles of up to 1,024 keys."""
    visible = torch.ones(64, 1300, dtype=torch.bool)
    visible[::2, :1100] = False
    return torch.zeros(64, 1300).masked_fill(~visible, -math.inf) if added else visible


HEAD_DIM = "head_dim "  # and which, of a call that asks for another
GRADIENTS_AT = f"gradients at {HEAD_DIM}"
FORMATS = (BF16, FP16, FP32, FP64)  # in the order in which they are asked for
FIRST = Call("N = 256", 256, 256)  # asked for in every format
CAUSAL, BOOLEAN, ADDED, WINDOW = "causal", "a boolean mask", "an added mask, ALiBi", "a window of 64 and 32 keys"
ONE_QUERY, CAUSAL_FEWER = "one query, as in decoding", "causal, fewer queries than keys"
CAUSAL_ONE, SCALE, GQA = "causal, one query", "another scale", "key heads shared, GQA 4 to 2"
OPTIONS = {  # what is asked beside Q, K and V -> the option
    CAUSAL: dict(causal=True), BOOLEAN: dict(mask=_boolean(256)),
    ADDED: dict(mask=_alibi(2, 256)), WINDOW: dict(window=(64, 32)), "softcap": dict(softcap=2.0),
    "sinks": dict(sinks=torch.tensor([6.0, 4.0])),
}  # fmt: skip
CALLS = by_key([  # asked for in the first format that it has
    Call("a length off the tiles, N = 203", 203, 203),
    Call("a length off large tiles, N = 1500", 1500, 1500, 1, 1),
    *(Call(f"{HEAD_DIM}{d}", 256, 256, head_dim=d) for d in (32, 40, 72, 80, 96, 104, 128, 256)),
    Call("V of another head_dim, 192 and 128", 256, 256, head_dim=192, v_dim=128),
    Call("V of another head_dim, 576 and 512, one key head", 64, 256, 4, 1, head_dim=576, v_dim=512),
    Call(SCALE, 256, 256, options=dict(scale=0.05)),
    Call("fewer queries than keys", 64, 256),
    Call(CAUSAL_FEWER, 64, 256, options=dict(causal=True)),
    Call(ONE_QUERY, 1, 256),
    Call(CAUSAL_ONE, 1, 256, options=dict(causal=True)),
    Call(GQA, 256, 256, heads=4),
    *(Call(key, 256, 256, options=option) for key, option in OPTIONS.items()),
])  # fmt: skip
MORE = {  # asked for where the kernel has all that is named first -> the call
    (BOOLEAN,): Call("a boolean mask that hides 1,100 first keys", 64, 1300, options=dict(mask=_hidden_first(False))),
    (ADDED,): Call("a mask of -inf that hides 1,100 first keys", 64, 1300, options=dict(mask=_hidden_first(True))),
    (WINDOW,): Call("a window that hides 1,170 first keys", 64, 1300, options=OPTIONS[WINDOW]),
    (SCALE, "softcap"): Call("another scale, and softcap", 256, 256, options=dict(scale=0.05, softcap=2.0)),
    (GQA, ONE_QUERY): Call(f"{GQA}, and one query", 1, 256, heads=4),
    (GQA, "sinks"): Call(f"{GQA}, and sinks", 256, 256, heads=4, options=dict(sinks=torch.tensor([6.0, 4, 2, 5]))),
    **{
        (GQA, a): Call(f"{GQA}, and {a}", 256, 256, heads=4, options=OPTIONS[a])
        for a in (CAUSAL, BOOLEAN, WINDOW, "softcap")
    },
    **{
        (a, b): Call(f"{a}, and {b}", 256, 256, options=OPTIONS[a] | OPTIONS[b])
        for a, b in combinations(OPTIONS, 2) if {a, b} != {BOOLEAN, ADDED}
    },
    **{
        (a, ONE_QUERY): Call(f"{a}, and one query", 1, 256, options=_last_row(OPTIONS[a]))
        for a in OPTIONS if a != CAUSAL
    },
}  # fmt: skip
LARGE = Call("scores up to some 250", 256, 256)
OF_SINKS = "gradient of the sinks"
AWAY, TIMES = 0.05, 4  # of another head_dim: beyond both, as a distance and over that at its own, it is wrong there


def contract(
    kernel: str | Callable, head_dim: int = 64, device: str = "cpu", causal: bool = False, queries: int | None = None,
    head_dims: Iterable[int] = (),
) -> list[dict[str, Any]]:  # fmt: skip
    """What a kernel can do.

    Args:
        causal: every call is asked for with a causal mask: for a kernel that has no other.
        queries: the last so many of each call alone, for a kernel that is called for one after the other; None is all.
        head_dims: asked for beside those of CALLS.

    Returns:
        rows: asked, head_dim, outcome, note, problem. Formats come first.
            outcome: ANSWERED, REFUSED (it raises, or answers in another format than that asked for), MALFORMED (as
            `call_kernel` has it) or WRONG (it answers another question).
            note: "causal_only" (a format, asked for with `causal`), "top_left" (causal, aligned as torch's is_causal),
            "unmasked" (it takes causal=True and does not mask), of a wrong answer what it looks like (a key of
            `wrong_answers.GUESSES`, "factor" or "other"), "output_bshd" (its output is right, and transposed), or "".
            problem: what it raises or returns instead, in words, or "".
    """
    fn, rows, own = kernels.plain(kernel), [], {}
    fn = causally(fn) if causal else fn

    def ask(asked, fmt, call, times=1):
        first = call is FIRST
        q, k, v = draw("normal", 0, *call.shapes(head_dim, batch=2))
        q, k, v = (fmt(x).to(device, fmt.dtype) for x in (q * times, k, v[..., : call.v_dim]))
        options = {name: _placed(x, device, fmt.dtype) for name, x in call.options.items()}
        if queries:
            q = q[..., -queries:, :]
            options = {name: x[..., -queries:, :] if name == "mask" else x for name, x in options.items()}
        options |= dict(causal=True) if causal else {}
        answer = call_kernel(_typed(fn) if first else fn, q, k, v, **options)
        outcome, note, asked_for = answer.outcome, "", wrong_answers.Call(q, k, v, fmt, options)
        if outcome == Outcome.ANSWERED and times == 1:  # else a score's own rounding may turn the softmax
            off, limit = wrong_answers.distance(answer.o, asked_for.golden()), wrong_answers.FAR
            if first:
                own[fmt] = off
            if asked.startswith(HEAD_DIM):
                limit = min(limit, max(AWAY, TIMES * own[fmt]))
            outcome, note = _compared(answer.o, asked_for, limit) if off > limit else (Outcome.ANSWERED, "")
        elif outcome == Outcome.MALFORMED and answer.o is None:
            note = wrong_answers.transposed_output(fn, asked_for)
        if note == "bshd" and str(kernel).endswith("@bshd"):  # its layout is the other one of the two
            note = "bhsd"
        note = "causal_only" if causal and first and outcome == Outcome.ANSWERED else note
        rows.append(dict(asked=asked, head_dim=head_dim, outcome=outcome, note=note, problem=answer.problem))
        return outcome

    can = [fmt for fmt in FORMATS if ask(f"{fmt}", fmt, FIRST) == Outcome.ANSWERED]
    if can:
        has = {asked for asked, call in CALLS.items() if ask(asked, can[0], call) == Outcome.ANSWERED}
        for needed, call in MORE.items():
            if has.issuperset(needed):
                ask(call.key, can[0], call)
        for d in head_dims:
            if (other := f"{HEAD_DIM}{d}") not in CALLS:
                ask(other, can[0], Call(other, 64, 64, head_dim=d))
        ask(LARGE.key, can[0], LARGE, times=64)
        rows.append(_gradients(fn, can[0], head_dim, device))
        if rows[-1]["outcome"] == Outcome.ANSWERED:
            has = [row["asked"] for row in rows if row["outcome"] == Outcome.ANSWERED]
            right = [asked for asked in has if asked.startswith(HEAD_DIM)]
            dims = [int(asked.removeprefix(HEAD_DIM)) for asked in right]
            rows += [_gradients_at(fn, can[0], d, device, causal, queries) | dict(head_dim=head_dim) for d in dims]
        if any(row["asked"] == "sinks" and row["outcome"] == Outcome.ANSWERED for row in rows):
            rows.append(_sinks_gradient(fn, can[0], head_dim, device, dict(causal=True) if causal else {}))
    return rows


def as_one(asked: Iterable[str]) -> list[str]:
    """What was asked for, with all head_dims in one: "head_dim 40, 72"."""
    asked = list(asked)
    found = [each for each in asked if not each.startswith((HEAD_DIM, GRADIENTS_AT))]
    for what in (HEAD_DIM, GRADIENTS_AT):
        dims = sorted(int(each.removeprefix(what)) for each in asked if each.startswith(what))
        found += [f"{what}{', '.join(map(str, dims))}"] if dims else []
    return found


def causally(fn: Callable) -> Callable:
    """A kernel, told to mask causally if it has a word for that: one that always masks may have none."""
    try:
        given = inspect.signature(fn).parameters.values()
        told = any(p.name == "causal" or p.kind is p.VAR_KEYWORD for p in given)
    except ValueError:  # compiled, and keeps its signature to itself
        told = True

    def masking(q, k, v, **options):
        return fn(
            q, k, v, **{**options, "causal": True} if told else {n: x for n, x in options.items() if n != "causal"}
        )

    return masking


def formats(asked: pd.DataFrame) -> list[str]:
    """The formats that a table of `contract` says yes to."""
    can = set(asked.asked[asked.outcome == Outcome.ANSWERED])
    return [f"{fmt}" for fmt in FORMATS if f"{fmt}" in can]


def _typed(fn):
    """A kernel that says so where it answers in another dtype: it does not have the format."""

    def call(q, k, v, **options):
        o = first_output(fn(q, k, v, **options))
        if isinstance(o, torch.Tensor) and o.dtype != q.dtype:
            raise KernelError(Outcome.REFUSED, f"returns {o.dtype}, where {q.dtype} is due")
        return o

    return call


def _compared(o, call, limit):
    """Outcome and note of an answer of the right shape to a wrong_answers.Call whose distance from attention's is
    above a limit."""
    if call.options.get("causal") and not wrong_answers.distance(o, wrong_answers.GUESSES["top_left"].of(call)) > limit:
        return Outcome.ANSWERED, "top_left"
    return Outcome.WRONG, wrong_answers.diagnose(o, call)


def _far(o, golden):
    return wrong_answers.distance(o, golden) > wrong_answers.FAR


def _placed(x, device, dtype):
    """An option as the kernel gets it; what is added to the scores is in the inputs' dtype."""
    if not isinstance(x, torch.Tensor):
        return x
    return x.to(device, dtype if x.ndim > 1 and x.is_floating_point() else x.dtype)


def _sinks_gradient(fn, fmt, head_dim, device, options):
    """Whether the sinks have a gradient, and the right one."""
    q, k, v = (fmt(x).to(device, fmt.dtype) for x in draw("normal", 0, (1, 2, 256, head_dim)))
    asked = dict(asked=OF_SINKS, head_dim=head_dim, outcome=Outcome.ANSWERED, note="", problem="")
    sinks = torch.tensor([6.0, 4.0], device=device)

    def gradient(kernel):
        given = sinks.clone().requires_grad_()
        return torch.autograd.grad(first_output(kernel(q, k, v, sinks=given, **options)).float().sum(), given)[0]

    try:
        with kernel_errors():
            ours = gradient(fn)
    except KernelError as error:
        return asked | dict(outcome=error.outcome, problem=str(error))
    exact = gradient(lambda *tensors, **given: kernels.golden(*tensors, inputs=fmt, **given))
    return asked if not _far(ours, exact.double()) else asked | dict(outcome=Outcome.WRONG, note="other")


def _gradients(fn, fmt, head_dim, device):
    q, k, v = (fmt(x).to(device, fmt.dtype).requires_grad_() for x in draw("normal", 0, (1, 2, 256, head_dim)))
    asked = dict(asked="gradients", head_dim=head_dim, outcome=Outcome.ANSWERED, note="", problem="")
    try:
        grads = torch.autograd.grad(with_kernel_errors(fn)(q, k, v).float().sum(), (q, k, v))
    except KernelError as error:
        return asked | dict(outcome=error.outcome, problem=str(error))
    if all(map(finite, grads)):
        return asked
    return asked | dict(outcome=Outcome.MALFORMED, problem="returns NaN or infinite values in dQ, dK or dV")


def _gradients_at(fn, fmt, d, device, causal, queries):
    """Whether the gradients of 64 queries, or the last so many, and 64 keys are right at another head_dim."""
    drawn = (*draw("normal", 0, (1, 2, 64, d)), draw("normal", 1, (1, 2, 64, d))[0])
    q, k, v, dO = (fmt(x).to(device, fmt.dtype) for x in drawn)
    q, dO = (x[..., -(queries or 64) :, :].contiguous() for x in (q, dO))
    asked = dict(asked=f"{GRADIENTS_AT}{d}", outcome=Outcome.ANSWERED, note="", problem="")
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    try:
        ours = torch.autograd.grad(with_kernel_errors(fn)(q, k, v), (q, k, v), dO)
    except KernelError as error:
        return asked | dict(outcome=error.outcome, problem=str(error))
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    due = torch.autograd.grad(kernels.golden(*exact, inputs=FP64, causal=causal), exact, dO.double())
    named = zip(("dQ", "dK", "dV"), ours, due)
    wrong = [name for name, a, b in named if not wrong_answers.distance(a, b) <= wrong_answers.FAR]
    return asked | dict(outcome=Outcome.WRONG, problem=f"returns another {' and '.join(wrong)}") if wrong else asked
