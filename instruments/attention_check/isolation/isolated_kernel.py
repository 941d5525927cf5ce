"""A reader's kernel as a function of this process, whose calls run in another one; and how the kernel behaves there.

It may hang, crash, exit, print or change torch's state: its calls then are errors of its own (`KernelError`), the
process is started again for the next call, and `conduct` has a row for each thing that it did.
"""

import inspect
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from attention_check.isolation import worker
from attention_check.isolation.calls import KernelError
from attention_check.isolation.worker import Outcome
from fa_lib import kernels
from fa_lib.execution import reader_modules
from fa_lib.execution.process_settings import environment
from fa_lib.execution.untrusted import first_line
from fa_lib.kernels.kernel_ref import KernelRef, unavailable, uncallable

LIMIT_S = 60.0  # of one call
MODELLED = 10  # times that where a GPU is modelled: its machine itself finds out what does not end
FIRST_CALL_FACTOR = 5  # times that for the import, and for a process's first call: kernels are compiled there
MOST_ENDINGS, MOST_QUICK_ENDINGS = 3, 20  # of its process, after which a kernel is not called any more
QUICK_S = 5.0  # a call that ends its process sooner costs the check little

INSIDE = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from attention_check.isolation.worker import serve
serve(**json.loads(sys.argv[2]))
"""
FAULT = "Fault: "  # the last words of an extension that ends its process for an error of the PTX machine's
SAID = 2**12  # bytes of what is printed last that are kept
START_S = 300.0  # until Python and torch are there
END_S = 10.0  # from the end of its connection to that of the process
GOODBYE_S = 2.0  # to end when it is told to


class Ended(Exception):
    """The process is no more. As a text: a verb and its object, "ends ...".

    Attributes:
        what: "hangs", "crashes" or "exits". detail: a signal's name, or "". number: the limit in seconds, or the exit
            code.
    """

    def __init__(self, what: str, problem: str, detail: str = "", number: float = math.nan):
        super().__init__(problem)
        self.what, self.detail, self.number = what, detail, number


class Process:
    """The judge's side of `worker.serve`. It begins to import the kernel when it is made.

    Attributes:
        printed: bytes that it wrote to "stdout" and "stderr". last: the end of the latter.
        done: of "import", "call" and "backward" what it has answered. end: what ended it, in words; "" before that.
        forget: numbers of calls that need no backward pass any more.
    """

    def __init__(self, kernel: KernelRef, threads: int):
        self.printed, self.last = dict(stdout=0, stderr=0), b""
        self.done, self.end, self.forget = set[str](), "", list[int]()
        self.socket, theirs = socket.socketpair()
        self.file: Any = self.socket.makefile("rwb")
        named = dict(module=kernel.module, function=kernel.function, gpu=kernel.gpu)
        given = dict(descriptor=theirs.fileno(), kernel=named, threads=threads, path=reader_modules.path())
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-u", "-c", INSIDE, json.dumps(sys.path), json.dumps(given)], env=environment(),
            pass_fds=[theirs.fileno()], process_group=0, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        theirs.close()
        self.readers = [threading.Thread(target=self._count, args=(name,), daemon=True) for name in self.printed]
        for reader in self.readers:
            reader.start()

    def ask(self, do: str, limit: float, order: dict) -> dict:
        """What comes of an order, "call" or "backward", as `worker.Worker.answer` tells it; or of the "import", as
        `worker.serve` does.

        Raises:
            Ended: the process dies, or takes more than `limit` seconds.
            RuntimeError: it ended before the import, and the kernel has nothing to do with that.
        """
        if do == "import":
            try:
                self._reply(START_S)
            except Ended as ended:
                raise RuntimeError(f"kernel: the process for it {ended}, before it is imported") from ended
            return self._reply(limit)
        forget = [self.forget.pop() for _ in range(len(self.forget))]  # graphs add to this very list
        return self._reply(limit, order | dict(do=do, forget=forget))

    def close(self) -> None:
        """End it, and what it has started; by itself if it does so at once, so that what it printed is told."""
        if self.file.closed:
            return
        with suppress(OSError, subprocess.TimeoutExpired):
            self.socket.settimeout(GOODBYE_S)
            worker.send(self.file, None)
            self.process.wait(GOODBYE_S)
        self._kill()

    def _reply(self, limit, order=None):
        """The reply to an order, or the next one. What takes long over there is said on stderr before."""
        deadline = time.monotonic() + limit
        try:
            self.socket.settimeout(limit)
            if order is not None:
                worker.send(self.file, order)
            while True:
                self.socket.settimeout(max(deadline - time.monotonic(), 1e-3))
                reply = worker.receive(self.file)
                if "note" not in reply:
                    return reply
                print(first_line(reply["note"]), file=sys.stderr)
        except TimeoutError:
            self._kill()
            raise Ended("hangs", f"does not answer within {limit:g} s", number=limit) from None
        except (EOFError, OSError):
            raise self._ended() from None
        except Exception as error:  # in the middle of a reply: too large for this process, or no reply
            self._kill()
            raise Ended("crashes", f"gives a reply that cannot be read, {type(error).__name__}") from error

    def _ended(self):
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S)
        code = self.process.poll()
        self._kill()
        if code is None:
            return Ended("crashes", "closes its connection to the judge")
        said = first_line(self.last.decode(errors="replace").strip().rpartition("\n")[2])
        after = f", after the line {said!r}" if said else ""
        if code < 0:
            name = signal_name(-code)
            return Ended("crashes", f"ends its process by {name}{after}", name)
        return Ended("exits", f"ends its process with exit code {code}{after}", number=code)

    def _kill(self):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for reader in self.readers:
            reader.join(GOODBYE_S)
        self.socket.close()
        with suppress(OSError):  # of what was not sent
            self.file.close()

    def _count(self, name):
        """Read what it prints, so that it can go on, and keep how much it was."""
        with getattr(self.process, name) as stream:
            while got := stream.read1(2**16):
                self.printed[name] += len(got)
                self.last = (self.last + got)[-SAID:] if name == "stderr" else self.last


def signal_name(number: int) -> str:
    """ "SIGKILL"; "signal 40" of a real-time signal, for which Python has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class IsolatedKernel:
    """f(q, k, v, **options) of a module's kernel that is adapted to nothing, in a separate process. Its signature is
    the kernel's. timeout: seconds that a call may take."""

    def __init__(self, kernel: KernelRef, timeout: float = LIMIT_S):
        if not timeout > 0:
            raise ValueError(f"timeout: got {timeout!r}; accepted are seconds, more than 0")
        self.kernel, self.timeout = kernel, timeout * (MODELLED if kernel.gpu else 1)
        self.threads = torch.get_num_threads()  # of each process, whatever the judge has later
        self.acts: dict[tuple, dict] = {}
        self.signature: inspect.Signature | None = None
        self.calls, self.endings, self.late_endings, self.over = 0, 0, 0, False
        self.__name__ = kernel.function
        self.processes = [Process(kernel, self.threads)]

    @property
    def __signature__(self) -> inspect.Signature:
        self.wait()
        if self.signature is None:
            raise ValueError(f"kernel: {self.kernel.label} has no signature")
        return self.signature

    def wait(self) -> None:
        """Until the kernel is imported, or its process has ended. A ValueError: it cannot be imported, or is no
        function."""
        with suppress(KernelError):
            self._started()

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *others: Any, **options: Any) -> Any:
        """What the kernel returns: a tensor, or a tuple of its first two. others: are passed by position, too.

        Raises:
            KernelError: REFUSED where it raises; MALFORMED where it returns no tensor of numbers, or changes its
                inputs; ENDED where it does not come back; NOT_CALLED after that happened too often.
        """
        args = (q, k, v, *others)
        tensors = worker.tensors_of(args, options).values()
        if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            return _Crossing.apply(self, args, options, *tensors)
        return self.call(args, options, [False] * len(tensors))

    def call(self, args: Sequence, options: Mapping[str, Any], wants: Sequence[bool]) -> Any:
        """One call. wants: of which of its tensors gradients may be asked for."""
        process = self._started()
        self.calls += 1
        order = dict(number=self.calls, args=args, options=options, wants=wants)
        return self._answer(process, "call", args, order)

    def backward(self, process: Process, number: int, dO: Tensor) -> list[Tensor]:
        """The gradients of the tensors that were wanted in a call, by its number."""
        if process.end:
            raise KernelError(Outcome.ENDED, "has no backward pass: its process ended before")
        return self._answer(process, "backward", [dO], dict(number=number, dO=dO))

    def conduct(self) -> pd.DataFrame:
        """How the kernel behaved; its process is ended, so that all that it printed is counted. Rows as of `told`."""
        self.close()
        return self.told()

    def told(self) -> pd.DataFrame:
        """How the kernel has behaved.

        Returns:
            rows: what ("hangs", "crashes", "exits", "prints", "state", "unasked"), detail (a signal, a stream, what is
            changed), number (seconds, exit code, bytes), times (calls), on_import, at (the first call that it was, in
            words).
        """
        for stream in ("stdout", "stderr"):
            if count := sum(process.printed[stream] for process in self.processes):
                self.acts["prints", stream, False] = dict(number=count, times=1, at="")
        rows = [(*key, *act.values()) for key, act in self.acts.items()]
        return pd.DataFrame(rows, columns=["what", "detail", "on_import", "number", "times", "at"])

    def close(self) -> None:
        """End the process."""
        self.over = True
        if not self.processes[-1].end:
            self.processes[-1].close()
            self.processes[-1].end = "is closed"

    def _started(self) -> Process:
        """A process that has imported the kernel."""
        process = self.processes[-1]
        if process.end and "import" not in process.done:  # it ends there every time
            raise KernelError(Outcome.ENDED, process.end)
        if self.over:
            self._act("unasked", "", False, self.endings, "")
            raise KernelError(Outcome.NOT_CALLED, f"was not called: its process had ended {self.endings} times")
        if process.end:
            process = Process(self.kernel, self.threads)
            self.processes.append(process)
        if "import" in process.done:
            return process
        reply = self._reply(process, "import", "on import", {})
        self.over = "raised" in reply or not reply["callable"]
        if "raised" in reply:
            raise unavailable(self.kernel, reply["raised"])
        if not reply["callable"]:
            raise uncallable(self.kernel, reply["type"])
        self.signature, self.__doc__ = reply["signature"], reply["doc"]
        return process

    def _answer(self, process, do, tensors, order):
        """What the kernel answers to an order."""
        at = f"{do}, " + ", ".join(f"{tuple(x.shape)}" for x in tensors[:2]) + f", {tensors[0].dtype}"
        reply = self._reply(process, do, at, order)
        if "raised" in reply:
            raise KernelError(Outcome.REFUSED, f"raises {first_line(reply['raised'])}")
        if "problem" in reply:
            raise KernelError(Outcome.MALFORMED, first_line(reply["problem"]))
        return reply["answer"]

    def _reply(self, process, do, at, order):
        """What the process tells; the kernel's conduct is noted."""
        limit = self.timeout * (1 if do in process.done else FIRST_CALL_FACTOR)
        on_import = do == "import"
        begun = time.monotonic()
        try:
            reply = process.ask(do, limit, order)
        except Ended as ended:
            process.end = f"{ended}, when it is imported" if on_import else f"{ended}"
            if FAULT not in process.end:  # else that is the finding, and the end follows from it
                self._act(ended.what, ended.detail, on_import, ended.number, at)
            self.endings += 1
            self.late_endings += ended.what == "hangs" or time.monotonic() - begun > QUICK_S
            self.over = self.late_endings >= MOST_ENDINGS or self.endings >= MOST_QUICK_ENDINGS
            raise KernelError(Outcome.ENDED, process.end) from None
        process.done.add(do)
        for name in reply["state"]:
            self._act("state", name, on_import, math.nan, at)
        return reply

    def _act(self, what, detail, on_import, number, at):
        act = self.acts.setdefault((what, detail, on_import), dict(number=number, times=0, at=at))
        act["times"] += 1


@contextmanager
def isolated(kernel: KernelRef, timeout: float = LIMIT_S) -> Iterator[KernelRef]:
    """Yield a kernel whose function is in a separate process, until the end: it is never imported here. A kernel that
    is built in or registered, or whose function is at hand, stays as it is. timeout: seconds that a call may take.

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
    """Wait until a kernel is imported. A ValueError: it cannot be, or is no function."""
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
    def forward(ctx, fn, args, options, *tensors):
        answer = fn.call(args, options, [x.requires_grad for x in tensors])
        ctx.fn, ctx.process, ctx.number = fn, fn.processes[-1], fn.calls
        weakref.finalize(ctx, ctx.process.forget.append, ctx.number)  # of a list that stays the same
        if isinstance(answer, tuple):
            ctx.mark_non_differentiable(*answer[1:])
        return answer

    @staticmethod
    def backward(ctx, dO, *_):
        grads = iter(ctx.fn.backward(ctx.process, ctx.number, dO))
        return None, None, None, *(next(grads) if wanted else None for wanted in ctx.needs_input_grad[3:])
