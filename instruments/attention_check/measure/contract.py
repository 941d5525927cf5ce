"""What somebody's kernel can do: formats, shapes, options and gradients, each asked for once."""

import math
from collections.abc import Callable, Iterable
from functools import lru_cache, partial, reduce
from typing import Any

import pandas as pd
import torch

from attention_check.adapters import READINGS, first_output, read_as
from attention_check.conventions.attention import Dialect
from attention_check.conventions.reading import CapturedCall
from attention_check.conventions.search import fit
from attention_check.isolation.calls import FAULTS, KernelError, call_kernel, kernel_errors, with_kernel_errors
from attention_check.isolation.worker import Outcome
from attention_check.measure import wrong_answers
from attention_check.measure.capability import (
    CAPABILITIES,
    FIRST,
    FORMATS,
    GRADIENTS,
    GRADIENTS_AT,
    GRADIENTS_WITH,
    HEAD_DIM,
    HEAD_DIMS,
    IN_EVERY_FORMAT,
    LARGE,
    LARGE_CAPPED,
    MORE,
    OFF_TILES,
    PAST_THE_END,
    RACES,
    SINKS_GRADIENT,
    WATCHED,
    WINDOW_LEFT,
    at_head_dim,
    crashed,
    in_format,
    kernel_fn,
    masks_by_default,
    parameters,
)
from fa_lib import kernels
from fa_lib.kernels.gradients import gradients
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.kernels.sequential import sequential
from fa_lib.kernels.variants import Call
from fa_lib.numerics.formats import BF16, FP16, FP32, FP64, Format

OTHER_LAYOUT = "layout_all_bshd"  # the key of a convention
ADAPTED = {OTHER_LAYOUT: "bshd"} | {key: key for key in READINGS}  # what a kernel takes, and names for `kernels.get`
NAMED, OUTSIDE, BY_DEFAULT = "named", "outside", "causal_by_default"
UNEQUAL = ("gqa", "v_dim_128", "v_dim_512", "gqa_uneven")  # shapes of K and V that no parameter says it takes
UNNAMED = (*UNEQUAL, "boolean_mask_batch", "boolean_mask_padding")
AWAY, TIMES, TIMES_ROW = 0.05, 4, 6  # of a gradient and of a row of an answer: beyond that, and so many times as far
ALIKE = 0.02  # of the distance of two formats' answers to the same inputs: both are wrong in the same way
MOST_AWAY = 0.4  # as the first call's, it is wrong; a gradient also beyond this


def contract(
    kernel: KernelRef | str | Callable, head_dim: int = 64, device: str = "cpu", causal: bool = False,
    queries: int | None = None, head_dims: Iterable[int] | None = (),
) -> list[dict[str, Any]]:  # fmt: skip
    """What a kernel can do.

    Args:
        causal: every call is asked for with a causal mask: for a kernel that has no other.
        queries: the last so many of each call alone, for a kernel that is called for one after the other; None is all.
        head_dims: asked for beside HEAD_DIMS; None: neither is asked for, of a kernel that is compiled for each.

    Returns:
        rows of `asked`, whose columns data/columns.csv explains. Formats come first, then the keys of Capabilities,
        RACES, LARGE, LARGE_CAPPED, GRADIENTS, GRADIENTS_AT, GRADIENTS_WITH of a key, where that is answered, and
        SINKS_GRADIENT. An answer in another format is REFUSED. What is no refusal, raised at a call that the
        signature takes, is MALFORMED.
    """
    asker = _Asker(kernel, head_dim, device, causal, queries)
    answered_formats = [fmt for fmt in FORMATS if asker.ask(f"{fmt}", fmt, FIRST) == Outcome.ANSWERED]
    wrong = [fmt for fmt, row in zip(FORMATS, asker.rows) if row["outcome"] in FAULTS]
    if isinstance(asker.kernel, KernelRef) and asker.kernel.gpu:
        for fmt in (answered_formats or wrong)[:1]:
            asker.ask_races(fmt)
    if not answered_formats:  # a race is the first reason
        rows = [row for row in asker.rows if row["asked"] != RACES or row["outcome"] in FAULTS]
        return sorted(rows, key=lambda row: row["asked"] != RACES)
    fmt, answered = answered_formats[0], set()
    for each in CAPABILITIES:
        if head_dims is None and each.key == HEAD_DIM or causal and each.key == MORE:
            continue  # causally, some of more queries see no key
        if not answered.issuperset(each.needs):
            continue
        if (outcome := asker.ask(each.key, fmt, each.call)) == Outcome.ANSWERED:
            answered |= {each.key, f"{HEAD_DIM}_{each.call.head_dim}"} if each.key == HEAD_DIM else {each.key}
        elif each.key == WINDOW_LEFT and outcome == Outcome.REFUSED:
            asker.rows.pop()  # as "window" says
    for other in (each for each in answered_formats[1:] if each in (BF16, FP16)):
        for each in CAPABILITIES:
            if each.key in answered.intersection(IN_EVERY_FORMAT):
                asker.ask(each.key, other, each.call)
                row = asker.rows.pop()  # a fault alone is told: another row says what the kernel answers
                asker.rows += [row | dict(asked=in_format(each.key, other))] * (row["outcome"] in FAULTS)
    for d in head_dims or ():
        if d not in HEAD_DIMS:
            asker.ask(HEAD_DIM, fmt, at_head_dim(d))
    for large in (LARGE, *[LARGE_CAPPED] * ("softcap" in answered)):
        asker.ask(large.key, fmt, large, times=64)
    if asker.ask_gradients_of(GRADIENTS, fmt, [FIRST]) == Outcome.ANSWERED:
        for row in [*asker.rows]:
            if row["asked"] == HEAD_DIM and row["outcome"] == Outcome.ANSWERED:
                asker.ask_gradients_of(GRADIENTS_AT, fmt, [at_head_dim(row["dim"])], row["dim"])
        answered -= {row["asked"] for row in asker.rows if row["note"] == "top_left"}  # other rows see other keys
        calls = {each.key: each.call for each in CAPABILITIES if each.key in answered}
        for key, asked in GRADIENTS_WITH.items():
            if both := [calls[name] for name in (key, f"{key}_{OFF_TILES}") if name in calls]:
                asker.ask_gradients_of(asked, fmt, both)
    if "sinks" in answered:
        asker.ask_sinks_gradient(fmt)
    return asker.rows


