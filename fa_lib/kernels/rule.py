"""The field's rule for any kernel: its largest error is at most twice Baseline's, three times for gradients."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import torch
from torch import Tensor

from fa_lib import kernels
from fa_lib.execution.lookup import lookup
from fa_lib.kernels import presets
from fa_lib.kernels.gradients import gradients
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.registry import plain
from fa_lib.kernels.sequential import sequential
from fa_lib.kernels.variants import Call, by_key
from fa_lib.numerics.dots import Exact
from fa_lib.numerics.formats import FP32, Format, round_to
from fa_lib.numerics.metrics import deviation, over_baseline

ALLOWED = {"o": 2, "dq": 3, "dk": 3, "dv": 3}  # times Baseline's largest error: flash-attention's own tests

REFERENCE_KERNELS = {"as_shipped": "as shipped", "every_step": "every step"}  # to hold another against: key -> label

CALLS = by_key((
    Call("97", 97, 97),
    Call("113 x 203", 113, 203),
    Call("256 x 97", 256, 97),
    Call("256", 256, 256),  # multiples of 128: all that some kernels take
    Call("128 x 384", 128, 384),
    Call("causal 203", 203, 203, options=dict(causal=True)),
    Call("causal 113 x 203", 113, 203, options=dict(causal=True)),
    Call("causal 384", 384, 384, options=dict(causal=True)),
    Call("causal GQA 203", 203, 203, 4, 2, options=dict(causal=True, scale=0.3)),  # 0.3 is no 1 / sqrt(d)
    Call("GQA 384", 384, 384, 4, 2),
    Call("causal MQA 384", 384, 384, 4, 1, options=dict(causal=True)),
    Call("window 512", 512, 512, options=dict(window=(64, 64))),
    Call("causal window 512", 512, 512, options=dict(causal=True, window=(100, 0))),
    Call("1024", 1024, 1024, 1, 1),
    Call("1500", 1500, 1500, 1, 1),  # longer than most tiles and chunks, and a multiple of none
    Call("causal 2048", 2048, 2048, 1, 1, options=dict(causal=True)),
    Call("4096", 4096, 4096, 1, 1),
))  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A call on one draw of inputs, on which the rule judges kernels.

    Attributes:
        shape: a key of CALLS.
        head_dim: of Q, K and V.
        distribution, seed: of Q, K and V; dO is normal.
        fmt: name of the format that inputs are rounded to.
        gradients: whether gradients are judged too.
        device: torch's.
    """

    shape: str
    head_dim: int
    distribution: str
    fmt: str
    seed: int
    gradients: bool = True
    device: str = "cpu"

    def results(self, fn: Callable, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """Call a kernel on the case, with inputs of a dtype; None is the format's. A ValueError where there is no such
        shape.

        Returns:
            dict: "o" (batch, heads, n_q, head_dim), and with gradients "dq", "dk" and "dv" in the shapes of q, k, v.
        """
        call, fmt = lookup("shape", self.shape, CALLS), Format.of(self.fmt)
        tensors = _drawn(self.distribution, self.seed, *call.shapes(self.head_dim))
        dO = _drawn("normal", self.seed + 1, tensors[0].shape, (1,))[0]
        q, k, v, dO = (round_to(x, fmt).to(self.device, dtype or fmt.dtype, copy=True) for x in (*tensors, dO))
        x = [t.requires_grad_(self.gradients) for t in (q, k, v)]
        o = fn(*x, **call.options)
        return dict(zip(ALLOWED, [o.detach(), *(gradients(o, x, dO) if self.gradients else ())]))


_drawn = lru_cache(maxsize=2)(draw)  # one draw serves the golden value, Baseline and kernels


def baseline_for(fmt: Format | str) -> Callable:
    """Return the Baseline kernel whose error is the unit of all errors in a format.

    In 16 bits it is emulated, and its sums are exact (`eager_baseline`). In FP32 and FP64 a real kernel rounds its sums
    too, and the error depends on their order. There it is Baseline with sums taken one term after the other, the
    plainest order (`sequential`): a kernel that adds more carefully is better, and one that computes a step in 16 bits
    is tens of times worse or more.
    """
    return sequential if Format.of(fmt).precision >= FP32.precision else eager_baseline


def eager_baseline(q: Tensor, k: Tensor, v: Tensor, **options) -> Tensor:
    """Compute `kernels.baseline` as eager code runs it: in 16 bits Q Kᵀ is written, multiplied by the scale, and
    written again.

    Where the scale is a power of two, as with head_dim 16, 64 and 256, the second rounding changes nothing, and this
    is `kernels.baseline`; with head_dim 96 or 128 it is one rounding more. (The eager attention of Hugging Face rounds
    the scores so; the reference of flash-attention's tests rounds Q or K once more, after scaling it.)
    """
    scale = options.get("scale") or q.shape[-1] ** -0.5
    if math.frexp(scale)[0] == 0.5:
        return presets.baseline(q, k, v, **options)
    return kernels.reference(q, k, v, precision=rounds_scores_twice(Format.of(q.dtype)), **options)


def rounds_scores_twice(fmt: Format) -> Precision:
    """Return `Precision.materialized`; in formats narrower than FP32, scores are rounded before the scale too."""
    precision = Precision.materialized(fmt)
    return precision if fmt.precision >= FP32.precision else replace(precision, products=ScoresRoundedBeforeScale(fmt))


@dataclass(frozen=True)
class ScoresRoundedBeforeScale(Exact):
    """Exact sums, and Q Kᵀ rounded before it is scaled: to as many bits as `fmt` has, with FP32's exponents, since in
    FP16 it may exceed 65,504 before the scale."""

    fmt: Format

    def scores(self, Q: Tensor, K: Tensor) -> Tensor:
        """Compute Q Kᵀ, (..., n_q, n_kv), rounded."""
        return Format.of((8, self.fmt.precision)).round_(Q @ K.mT)


def exact(case: Case, kernel: Callable | None = None) -> dict[str, Tensor]:
    """Compute the golden values of a Case, and Baseline's errors; kernel: None is Baseline in the case's format.

    Returns:
        dict: the golden values under the names of ALLOWED, in the shapes of `Case.results`; and "baseline", (names,),
        the largest error of Baseline in each, in their order.
    """
    golden = case.results(partial(kernels.golden, inputs=Format.of(case.fmt)), torch.float64)
    baseline = case.results(kernel or baseline_for(case.fmt))
    errors = [(baseline[tensor].double() - golden[tensor]).abs().max().item() for tensor in golden]
    return golden | dict(baseline=torch.tensor(errors, dtype=torch.float64))


def rule_rows(kernel: str | Callable, case: Case, truth: dict[str, Tensor]) -> list[dict]:
    """Judge one kernel, as `kernels.plain` takes it, on a Case: the rows of `rule`. truth: of `exact`."""
    rows = []
    for (tensor, x), own in zip(case.results(plain(kernel)).items(), truth["baseline"].tolist()):
        d, allowed = deviation(x, truth[tensor]), ALLOWED[tensor]
        row = dict(kernel=kernel, tensor=tensor, error=d.max, baseline=own, ratio=over_baseline(d.max, own))
        rows.append(row | dict(allowed=allowed, passed=d.max <= allowed * own, relative=d.relative))
    return rows


def rule(
    shape: str,
    head_dim: int,
    distribution: str,
    fmt: Format | str,
    seed: int,
    names: Sequence[str] = ("flash", *REFERENCE_KERNELS),
    gradients: bool = True,
    device: str = "cpu",
) -> list[dict]:
    """Compute the largest errors of kernels over Baseline's in the same format, on one draw: a cell of a sweep.

    Args:
        shape, head_dim, distribution, fmt, seed, gradients, device: of a Case.
        names: of kernels: registered, or package.module:function.

    Returns:
        list of dicts: kernel, tensor ("o", "dq", "dk", "dv"; without `gradients` only "o"), error, baseline, ratio
        (`metrics.over_baseline`), allowed (of ALLOWED), passed, relative (of the Deviation).

    Raises:
        ValueError: a shape that CALLS lacks, or no such kernel.
    """
    case = Case(shape, head_dim, distribution, Format.of(fmt).name, seed, gradients, device)
    truth = exact(case)
    return [row for name in dict.fromkeys(names) for row in rule_rows(name, case, truth)]
