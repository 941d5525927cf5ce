"""Two kernels on the same inputs: how far they are from the golden value and from each other, and which is wrong."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from attention_check.explain.explanation import cause_of
from attention_check.explain.verdict import finite
from attention_check.isolation.calls import call_kernel
from attention_check.isolation.worker import Outcome
from attention_check.measure.closeness import NO_CAUSE, BoundCheck
from attention_check.probe.capture import AS_IT_IS, Capture, captured
from attention_check.probe.named_tensors import Reading
from attention_check.probe.sampling import Sample, sampled
from attention_check.probe.skipped import place
from attention_check.report.labels import has_this_error
from attention_check.report.wordings import as_times
from fa_lib import kernels
from fa_lib.execution.results import provenance
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.kernel_ref import KernelRef, label_of
from fa_lib.kernels.rule import baseline_for
from fa_lib.numerics.formats import BF16, Format, FormatLike
from fa_lib.numerics.metrics import deviation, over_baseline

ROWS = 256  # of Q for each head that are compared, spread evenly
DECODED = 24  # of these where B decodes: each is a call of its own


@dataclass(frozen=True)
class ComparisonInputs:
    """What two kernels are compared on.

    Attributes:
        on, reading: a file and what is said of it, as `capture.captured` takes them; None draws inputs, for a call with
            the reading's options.
        fmt, distribution, n, head_dim, heads, seed: of drawn inputs.
        decode: A gets the whole call, causally; B each query alone, with the keys up to its own.
        device: torch's.

    Raises:
        ValueError: the file cannot be read, a name is not known, or the reading is of a file and there is none.
    """

    on: str | Path | None = None
    reading: Reading = AS_IT_IS
    fmt: FormatLike = BF16
    distribution: str = "normal"
    n: int = 1024
    head_dim: int = 64
    heads: int = 2
    seed: int = 0
    decode: bool = False
    device: str = "cpu"

    def call(self) -> Capture:
        """The call, of (batch, heads, sequence, head_dim), on the device."""
        if self.on is None:
            if self.reading.layout != AS_IT_IS.layout or self.reading.allow_large:
                raise ValueError("layout, allow_large: got one for drawn inputs; accepted is a file with it")
            fmt, shape = Format.of(self.fmt), (1, self.heads, self.n, self.head_dim)
            drawn = (fmt(x).to(fmt.dtype) for x in draw(self.distribution, self.seed, shape))
            call = Capture(*drawn, options=self.reading.options({}))
        else:
            call = captured(self.on, self.reading)
        call = call.in_four_dimensions().on(self.device)
        if self.decode:
            if call.q.shape[2] != call.k.shape[2] or {"mask", "window"} & call.options.keys():
                raise ValueError("decode: got fewer queries than keys, a mask or a window; accepted is a call without")
            call.options["causal"] = True
        return call


@dataclass(frozen=True)
class Compared:
    """What `compare` found. A number that is not finite means that an output is not.

    Attributes:
        a, b: keys of the kernels. question: it. about: where the inputs were captured.
        blind: compared rows that see no key: what they give is a convention, and they are left out of all that follows.
        errors: "a", "b" -> max, rmse, times_max and times_rmse (over Baseline's, on the same rows), of o - golden.
        bounds: "a", "b" -> a row of `closeness.closeness` on the same rows; nothing where there is none.
        apart: of A's o - B's: max, rmse, times_max (over Baseline's largest error), differing (share of outputs).
    """

    a: str
    b: str
    question: ComparisonInputs
    about: dict[str, str]
    blind: int
    errors: dict[str, dict[str, float]]
    bounds: dict[str, dict[str, Any]]
    apart: dict[str, float]

    @property
    def is_rounding(self) -> bool:
        """Whether both outputs are within their own bounds, so that the difference is what two right kernels have."""
        return len(self.bounds) == 2 and all(row["times"] <= 1 for row in self.bounds.values())

    def record(self) -> dict:
        """All of it as JSON can hold it, with versions."""
        found = {name: x for name, x in asdict(self).items() if name != "question"}
        found |= dict(is_rounding=self.is_rounding)
        settings = asdict(self.question) | dict(on=f"{self.question.on or ''}", fmt=f"{Format.of(self.question.fmt)}")
        return finite(found) | provenance(settings)


def compare(a: KernelRef | str, b: KernelRef | str, question: ComparisonInputs | None = None) -> Compared:
    """Two kernels on the same inputs: how far each is from the golden value and from the other, and what has the error
    of one that is beyond its own bound. a, b: KernelRefs, or the texts of them.

    Raises:
        ValueError: there is no such kernel, or it gives no finite output of attention; the inputs cannot be had.
    """
    question = question or ComparisonInputs()
    call = question.call()
    q, k, v, options = call.q, call.k, call.v, call.options
    fmt = Format.of(q.dtype)
    sample = sampled(q, k, v, DECODED if question.decode else ROWS, **options)
    a, b = KernelRef.of(a), KernelRef.of(b)
    fns = {kernel: _guarded(kernel) for kernel in (a, b)}
    whole = {"a": fns[a](q, k, v, **options)} | ({} if question.decode else {"b": fns[b](q, k, v, **options)})
    outs = {side: sample.taken(o).double() for side, o in whole.items()}
    if question.decode:
        alone = {name: x for name, x in options.items() if name != "causal"}
        outs["b"] = _decoded(fns[b], sample, alone).double()
    golden = kernels.golden(sample.q, sample.k, sample.v, inputs=fmt, **sample.options)
    seen = sample.seeing(golden)
    outs = {side: o.where(seen, golden) for side, o in outs.items()}
    baseline = deviation(
        baseline_for(fmt)(sample.q, sample.k, sample.v, **sample.options).where(seen, golden), golden, fmt
    )

    def errors(difference):
        largest, rmse = difference.abs().max().item(), difference.square().mean().sqrt().item()
        times = dict(times_max=over_baseline(largest, baseline.max), times_rmse=over_baseline(rmse, baseline.rmse))
        return dict(max=largest, rmse=rmse) | times

    difference = outs["a"] - outs["b"]
    distance = errors(difference) | dict(differing=(difference != 0).double().mean().item())
    sampled_call = sample.q, sample.k, sample.v, sample.options
    bounds = {}
    for side, o in outs.items():
        check = BoundCheck.of(o, *sampled_call)
        if check.finite:
            of_call = (whole[side].double(), q, k, v, options) if side in whole else (o, *sampled_call)
            found = cause_of(*of_call, check.precision) if check.over.any() else None
            of_rows = dict(times=check.times.max().item(), rows=int(check.over.sum()), of=check.over.numel())
            bounds[side] = of_rows | (asdict(found) if found else NO_CAUSE)
    return Compared(
        a.key, b.key, question, call.about, int((~seen).sum()), {side: errors(o - golden) for side, o in outs.items()},
        bounds, distance,
    )  # fmt: skip


def _guarded(kernel):
    fn, accepted = kernels.plain(kernel), "accepted are kernels that answer on these inputs"

    def call(q, k, v, **options):
        answer = call_kernel(fn, *(x.clone() for x in (q, k, v)), **options)
        if answer.outcome != Outcome.ANSWERED:
            raise ValueError(f"kernel: {kernel.label} {answer.problem}; {accepted}")
        return answer.output.detach()

    return call


def _decoded(fn, part: Sample, options):
    """The rows of a causal Sample of as many queries as keys, each alone with the keys up to its own."""
    mask, n = part.options["mask"], part.k.shape[2]
    ends = range(1, n + 1) if mask is None else mask.reshape(-1, mask.shape[-2], n)[0].sum(-1).tolist()
    tensors = ((part.q[:, :, i : i + 1], part.k[:, :, :end], part.v[:, :, :end]) for i, end in enumerate(ends))
    return torch.cat([fn(*(x.contiguous() for x in each), **options) for each in tensors], 2)


def comparison_lines(found: Compared) -> list[str]:
    """A short list for a terminal."""
    distance = found.apart
    how = ", token by token" if found.question.decode else ""
    lines = [f"A is {label_of(found.a)}, B is {label_of(found.b)}{how}."]
    if "layer" in found.about:
        lines.append(f"The inputs were captured at {place(found.about)}.")
    for side, errors in found.errors.items():
        over = f"{as_times(errors['times_max'])} times Baseline's, rms {errors['rmse']:.3g}"
        lines.append(f"{side.upper()} to the golden value: at most {errors['max']:.3g}, {over}.")
    if found.blind:
        lines.append(f"{found.blind:,} rows see no key. What a kernel gives there is a convention: they are left out.")
    lines += _bounds_in_words(found)
    if not distance["max"]:
        return [*lines, "A and B give the same bits."]
    over = f"{as_times(distance['times_max'])} times Baseline's largest error, rms {distance['rmse']:.3g}"
    differing = f"{distance['differing']:.1%} of the outputs differ"
    return [*lines, f"A to B: at most {distance['max']:.3g}, {over}; {differing}."]


def _bounds_in_words(found):
    """Whether both are right, each to its own bound, and of one that is not what has its error."""
    if found.is_rounding:
        which = "Both are" if found.apart["max"] else "They are"
        return [f"{which} within their own bounds, which are derived for these inputs: any difference is rounding."]
    return [
        f"{side.upper()} is beyond its own bound, {as_times(row['times'], 1)} times: {has_this_error(row)}."
        for side, row in found.bounds.items()
        if row["times"] > 1
    ]