class _Asker:
    """Asks a kernel, see `contract` for its arguments, and keeps the rows."""

    def __init__(self, kernel, head_dim, device, causal, queries):
        self.kernel = KernelRef.of(kernel) if isinstance(kernel, str) else kernel
        self.fn, self.head_dim, self.device = kernel_fn(self.kernel, causal), head_dim, device
        self.causal, self.queries = causal, queries
        self.by_default = masks_by_default(kernels.plain(self.kernel))
        self.options = dict(causal=True) if causal else {}
        self.rows: list[dict[str, Any]] = []
        self.distances: dict[Format, float] = {}  # of the first answer in each format, its furthest row
        self.shapes: set[tuple] = set()  # of Q, K and V that it has answered
        self.gradients_off = 0.0  # the largest distance of dQ, dK and dV
        self.wrong: tuple = ()  # the last wrong answer to FIRST: the output, outcome and note

    def ask(self, asked: str, fmt: Format, call: Call, times: float = 1) -> Outcome:
        """A call of normal inputs, Q so many times as large."""
        first = call is FIRST
        q, k, v, options = self.inputs_of(fmt, call, 2, times)
        answer = call_kernel(_typed(self.fn) if first else self.fn, q, k, v, **options)
        outcome, note, over = answer.outcome, "", math.nan
        shapes = (q.shape, k.shape, v.shape)
        if outcome == Outcome.ANSWERED:
            self.shapes.add(shapes)
        if outcome == Outcome.ANSWERED and times == 1:  # else a score's own rounding may turn the softmax
            golden = kernels.golden(q, k, v, inputs=fmt, **options)
            off, limit = wrong_answers.distance(answer.output, golden), wrong_answers.FAR
            if first:
                self.distances[fmt] = _furthest_row(answer.output, golden)
                if fmt in (FP32, FP64):
                    over = off / (wrong_answers.distance(sequential(q, k, v, **options), golden) or math.ulp(1.0))
            elif off <= limit:  # of 400 keys one that is missing makes 5 % of a row
                off, limit = _furthest_row(answer.output, golden), max(AWAY, TIMES_ROW * self.distances[fmt])
            if off > limit:
                alike = first and self.wrong and wrong_answers.distance(answer.output, self.wrong[0]) <= ALIKE
                outcome, note = self.wrong[1:] if alike else self._compared(q, k, v, answer.output, options, limit)
                self.wrong = (answer.output.double(), outcome, note) if first else self.wrong
        elif asked in UNEQUAL and PAST_THE_END in answer.problem:
            outcome, note = Outcome.REFUSED, OUTSIDE
        elif (
            outcome == Outcome.REFUSED and not first and asked not in UNNAMED
            and call.options.keys() <= (parameters(self.fn) or {}).keys()
            and crashed(answer.problem, shapes in self.shapes)
        ):  # fmt: skip
            others = (call_kernel(self.fn, q, k, v, **form).outcome for form in _other_forms(q, k, options))
            note = NAMED if any(other != Outcome.REFUSED for other in others) else ""
            outcome = Outcome.REFUSED if note else Outcome.MALFORMED
        if (
            note == OTHER_LAYOUT and isinstance(self.kernel, KernelRef) and self.kernel.readings[-1:] == ("bshd",)
        ):  # its layout is the other one of the two
            note = "bhsd"
        if first and outcome == Outcome.ANSWERED:
            note = "causal_only" if self.causal else BY_DEFAULT if self.by_default else note
        dim = call.head_dim if asked == HEAD_DIM else None
        return self.row(asked, outcome, note, answer.problem, dim or 0, over)

    def _compared(self, q, k, v, o, options, limit):
        """Outcome and note of an answer of the right shape whose distance from attention's is above a limit. Where the
        kernel's causal mask is known to be aligned top-left, its window may be."""
        call, later = CapturedCall(q, k, v, o, options), k.shape[2] - q.shape[2]  # keys that a row's own is further on
        causal, (left, right) = options.get("causal"), options.get("window") or (None, None)
        top_left = any(row["note"] == "top_left" for row in self.rows)
        if later and (causal or top_left and left is not None):
            window = "" if left is None else (left + later, None if right is None else right - later)
            if fit(call.rows(Dialect(causal="top_left" if causal else "", window=window))).residual <= limit:
                return Outcome.ANSWERED, "top_left"
        return Outcome.WRONG, wrong_answers.diagnose(call)

    def ask_races(self, fmt: Format) -> None:
        """Whether warps race for shared memory, of a kernel whose launches can all be watched; else there is no row."""
        q, k, v, options = self.inputs_of(fmt, WATCHED, 1)
        answer = call_kernel(partial(self.fn, **{RACES: True}), q, k, v, **options)
        if answer.outcome == Outcome.ANSWERED or "a race" in answer.problem:
            self.row(RACES, answer.outcome, problem=answer.problem)

    def ask_gradients_of(self, asked: str, fmt: Format, calls: Iterable[Call], dim: int = 0) -> Outcome:
        """Whether a kernel has gradients, and those of calls are right: at another head_dim, dim, with an option, or of
        another shape. Of a plain call they are numbers: the rule over shapes judges them."""
        wrong: dict[str, None] = {}
        for call in calls:
            q, k, v, options = self.inputs_of(fmt, call, 2)
            q, k, v = (x.contiguous().requires_grad_() for x in (q, k, v))
            dO = fmt(draw("normal", 1, q.shape)[0]).to(self.device, fmt.dtype)
            try:
                ours = gradients(with_kernel_errors(self.fn)(q, k, v, **options), (q, k, v), dO)
            except KernelError as error:
                return self.failed(asked, error, dim)
            due = _golden_gradients(q, k, v, options, dO)
            off = dict(zip(("dQ", "dK", "dV"), map(wrong_answers.distance, ours, due)))
            if asked == GRADIENTS:
                self.gradients_off = max(off.values())
            limit = math.inf if asked == GRADIENTS else _limit(self.gradients_off)
            wrong |= {name: None for name, x in off.items() if not x < limit}  # NaN is far from everything
        problem = f"returns another {' and '.join(wrong)}" if wrong else ""
        return self.row(asked, Outcome.WRONG if wrong else Outcome.ANSWERED, problem=problem, dim=dim)

    def ask_sinks_gradient(self, fmt: Format) -> Outcome:
        """Whether the sinks have a gradient, and the right one."""
        q, k, v, options = self.inputs_of(fmt, FIRST, 1)

        def gradient(kernel, **more):
            sinks = torch.tensor([6.0, 4.0], device=self.device, requires_grad=True)
            o = first_output(kernel(q, k, v, sinks=sinks, **options, **more))
            return torch.autograd.grad(o.float().sum(), sinks)[0]

        try:
            with kernel_errors():
                ours = gradient(self.fn)
        except KernelError as error:
            return self.failed(SINKS_GRADIENT, error)
        if not wrong_answers.distance(ours, gradient(kernels.golden, inputs=fmt).double()) <= wrong_answers.FAR:
            return self.row(SINKS_GRADIENT, Outcome.WRONG, problem="returns another gradient of the sinks")
        return self.row(SINKS_GRADIENT)

    def failed(self, asked, error, dim=0):
        """A row of a backward pass that raises, of a call that the kernel answers."""
        outcome = Outcome.MALFORMED if crashed(f"{error}") else error.outcome
        return self.row(asked, outcome, problem=f"{error}", dim=dim)

    def inputs_of(self, fmt, call, batch, times=1.0):
        """Q, so many times as large, K, V and the options of a call; its last queries alone where these are few."""
        q, k, v = _normal(*call.shapes(self.head_dim, batch=batch))
        q, k, v = (fmt(x).to(self.device, fmt.dtype, copy=True) for x in (q * times, k, v[..., : call.v_dim]))
        options: dict[str, Any] = {name: _placed(x, self.device, fmt.dtype) for name, x in call.options.items()}
        if self.queries:
            q = q[..., -self.queries :, :]
            options = {name: x[..., -self.queries :, :] if name == "mask" else x for name, x in options.items()}
        return q, k, v, options | self.options

    def row(self, asked, outcome=Outcome.ANSWERED, note="", problem="", dim=0, times=math.nan):
        of = dict(asked=asked, dim=dim, head_dim=self.head_dim)
        self.rows.append(of | dict(outcome=outcome, note=note, problem=problem, times=times))
        return outcome


