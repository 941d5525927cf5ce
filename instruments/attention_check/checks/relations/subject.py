"""A kernel as relations ask it: inputs for it, its answers, and how far two right answers may lie apart."""

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any

import torch
from torch import Tensor

from attention_check.conventions.low_bits import baseline_in
from attention_check.isolation.calls import KernelError, call_or_raise, with_kernel_errors
from attention_check.isolation.worker import UNSUPPORTED, Outcome
from attention_check.measure.capability import ALL_CAPABILITIES, Capabilities, crashed
from fa_lib import kernels
from fa_lib.kernels.gradients import gradients
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.options import finite
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.rule import ALLOWED, rounds_scores_twice
from fa_lib.numerics.formats import BF16, FP64, Format
from fa_lib.numerics.metrics import over_baseline

_KEPT: dict[tuple, Any] = {}  # a few numbers for each call
BITWISE, ROUNDING, BREAKS, NOT_ASKED, BROKEN = "bitwise", "rounding", "breaks", "not_asked", "broken"
CONVENTION = "convention"  # another answer than the relation's, which many kernels give: reported, not counted


def digest(x: Tensor) -> tuple[bytes, tuple[int, ...]]:
    """What two tensors share that have the same bits and the same shape."""
    return hashlib.sha256(x.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()).digest(), tuple(x.shape)


def _kept(compute):
    """Keep what a method computes of a call, which knows no kernel: many cases of many relations need the same."""

    @wraps(compute)
    def kept(self, *tensors, **options):
        options = self._all(options)
        of = (compute.__name__, self.fmt, self.arithmetic, *options)
        key = (*of, *(digest(x) if isinstance(x, Tensor) else x for x in (*tensors, *options.values())))
        if key not in _KEPT:
            _KEPT[key] = compute(self, *tensors, **options)
        return _KEPT[key]

    return kept


@dataclass(frozen=True)
class KernelUnderTest:
    """A kernel and the inputs that it is asked on.

    Attributes:
        fn: called fn(q, k, v, **options).
        fmt: of Q, K and V. head_dim, device, seed: of every draw. n: keys, where a relation names no other number.
        able: where it says that the kernel always masks causally, every call asks for that.
        arithmetic: of Baseline, as of `low_bits.baseline_in`.
    """

    fn: Callable
    fmt: Format = BF16
    head_dim: int = 64
    device: str = "cpu"
    able: Capabilities = ALL_CAPABILITIES
    seed: int = 0
    n: int = 256
    arithmetic: str = ""

    def draw(self, n_q: int = 0, n_kv: int = 0, heads: int = 2) -> tuple[Tensor, Tensor, Tensor]:
        """Normal Q (2, heads, n_q, head_dim), K and V (2, heads, n_kv, head_dim) in the format's dtype; n queries or
        keys where none are named."""
        shape, kv_shape = ((2, heads, n or self.n, self.head_dim) for n in (n_q, n_kv))
        q, k, v = (self.rounded(x) for x in _drawn(self.seed, shape, kv_shape))
        return q, k, v

    def rounded(self, x: Tensor) -> Tensor:
        """A float64 tensor of any shape in the format's dtype, on the device."""
        return self.fmt(x.double()).to(self.device, self.fmt.dtype)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options) -> Tensor:
        """The kernel's output (batch, heads, n_q, d_v).

        Raises:
            KernelError: REFUSED where it raises; MALFORMED where it returns no tensor of q's dtype and the shape that
                is due, or NaN or infinite values.
        """
        o = self.anything(q, k, v, **options)
        if not finite(o):
            problem = f"returns {int((~o.isfinite()).sum())} NaN or infinite values of {o.numel()}"
            raise KernelError(Outcome.MALFORMED, problem)
        return o

    def anything(self, q: Tensor, k: Tensor, v: Tensor, **options) -> Tensor:
        """The kernel's output (batch, heads, n_q, d_v), NaN and infinite values too."""
        with self._no_crash(options):
            return call_or_raise(self.fn, self._all(options), q, k, v).detach()

    def gradients(self, dO: Tensor, q: Tensor, k: Tensor, v: Tensor, **options) -> tuple[Tensor, ...]:
        """The kernel's dQ, dK and dV, in the shapes of q, k and v.

        Raises:
            KernelError: REFUSED where it has none; MALFORMED where they hold NaN or infinite values.
        """
        if not self.able.gradients:
            raise KernelError(Outcome.REFUSED, "has no gradients")
        inputs = [x.detach().clone().requires_grad_() for x in (q, k, v)]
        with self._no_crash(options):
            grads = gradients(with_kernel_errors(self.fn)(*inputs, **self._all(options)), inputs, dO)
        if not all(map(finite, grads)):
            raise KernelError(Outcome.MALFORMED, "returns NaN or infinite values in dQ, dK or dV")
        return grads

    @_kept
    def allowed_gradients(self, dO: Tensor, q: Tensor, k: Tensor, v: Tensor, **options) -> tuple[float, ...]:
        """As `allowed`, of dQ, dK and dV: ALLOWED times Baseline's largest error in each."""
        both = []
        for precision in (rounds_scores_twice(self.fmt), Precision.uniform(FP64)):
            tensors = [x.detach().double().requires_grad_() for x in (q, k, v)]
            o = kernels.reference(*tensors, precision=precision, **options)
            both.append(gradients(o, tensors, dO.double()))
        return tuple(ALLOWED[d] * (a - b).abs().max().item() for d, a, b in zip(("dq", "dk", "dv"), *both))

    def golden(self, q: Tensor, k: Tensor, v: Tensor, **options) -> Tensor:
        """The golden value of a call, float64 (batch, heads, n_q, d_v)."""
        return kernels.golden(q, k, v, inputs=self.fmt, **self._all(options))

    @_kept
    def allowed(self, q: Tensor, k: Tensor, v: Tensor, **options) -> float:
        """How far a kernel within the rule may be from the golden value: ALLOWED["o"] times Baseline's largest error on
        the same call. Two answers within the rule are at most twice that apart, |a - b| <= |a - g| + |b - g|; so are a
        kernel's answers to two calls that have one golden value."""
        golden = self.golden(q, k, v, **options)
        baseline = baseline_in(self.arithmetic, self.fmt)(q, k, v, **options)
        return ALLOWED["o"] * (baseline.double() - golden).abs().max().item()

    def apart(self, q: Tensor, k: Tensor, v: Tensor, **options) -> Callable[[], float]:
        """How far two right answers may be apart, 2 `allowed`, as `difference` takes it."""
        return lambda: 2 * self.allowed(q, k, v, **options)

    @contextmanager
    def _no_crash(self, options):
        """Inside, a defect that a call without options shows is no refusal."""
        try:
            yield
        except KernelError as error:
            if options or not crashed(f"{error}"):
                raise
            raise KernelError(Outcome.MALFORMED, f"{error}") from error

    def _all(self, options):
        return (dict(causal=True) if self.able.causal else {}) | options


