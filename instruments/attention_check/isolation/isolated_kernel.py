"""A stranger's kernel as a function of this process, whose calls run in another one; and how the kernel behaves there.

It may hang, crash, exit, print, leak or change torch's state: its calls then are errors of its own (`KernelError`), the
process is started again for the next call, and `conduct` has a row for each thing that it did.
"""

import inspect
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from attention_check.isolation.calls import KernelError
from attention_check.isolation.leak import Memory
from attention_check.isolation.process import Ended, Process, size_of
from attention_check.isolation.worker import Outcome
from fa_lib import kernels
from fa_lib.execution.untrusted import Untrusted, first_line
from fa_lib.kernels.kernel_ref import KernelRef, unavailable, uncallable
from fa_lib.kernels.option_names import documented

LIMIT_S = 60.0  # of one call
FIRST_CALL_FACTOR = 5  # times that for the import, and for a process's first call: kernels are compiled there
MOST_ENDINGS = 3  # of its process, after which a kernel is asked no more

KINDS = (
    inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD,
)  # fmt: skip


class IsolatedKernel:
    """f(q, k, v, **options), in a separate process. Its parameters are the kernel's.

    Args:
        kernel: of a module, adapted to nothing. timeout: seconds that a call may take.
    """

    def __init__(self, kernel: KernelRef, timeout: float = LIMIT_S):
        if not timeout > 0:
            raise ValueError(f"timeout: got {timeout!r}; accepted are seconds, more than 0")
        self.kernel, self.timeout = kernel, float(timeout)
        self.threads = torch.get_num_threads()  # of every process of its own, whatever the judge has later
        self.acts: dict[tuple, dict] = {}
        self.printed = dict(stdout=0, stderr=0)
        self.parameters: list | None = None
        self.endings, self.ready, self.dead, self.stillborn = 0, False, False, ""
        self.warmed: set[str] = set()
        self.memory = Memory()
        self.gone: list[tuple[Process, int]] = []
        self.process: Process | None = self._start()

    @property
    def __signature__(self) -> inspect.Signature | None:
        """Of the kernel; of `__call__` where it keeps its own to itself."""
        self.wait()
        return _signature(self.parameters)

    def wait(self) -> None:
        """Until the kernel is imported, or its process has ended.

        Raises:
            ValueError: the kernel cannot be imported, or is no function.
        """
        with suppress(KernelError):
            self._hello()

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
        """What the kernel returns: a tensor, or a tuple of its first two.

        Raises:
            KernelError: REFUSED where it raises; MALFORMED where it returns no tensor of numbers, or changes its
                inputs; ENDED where it does not come back; NOT_CALLED after that happened three times.
        """
        tensors = (q, k, v, *(x for x in options.values() if isinstance(x, Tensor)))
        if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            return _Crossing.apply(self, options, *tensors)
        return self.ask(options, tensors, [False] * len(tensors))[0]

    def ask(self, options: dict, tensors: Sequence[Tensor], wants: Sequence[bool]) -> tuple[Any, "Graph | None"]:
        """One call. wants: of which tensors gradients may be asked for; then a Graph comes with the answer."""
        self._hello()
        names = [name for name, x in options.items() if isinstance(x, Tensor)]
        places = {
            name: ("tensor", 3 + names.index(name)) if name in names else ("value", x) for name, x in options.items()
        }
        reply = self._asked("call", tensors, dict(options=places, wants=[*wants]))
        changed = [("q", "k", "v", *names)[i] for i in reply["changed"]]
        if changed:
            raise KernelError(Outcome.MALFORMED, f"changes its inputs: {', '.join(changed)}")
        results = reply["results"]
        process = self._running()
        self.memory.seen([(x.dtype, x.shape) for x in tensors] + [*wants], results, process.resident())
        graph = Graph(self, process, process.number, size_of(tensors)) if any(wants) else None
        return (tuple(results) if reply["several"] else results[0]), graph

    def backward(self, graph: "Graph", gradients: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of the tensors that were wanted in a call."""
        if graph.process is not self.process:
            raise KernelError(Outcome.ENDED, "has no backward pass: its process ended before")
        return self._asked("backward", gradients, dict(graph=graph.number), graph.size)["results"]

    def conduct(self) -> pd.DataFrame:
        """How the kernel behaved; its process is ended, so that all that it printed is counted. Rows as of `told`."""
        self.close()
        return self.told()

    def told(self) -> pd.DataFrame:
        """How the kernel has behaved.

        Returns:
            rows: what ("hangs", "crashes", "exits", "prints", "leaks", "state", "unasked"), detail (a signal, a stream,
            what is changed), number (seconds, exit code, bytes, bytes a call), times (calls), on_import, at (the first
            call that it was, in words).
        """
        for stream, count in self.printed.items():
            if count:
                self.acts["prints", stream, False] = dict(number=count, times=1, at="")
        if self.memory.growth:
            self.acts["leaks", "", False] = dict(number=self.memory.growth, times=self.memory.calls, at="")
        columns = ["what", "detail", "on_import", "number", "times", "at"]
        rows = [
            dict(what=what, detail=detail, on_import=early) | act for (what, detail, early), act in self.acts.items()
        ]
        return pd.DataFrame(rows, columns=columns)

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.close()
            self._count()
            self.process, self.dead = None, True

    def _start(self):
        return Process(self.kernel, self.threads)

    def _hello(self):
        """A process that has imported the kernel."""
        if self.stillborn:
            raise KernelError(Outcome.ENDED, self.stillborn)
        if self.dead:
            self._act("unasked", "", False, self.endings, "")
            raise KernelError(Outcome.NOT_CALLED, f"was not asked: its process had ended {self.endings} times")
        if self.process is None:
            self.process, self.ready = self._start(), False
        if self.ready:
            return
        self.warmed.clear()
        try:
            reply = self.process.hello(FIRST_CALL_FACTOR * self.timeout)
        except Ended as ended:
            self.stillborn = f"{ended}, when it is imported"  # as it is every time
            raise self._ended(ended, "on import", True) from None
        self._state(reply, True, "on import")
        if reply["outcome"] != Outcome.ANSWERED:
            self.dead = True
            if reply.get("exits"):
                self._act("exits", "sys.exit", True, math.nan, "on import")
                self.stillborn = "ends its process by sys.exit, when it is imported"
                raise KernelError(Outcome.ENDED, self.stillborn)
            raise unavailable(self.kernel, Untrusted(reply.get("text")))
        if reply.get("callable") is not True:
            self.dead = True
            raise uncallable(self.kernel, Untrusted(reply.get("type")))
        self.parameters, self.ready = reply.get("parameters"), True
        if self.parameters is None and (names := documented(self.kernel.function, f"{reply.get('doc')}")):
            self.parameters = [[name, 1, i > 2] for i, name in enumerate(names)]  # by position or by name

    def _running(self) -> Process:
        assert self.process is not None
        return self.process

    def _asked(self, do, tensors, order, due=0):
        """What the process tells of an order, where it is an answer."""
        limit = self.timeout * (1 if do in self.warmed else FIRST_CALL_FACTOR)
        at = f"{do}, " + ", ".join(f"{tuple(x.shape)}" for x in tensors[:2]) + f", {tensors[0].dtype}"
        process = self._running()
        forget, self.gone = [n for process, n in self.gone if process is self.process], []
        try:
            reply = process.ask(tensors, order | dict(do=do, forget=forget), limit, due)
        except Ended as ended:
            raise self._ended(ended, at) from None
        self.warmed.add(do)
        self._state(reply, False, at)
        if reply["outcome"] == Outcome.ANSWERED:
            return reply
        if reply.get("exits"):
            self._act("exits", "sys.exit", False, math.nan, at)
        if reply["outcome"] == Outcome.MALFORMED:
            raise KernelError(Outcome.MALFORMED, first_line(reply.get("problem")))
        error, text = (first_line(reply.get(name)) for name in ("error", "text"))
        raise KernelError(Outcome.REFUSED, f"raises {error}: {text}")

    def _ended(self, ended, at, on_import=False):
        """Note what ended the process, and the KernelError that says so."""
        self._act(ended.what, ended.detail, on_import, ended.number, at)
        self._count()
        self.process, self.endings = None, self.endings + 1
        self.dead = self.dead or self.endings >= MOST_ENDINGS
        return KernelError(Outcome.ENDED, f"{ended}")

    def _state(self, told, on_import, at):
        for name in [*told.get("state", [])][:20]:
            self._act("state", Untrusted(f"{name}"[:60]), on_import, math.nan, at)

    def _act(self, what, detail, on_import, number, at):
        act = self.acts.setdefault((what, detail, on_import), dict(number=number, times=0, at=at))
        act["times"] += 1

    def _count(self):
        for stream, count in self._running().printed.items():
            self.printed[stream] += count


class Graph:
    """What a process keeps of a call for its backward pass, until this is gone. size: bytes of the call's inputs."""

    def __init__(self, fn: IsolatedKernel, process: Process, number: int, size: int):
        self.fn, self.process, self.number, self.size = fn, process, number, size

    def __del__(self):
        self.fn.gone.append((self.process, self.number))


@contextmanager
def isolated(kernel: KernelRef, timeout: float = LIMIT_S) -> Iterator[KernelRef]:
    """Yield a kernel whose function is in a separate process, until the end: it is never imported here. A kernel that
    is built in or registered, or whose function is at hand, stays as it is.

    Args:
        kernel: any. timeout: seconds that a call may take.

    Raises:
        ValueError: a kernel that stays here is none.
    """
    if kernel.is_named:
        kernels.plain(kernel)  # an error where there is none
    if kernel.is_named or kernel.fn is not None:
        yield kernel
        return
    fn = IsolatedKernel(kernel.bare, timeout)
    try:
        yield replace(kernel, fn=fn)
    finally:
        fn.close()


def conduct(kernel: KernelRef) -> pd.DataFrame:
    """Return how a kernel behaved in its process, which ends; no rows for one that ran here."""
    return kernel.fn.conduct() if isinstance(kernel.fn, IsolatedKernel) else pd.DataFrame()


def wait(kernel: KernelRef) -> None:
    """Wait until a kernel is imported.

    Raises:
        ValueError: it cannot be imported, or is no function.
    """
    if isinstance(kernel.fn, IsolatedKernel):
        kernel.fn.wait()


@contextmanager
def all_isolated(refs: Sequence[KernelRef]) -> Iterator[list[KernelRef]]:
    """`isolated` for each of several kernels, all of them imported; those of one function share a process."""
    with ExitStack() as stack:
        loaded = {bare: stack.enter_context(isolated(bare)) for bare in dict.fromkeys(ref.bare for ref in refs)}
        for kernel in loaded.values():
            wait(kernel)
        yield [replace(ref, fn=loaded[ref.bare].fn) for ref in refs]


class _Crossing(torch.autograd.Function):
    """A call and its backward pass, both over there."""

    @staticmethod
    def forward(ctx, fn, options, *tensors):
        answer, ctx.graph = fn.ask(options, tensors, [x.requires_grad for x in tensors])
        results = answer if isinstance(answer, tuple) else (answer,)
        ctx.mark_non_differentiable(*(x for x in results if not x.is_floating_point()))
        return answer

    @staticmethod
    def backward(ctx, *gradients):
        grads = iter(ctx.graph.fn.backward(ctx.graph, gradients))
        return None, None, *(next(grads) if wanted else None for wanted in ctx.needs_input_grad[2:])


def _signature(parameters):
    """Of what a process says; None where it makes none."""
    try:
        return inspect.Signature([
            inspect.Parameter(name, KINDS[kind], default=None if optional else inspect.Parameter.empty)
            for name, kind, optional in parameters
        ])  # fmt: skip
    except (TypeError, ValueError, IndexError):
        return None