@lru_cache(maxsize=2)  # most calls have the shapes of the one before; a kernel may write to its inputs, and gets copies
def _normal(shape, kv_shape):
    return draw("normal", 0, shape, kv_shape)


def formats(asked: pd.DataFrame) -> list[str]:
    """The formats that a table of `contract` says yes to."""
    answered = set(asked.asked[asked.outcome == Outcome.ANSWERED])
    return [f"{fmt}" for fmt in FORMATS if f"{fmt}" in answered]


def reads_other_layout(asked: pd.DataFrame) -> bool:
    """Whether a kernel reads and returns (batch, sequence, heads, head_dim), by a table of `contract`: in all its
    formats."""
    plain = asked[asked.asked.isin([f"{fmt}" for fmt in FORMATS]) & (asked.outcome != Outcome.REFUSED)]
    return {*plain.note} == {OTHER_LAYOUT}


def adapted(kernel: KernelRef | str | Callable, keys: Iterable[str]) -> KernelRef | Callable:
    """Return a kernel that is adapted to what it takes, by keys of ADAPTED."""
    readings = [ADAPTED[key] for key in keys]
    if isinstance(kernel, (KernelRef, str)):
        return KernelRef.of(kernel).read_as(*readings)
    return reduce(read_as, readings, kernel)