@lru_cache(maxsize=4)  # one draw serves most cases of most relations
def _drawn(seed, shape, kv_shape):
    return draw("normal", seed, shape, kv_shape)


@dataclass(frozen=True)
class Found:
    """What one case of a relation gave.

    Attributes:
        number: the largest difference of what should be equal, in the units of what is compared; NaN where an answer
            holds NaN.
        limit: up to which two right answers may differ; 0 where they do not, or may not.
        convention: what is given instead, by convention, in words; "" where nothing is.
    """

    number: float
    limit: float = 0.0
    convention: str = ""

    @property
    def times(self) -> float:
        """How many times its limit the number is; 0 of the same bits, which have no limit."""
        return over_baseline(self.number, self.limit) if self.number else 0.0

    @property
    def outcome(self) -> str:
        if self.number == 0:
            return BITWISE
        if self.convention:
            return CONVENTION
        return ROUNDING if self.number <= self.limit else BREAKS


def difference(a: Tensor, b: Tensor | float, limit: float | Callable[[], float] = 0.0) -> Found:
    """How far two answers of one shape are apart; 0 is the same bits (and signs of zero do not count). A limit that is
    a function is computed where they differ."""
    difference = (a.double() - (b.double() if isinstance(b, Tensor) else b)).abs()
    number = math.nan if difference.isnan().any() else difference.max().item()
    return Found(number, (limit() if number else 0.0) if callable(limit) else limit)


def not_asked(why: str) -> KernelError:
    """What a case raises that does not fit the kernel."""
    return KernelError(Outcome.REFUSED, why)


Ask = Callable[[KernelUnderTest], Iterator[dict]]


def cases(*names: str) -> Callable[[Callable[[KernelUnderTest, str], Found]], Ask]:
    """Of one case's function (subject, case) -> Found the generator subject -> rows of every case: case, outcome,
    number, limit, problem. A kernel that raises is not asked; one that returns something unusable is broken."""

    def over(measure: Callable[[KernelUnderTest, str], Found]) -> Ask:
        @wraps(measure)
        def ask(subject: KernelUnderTest) -> Iterator[dict]:
            for case in names:
                row = dict(case=case, number=math.nan, limit=math.nan)
                try:
                    found = measure(subject, case)
                except KernelError as error:
                    outcome = NOT_ASKED if error.outcome in UNSUPPORTED else BROKEN
                    yield row | dict(outcome=outcome, problem=str(error))
                else:
                    numbers = dict(number=found.number, limit=found.limit)
                    yield row | numbers | dict(outcome=found.outcome, problem=found.convention)

        return ask

    return over
