"""Somebody's kernel, called: whatever it does has an outcome, and its errors are told from ours."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from attention_check.adapters import first_output
from attention_check.isolation.worker import Outcome, broken, changed, copies, unusable
from fa_lib.execution.untrusted import message
from fa_lib.kernels.gradients import gradients
from fa_lib.kernels.options import finite, visible_rows

FAULTS = (Outcome.WRONG, Outcome.MALFORMED, Outcome.ENDED)  # of a kernel that has what it was asked for


class KernelError(Exception):
    """A kernel raises, or returns something that no kernel returns. As a text: a verb and its object, "raises ...".

    Attributes:
        outcome: REFUSED (it raises), MALFORMED (it returns no tensor, or one of another shape or dtype), ENDED (it does
            not come back: its process hung or ended) or NOT_CALLED (it did not come back too often before).
    """

    def __init__(self, outcome: Outcome, problem: str):
        super().__init__(problem)
        self.outcome = outcome


@dataclass(frozen=True)
class Answer:
    """What a kernel gave.

    Attributes:
        o: its output; None where it has none of the right shape and dtype. One with NaN or infinite values is kept,
            though the outcome is MALFORMED.
        outcome: ANSWERED, or that of a KernelError.
        problem: in words, a verb and its object; "" where there is none.
    """

    o: torch.Tensor | None
    outcome: Outcome = Outcome.ANSWERED
    problem: str = ""

    @property
    def output(self) -> torch.Tensor:
        """o, of a kernel that gave one."""
        assert self.o is not None, self.problem
        return self.o

    @property
    def finite(self) -> bool:
        """False where it gave an output of the right shape with NaN or infinite values."""
        return self.o is None or self.outcome == Outcome.ANSWERED


@contextmanager
def kernel_errors() -> Iterator[None]:
    """Whatever is raised inside, but for Ctrl-C, is the kernel's: a KernelError, or one that it is already."""
    try:
        yield
    except (KernelError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if broken(error):
            raise KernelError(Outcome.MALFORMED, f"fails: {message(error)}") from error
        raise KernelError(Outcome.REFUSED, f"raises {type(error).__name__}: {message(error)}") from error


@contextmanager
def judged_by_one_thread() -> Iterator[None]:
    """Inside, torch has one thread in this process: a judge computes many small tensors, and threads that wait for each
    other take a third of its time. A kernel's own process has as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def call_or_raise(fn: Callable, options: dict, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """fn(q, k, v, **options); of a kernel that returns several tensors, such as (o, lse), the first.

    Raises:
        KernelError: it raises, or does not return a tensor of q's dtype and of the shape that is due.
    """
    with kernel_errors():
        o = first_output(fn(q, k, v, **options))
    if not isinstance(o, torch.Tensor):
        raise KernelError(Outcome.MALFORMED, f"returns {type(o).__name__}, where a tensor is due")
    if problem := unusable(o, q.device):
        raise KernelError(Outcome.MALFORMED, problem)
    due = (*q.shape[:-1], v.shape[-1])
    if tuple(o.shape) != due or o.dtype != q.dtype:
        got = f"{o.dtype} of shape {tuple(o.shape)}"
        raise KernelError(Outcome.MALFORMED, f"returns {got}, where {q.dtype} of shape {due} is due")
    return o


def with_kernel_errors(fn: Callable) -> Callable:
    """A kernel whose errors, forward and backward, are KernelErrors. It has the bits of `fn`, gradients included."""

    def call(q, k, v, **options):
        if any(x.requires_grad for x in (q, k, v)):
            return _Guarded.apply(fn, options, q, k, v)
        return call_or_raise(fn, options, q, k, v)

    return call


def call_kernel(fn: Callable, q, k, v, **options) -> Answer:
    """Call a kernel, and see that it did what a kernel does: it returns a tensor of q's dtype, of the shape that is due
    and of finite values, and leaves its inputs as they are."""
    given = dict(q=q, k=k, v=v)
    before = copies(given)
    try:
        o = call_or_raise(fn, options, q, k, v)
    except KernelError as error:
        return Answer(None, error.outcome, str(error))
    if names := changed(given, before):
        return Answer(None, Outcome.MALFORMED, f"changes its inputs: {', '.join(names)}")
    if not finite(o):
        return Answer(o, Outcome.MALFORMED, f"returns {nonfinite(o, q, k, v, options)}")
    return Answer(o)


def nonfinite(o: Tensor, q: Tensor, k: Tensor, v: Tensor, options: dict) -> str:
    """What is not finite in an output, in words: how many values, of how many rows, and how many of these see a key."""
    bad = ~o.isfinite()
    rows = bad.any(-1)  # (..., n_q)
    seen = visible_rows(q, k, v, **options).to(rows.device).expand_as(rows)
    where = tuple(rows.nonzero()[0].tolist())
    blind = int((rows & ~seen).sum())
    which = "all of which see keys" if not blind else f"{blind} of which see no key"
    words = f"{int(bad.sum())} values that are NaN or infinite, of {o.numel()}, in {int(rows.sum())} rows, {which}"
    return f"{words}; the first is row {where}"


class _Guarded(torch.autograd.Function):
    """The kernel's own graph inside one node, so that an error of its backward pass is known to be its own."""

    @staticmethod
    def forward(ctx, fn, options, *tensors):
        with torch.enable_grad():
            ctx.given = [x.detach().requires_grad_(x.requires_grad) for x in tensors]
            ctx.o = call_or_raise(fn, options, *ctx.given)
        return ctx.o.detach()

    @staticmethod
    def backward(ctx, dO):
        wanted = [x for x in ctx.given if x.requires_grad]
        with kernel_errors():
            grads = iter(gradients(ctx.o, wanted, dO))
        return None, None, *(next(grads) if x.requires_grad else None for x in ctx.given)