def _golden_gradients(q, k, v, options, dO):
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    return gradients(kernels.golden(*exact, inputs=FP64, **options), exact, dO.double())


def _typed(fn):
    """A kernel that says so where it answers in another dtype: it does not have the format."""

    def call(q, k, v, **options):
        o = first_output(fn(q, k, v, **options))
        if isinstance(o, torch.Tensor) and o.dtype != q.dtype:
            raise KernelError(Outcome.REFUSED, f"returns {o.dtype}, where {q.dtype} is due")
        return o

    return call


def _other_forms(q, k, options):
    """The options of a call in other forms in which kernels take them: a mask of four dimensions, or of the other kind,
    a window of one number, sinks that broadcast."""
    if "window" in options:
        yield options | dict(window=options["window"][0])
    if "sinks" in options:
        yield options | dict(sinks=options["sinks"][:, None, None])
    if (mask := options.get("mask")) is not None:
        boolean = mask.dtype == torch.bool
        other = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -math.inf) if boolean else mask > -1
        whole = (x.expand(*q.shape[:-1], k.shape[-2]) for x in (mask, other))
        yield from (options | dict(mask=x) for x in (other, *whole))


def _limit(own):
    """Of a distance, where a kernel's own is known of another call."""
    return min(MOST_AWAY, max(AWAY, TIMES * own))


def _furthest_row(o, golden):
    """The largest distance of a row from the golden value's, over the size of this."""
    off, size = ((x.double() ** 2).sum(-1).sqrt() for x in (o.cpu() - golden.cpu(), golden.cpu()))
    return (off / size).where(off > 0, 0.0).max().item()


def _placed(x, device, dtype):
    """An option as the kernel gets it; what is added to the scores is in the inputs' dtype."""
    if not isinstance(x, torch.Tensor):
        return x
    return x.to(device, dtype if x.ndim > 1 and x.is_floating_point() else x.dtype)
