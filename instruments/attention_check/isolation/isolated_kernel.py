"""A stranger's kernel as a function of this process, whose calls run in another one; and how the kernel behaves there.

It may hang, crash, exit, print, leak or change torch's state: its calls then are errors of its own (`KernelError`), the
process is started again for the next call, and `conduct` has a row for each thing that it did. What the process says is
looked at before it is believed.
"""

import inspect
import json
import math
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from attention_check.adapters import documented
from attention_check.isolation import worker
from attention_check.isolation.calls import KernelError
from attention_check.isolation.worker import Outcome
from fa_lib import kernels
from fa_lib.execution import reader_modules
from fa_lib.execution.process_settings import environment
from fa_lib.execution.untrusted import Untrusted, first_line
from fa_lib.kernels.kernel_ref import KernelRef, unavailable, uncallable

LIMIT_S = 60.0  # of one call
MODELLED = 10  # times that where a GPU is modelled: its machine itself finds out what does not end
FIRST_CALL_FACTOR = 5  # times that for the import, and for a process's first call: kernels are compiled there
MOST_ENDINGS, MOST_QUICK_ENDINGS = 3, 20  # of its process, after which a kernel is not called any more
QUICK_S = 5.0  # a call that ends its process sooner costs the check little

Kind = type(inspect.Parameter.KEYWORD_ONLY)  # an enumeration, by whole numbers
FAULT = "Fault: "  # the last words of an extension that ends its process for an error of the PTX machine's
GUARD = ("/bin/sh", "-c", "read end; kill -9 0")  # of the group, when the pipe ends because this process did
LINE = 2**20  # bytes of an answer, without its tensors
MOST_NOTES = 20  # that are said
SAID = 2**12  # bytes of what is printed last that are kept
TROUBLES = ("failed", "access", "unwritten", "race", "other")  # of launches
TOLD = 200  # characters of what is told of one
START_S = 300.0  # until Python and torch are there
GOODBYE_S = 2.0  # to end by itself
SLICE_S = 0.2  # a process may die and leave its end of the socket to a child
DTYPES = {f"{x}": x for x in vars(torch).values() if isinstance(x, torch.dtype)}
WARM = 8  # equal calls, before memory is looked at: allocators keep some
LEAK = 0.9  # of an output's bytes: a kernel that holds on to its outputs grows by 1 a call
PARTS = 8  # of the calls, in each of which the process has to grow
LEAST = 2**19  # bytes of growth in each half of the calls: less may be an allocator's


class Ended(Exception):
    """The process is no more. As a text: a verb and its object, "ends ...".

    Attributes:
        what: "hangs", "crashes" or "exits". detail: a signal's name, or "". number: the limit in seconds, or the exit
            code.
    """

    def __init__(self, what: str, problem: str, detail: str = "", number: float = math.nan):
        super().__init__(problem)
        self.what, self.detail, self.number = what, detail, number


def size_of(tensors: Sequence[Tensor]) -> int:
    """Bytes of their values."""
    return sum(x.nbytes for x in tensors)


class Process:
    """It imports a module's kernel when it is made, and is asked for `hello` first.

    Raises:
        RuntimeError: it ends before it has heard of the kernel.

    Attributes:
        printed: bytes that it wrote to "stdout" and "stderr". last: the end of the latter.
    """

    def __init__(self, kernel: KernelRef, threads: int):
        self.inbox, self.outbox, self.said, self.number = _nameless(), _nameless(), b"", 0
        self.printed, self.last, self.notes = dict(stdout=0, stderr=0), b"", 0
        self.socket, theirs = socket.socketpair()
        ending, self.lifeline = os.pipe()
        descriptors = (theirs.fileno(), self.inbox, self.outbox)
        command = [sys.executable, "-P", "-u", worker.__file__, *map(str, descriptors)]
        self.process = subprocess.Popen(
            command, pass_fds=descriptors, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, process_group=0,
        )  # fmt: skip
        self.guard = subprocess.Popen(
            GUARD, stdin=ending, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=self.process.pid
        )
        theirs.close()
        os.close(ending)
        self.readers = [threading.Thread(target=self._count, args=(name,), daemon=True) for name in self.printed]
        for reader in self.readers:
            reader.start()
        try:
            order = dict(module=kernel.module, function=kernel.function, gpu=kernel.gpu, threads=threads)
            self._send(order | dict(path=reader_modules.path()))
        except Ended as ended:
            raise _not_begun(ended) from ended

    def hello(self, limit: float) -> dict:
        """What came of the import, as `worker.serve` tells it.

        Raises:
            Ended: it did not survive that, or takes more than `limit` seconds.
            RuntimeError: there is no process, and the kernel has nothing to do with that.
        """
        try:
            self._answer(START_S)
        except Ended as ended:
            raise _not_begun(ended) from ended
        return self._answer(limit)

    def ask(self, tensors: Sequence[Tensor], order: dict, limit: float, due: int = 0) -> dict:
        """What `worker.Worker.answer` tells of an order, and `results` as tensors on the device of the first.

        Args:
            order: do, number of the graph, forget, and what the worker wants to know of a call.
            due: bytes that results may have beside those of the tensors: gradients are as large as a call's inputs.

        Raises:
            Ended: it dies, takes more than `limit` seconds, or answers with something else than an answer.
        """
        if self.said:
            raise self._dead("answers before it is asked")
        self.number += 1
        most = 2**20 + 4 * (due + size_of(tensors))
        storages, specs = pack(self.inbox, tensors)
        self._send(order | dict(number=self.number, storages=storages, tensors=specs, most=most))
        reply = self._answer(limit)
        try:
            if reply["outcome"] == Outcome.ANSWERED:
                reply["changed"] = [i for i in range(len(tensors)) if i in reply["changed"]]
                reply["results"] = unpack(self.outbox, reply["results"], most, tensors[0].device)
            return reply
        except (KeyError, TypeError, ValueError, OverflowError, RuntimeError, OSError) as error:
            raise self._dead("answers with something that is no answer") from error

    def resident(self) -> int | None:
        """Bytes of memory that it holds; None where the system does not tell."""
        try:
            with open(f"/proc/{self.process.pid}/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, IndexError):
            return None

    def close(self) -> None:
        """End it, and what it has started; by itself if it does so at once, so that what it printed is told."""
        with suppress(OSError, subprocess.TimeoutExpired):
            self.socket.shutdown(socket.SHUT_RDWR)
            self.process.wait(GOODBYE_S)
        self._kill()

    def _send(self, order):
        message = pickle.dumps(order)
        try:
            self.socket.settimeout(GOODBYE_S)
            self.socket.sendall(struct.pack("<Q", len(message)) + message)
        except OSError:
            raise self._dead() from None

    def _answer(self, limit):
        deadline = time.monotonic() + limit
        while True:
            try:
                reply = json.loads(self._line(deadline, limit))
                if "note" in reply:
                    self._note(reply["note"])
                    continue
                possible = (Outcome.ANSWERED, Outcome.REFUSED, Outcome.MALFORMED)
                right = reply["number"] == self.number and reply["outcome"] in possible
                right = right and all(isinstance(name, str) for name in reply["state"])
            except (ValueError, KeyError, TypeError, RecursionError):
                right = False
            if not right:
                raise self._dead("answers with something that is no answer")
            return reply

    def _note(self, text):
        """Say what takes long, of the process's own: it is none of the kernel's prints."""
        self.notes += 1
        if self.notes <= MOST_NOTES:
            print(first_line(text), file=sys.stderr)

    def _line(self, deadline, limit):
        while b"\n" not in self.said:
            left = deadline - time.monotonic()
            if left <= 0:
                self._kill()
                raise Ended("hangs", f"does not answer within {limit:g} s", number=limit)
            self.socket.settimeout(min(left, SLICE_S))
            try:
                got = self.socket.recv(2**16)
            except TimeoutError:
                if self.process.poll() is not None:
                    raise self._dead() from None
                continue
            except OSError:
                got = b""
            self.said += got
            if not got or len(self.said) > LINE:
                raise self._dead()
        line, _, self.said = self.said.partition(b"\n")
        return line

    def _dead(self, problem=""):
        """The Ended of a process that has left, or says nothing that makes sense."""
        try:
            code = self.process.wait(0 if problem else GOODBYE_S)
        except subprocess.TimeoutExpired:
            code = None
        self._kill()
        if code is None:
            return Ended("crashes", problem or "closes its connection to the judge")
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
        self.guard.wait()
        for reader in self.readers:
            reader.join(SLICE_S)
        self.socket.close()
        for descriptor in (self.inbox, self.outbox, self.lifeline):
            os.close(descriptor)
        self.inbox = self.outbox = self.lifeline = -1

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


def pack(file: int, tensors: Sequence[Tensor]) -> tuple[list, list[dict]]:
    """Write tensors as they lie in memory: each storage once, and of each tensor where it lies in its storage.

    Returns:
        storages: (first byte, bytes, device). specs: storage (its number), offset, shape, stride, dtype.
    """
    storages: dict[tuple, tuple] = {}
    specs, end = [], 0
    for x in tensors:
        x = x.detach()
        raw = x.untyped_storage()
        key = (x.device, raw.data_ptr(), raw.nbytes())
        if key not in storages:
            content = torch.empty(0, dtype=torch.uint8, device=x.device).set_(raw).cpu()
            storages[key] = (end, raw.nbytes(), f"{x.device}")
            worker.write_at(file, content, end)
            end += raw.nbytes()
        lies = dict(offset=x.storage_offset(), shape=tuple(x.shape), stride=x.stride(), dtype=x.dtype)
        specs.append(dict(storage=[*storages].index(key), **lies))
    return [*storages.values()], specs


def unpack(file: int, specs: Any, most: int, device: torch.device) -> list[Tensor]:
    """Read tensors of which the other side says dtype, shape, start and size.

    Raises:
        KeyError, TypeError, ValueError, OverflowError, RuntimeError, OSError: what it says makes no sense.
    """
    found = []
    if not specs or sum(spec["size"] for spec in specs) > most:
        raise ValueError("it says nothing, or more than is due")
    for spec in specs:
        dtype, shape = DTYPES[spec["dtype"]], [*map(int, spec["shape"])]
        size = math.prod(shape) * dtype.itemsize
        if min([0, spec["start"], *shape]) < 0 or size != spec["size"]:
            raise ValueError("its numbers do not fit each other")
        x = torch.empty(shape, dtype=dtype)
        worker.read_at(file, x.reshape(-1).view(torch.uint8), spec["start"])
        found.append(x.to(device))
    return found


def _not_begun(ended):
    """Of a process that ended before the kernel was imported: no fault of the kernel's."""
    return RuntimeError(f"kernel: the process for it {ended}, before it is imported")


def _nameless():
    """The descriptor of a file in memory that has no name, so that nothing is left of it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("tensors")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Memory:
    """Whether a process grows where equal calls follow each other. growth: bytes a call, 0 where it does not; calls:
    those that were looked at."""

    def __init__(self):
        self.growth, self.calls, self.key, self.sizes = 0.0, 0, None, []

    def seen(self, key: Any, results: Sequence[Tensor], resident: int | None) -> None:
        """A call, and what the process holds after it."""
        if key != self.key:
            self.key, self.sizes = key, []
        if resident is None:
            return
        self.sizes.append(resident)
        sizes = self.sizes[WARM:]
        half = (len(sizes) - 1) // 2
        if half < WARM:
            return
        due = max(LEAST, LEAK * half * size_of(results))
        parts = [sizes[2 * half * i // PARTS] for i in range(PARTS + 1)]
        steady = all(b > a for a, b in pairwise(parts))  # an allocator grows by a few jumps
        if steady and min(sizes[half] - sizes[0], sizes[2 * half] - sizes[half]) >= due:
            self.growth, self.calls = (sizes[2 * half] - sizes[0]) / (2 * half), 2 * half


class IsolatedKernel:
    """f(q, k, v, **options) of a module's kernel that is adapted to nothing, in a separate process. Its parameters are
    the kernel's. timeout: seconds that a call may take."""

    def __init__(self, kernel: KernelRef, timeout: float = LIMIT_S):
        if not timeout > 0:
            raise ValueError(f"timeout: got {timeout!r}; accepted are seconds, more than 0")
        self.kernel, self.timeout = kernel, timeout * (MODELLED if kernel.gpu else 1)
        self.threads = torch.get_num_threads()  # of every process of its own, whatever the judge has later
        self.acts: dict[tuple, dict] = {}
        self.launched: dict[str, dict] = {}
        self.printed = dict(stdout=0, stderr=0)
        self.parameters: Any = None  # as its process tells them
        self.endings, self.late_endings, self.ready, self.dead, self.stillborn = 0, 0, False, False, ""
        self.warmed: set[str] = set()
        self.memory = Memory()
        self.gone: list[tuple[Process, int]] = []
        self.process: Process | None = Process(kernel, self.threads)

    @property
    def __signature__(self) -> inspect.Signature | None:
        """Of the kernel; None, which is that of `__call__`, where it keeps its own to itself or makes none."""
        self.wait()
        try:
            return inspect.Signature([
                inspect.Parameter(name, Kind(kind), default=None if optional else inspect.Parameter.empty)
                for name, kind, optional in self.parameters
            ])  # fmt: skip
        except (TypeError, ValueError):
            return None

    def wait(self) -> None:
        """Until the kernel is imported, or its process has ended.

        Raises:
            ValueError: the kernel cannot be imported, or is no function.
        """
        with suppress(KernelError):
            self._hello()

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *others: Any, **options: Any) -> Any:
        """What the kernel returns: a tensor, or a tuple of its first two. others: are passed by position, too.

        Raises:
            KernelError: REFUSED where it raises; MALFORMED where it returns no tensor of numbers, or changes its
                inputs; ENDED where it does not come back; NOT_CALLED after that happened too often.
        """
        given: dict[Any, Any] = {**dict(enumerate(others, 3)), **options}
        tensors = (q, k, v, *(x for x in given.values() if isinstance(x, Tensor)))
        if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            return _Crossing.apply(self, given, *tensors)
        return self.ask(given, tensors, [False] * len(tensors))[0]

    def ask(self, options: dict, tensors: Sequence[Tensor], wants: Sequence[bool]) -> tuple[Any, "Graph | None"]:
        """One call. wants: of which tensors gradients may be asked for; then a Graph comes with the answer."""
        process = self._hello()
        names = [name for name, x in options.items() if isinstance(x, Tensor)]
        places = {name: ("value", x) for name, x in options.items()}
        places |= {name: ("tensor", at) for at, name in enumerate(names, 3)}
        reply = self._asked(process, "call", tensors, dict(options=places, wants=[*wants]))
        named = [f"argument {name + 1}" if isinstance(name, int) else name for name in names]
        changed = [("q", "k", "v", *named)[i] for i in reply["changed"]]
        if changed:
            raise KernelError(Outcome.MALFORMED, f"changes its inputs: {', '.join(changed)}")
        results = reply["results"]
        self.memory.seen([(x.dtype, x.shape) for x in tensors] + [*wants], results, process.resident())
        graph = Graph(self, process, process.number, size_of(tensors)) if any(wants) else None
        return (tuple(results) if reply["several"] else results[0]), graph

    def backward(self, graph: "Graph", gradients: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of the tensors that were wanted in a call."""
        if graph.process is not self.process:
            raise KernelError(Outcome.ENDED, "has no backward pass: its process ended before")
        return self._asked(graph.process, "backward", gradients, dict(graph=graph.number), graph.size)["results"]

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
        rows = [(*key, *act.values()) for key, act in self.acts.items()]
        return pd.DataFrame(rows, columns=["what", "detail", "on_import", "number", "times", "at"])

    def launches(self) -> pd.DataFrame:
        """What it launched on the GPU that is modelled.

        Returns:
            rows, one a kernel: kernel, launches, grid (the largest), block, static, dynamic and limit (bytes of shared
            memory), registers and resident (blocks of a multiprocessor), of the launch with the most shared memory;
            registers and resident are NaN where ptxas is not there. failed, access (out of bounds or misaligned),
            unwritten, race and other: where, False is nowhere, None is that it was not looked for.
        """
        rows = [each | {name: each[name] != "" and each[name] for name in TROUBLES} for each in self.launched.values()]
        return pd.DataFrame(rows)

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.close()
            self._forget()
            self.dead = True

    def _hello(self) -> Process:
        """A process that has imported the kernel."""
        if self.stillborn:
            raise KernelError(Outcome.ENDED, self.stillborn)
        if self.dead:
            self._act("unasked", "", False, self.endings, "")
            raise KernelError(Outcome.NOT_CALLED, f"was not called: its process had ended {self.endings} times")
        if self.process is None:
            self.process, self.ready = Process(self.kernel, self.threads), False
        if self.ready:
            return self.process
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
                self.stillborn = "ends its process by sys.exit, when it is imported"
                raise KernelError(Outcome.ENDED, self.stillborn)
            raise unavailable(self.kernel, Untrusted(reply.get("text")))
        if reply.get("callable") is not True:
            self.dead = True
            raise uncallable(self.kernel, Untrusted(reply.get("type")))
        self.parameters, self.ready = reply.get("parameters"), True
        if self.parameters is None and (names := documented(self.kernel.function, f"{reply.get('doc')}")):
            self.parameters = [[name, 1, i > 2] for i, name in enumerate(names)]  # by position or by name
        return self.process

    def _asked(self, process, do, tensors, order, due=0):
        """What the process tells of an order, where it is an answer."""
        limit = self.timeout * (1 if do in self.warmed else FIRST_CALL_FACTOR)
        at = f"{do}, " + ", ".join(f"{tuple(x.shape)}" for x in tensors[:2]) + f", {tensors[0].dtype}"
        forget, self.gone = [n for its, n in self.gone if its is process], []
        begun = time.monotonic()
        try:
            reply = process.ask(tensors, order | dict(do=do, forget=forget), limit, due)
        except Ended as ended:
            raise self._ended(ended, at, late=time.monotonic() - begun > QUICK_S) from None
        self.warmed.add(do)
        self._state(reply, False, at)
        if reply["outcome"] == Outcome.ANSWERED:
            return reply
        if reply["outcome"] == Outcome.MALFORMED:
            raise KernelError(Outcome.MALFORMED, first_line(reply.get("problem")))
        error, text = (first_line(reply.get(name)) for name in ("error", "text"))
        raise KernelError(Outcome.REFUSED, f"raises {error}: {text}")

    def _ended(self, ended, at, on_import=False, late=False):
        """Note what ended the process, and whether late, and the KernelError that says so."""
        if FAULT not in f"{ended}":  # else that is the finding, and the end follows from it
            self._act(ended.what, ended.detail, on_import, ended.number, at)
        self._forget()
        self.endings += 1
        self.late_endings += late or ended.what == "hangs"
        self.dead = self.dead or self.late_endings >= MOST_ENDINGS or self.endings >= MOST_QUICK_ENDINGS
        return KernelError(Outcome.ENDED, f"{ended}")

    def _state(self, told, on_import, at):
        for name in [*told.get("state", [])][:20]:
            self._act("state", Untrusted(f"{name}"[:60]), on_import, math.nan, at)
        if told.get("exits"):
            self._act("exits", "sys.exit", on_import, math.nan, at)
        with suppress(KeyError, TypeError, ValueError):  # what it says of itself may be nonsense
            for each in told.get("launches", ()):
                self._launched(each)

    def _launched(self, told):
        """Add what is told of a kernel's launches to what was told before."""
        new: dict[str, Any] = {name: int(told[name]) for name in ("launches", "static", "dynamic", "limit")}
        new |= {name: None if told[name] is None else int(told[name]) for name in ("registers", "resident")}
        new |= {name: (*map(int, told[name]),) for name in ("grid", "block")}
        new |= {name: None if told[name] is None else Untrusted(f"{told[name]}"[:TOLD]) for name in TROUBLES}
        kernel = Untrusted(f"{told['kernel']}"[:TOLD])
        old = self.launched.get(kernel, new)
        most = max(old, new, key=lambda each: (each["static"] + each["dynamic"], math.prod(each["block"])))
        self.launched[kernel] = dict(kernel=kernel) | most | dict(
            launches=new["launches"] + (0 if old is new else old["launches"]),
            grid=max(old["grid"], new["grid"], key=math.prod),
            **{name: max(old[name], new[name], key=lambda at: (at is not None, bool(at))) for name in TROUBLES},
        )  # fmt: skip

    def _act(self, what, detail, on_import, number, at):
        act = self.acts.setdefault((what, detail, on_import), dict(number=number, times=0, at=at))
        act["times"] += 1

    def _forget(self):
        """The process has ended: keep how much it has printed."""
        assert self.process is not None
        for stream, count in self.process.printed.items():
            self.printed[stream] += count
        self.process = None


class Graph:
    """What a process keeps of a call for its backward pass, until this is gone. size: bytes of the call's inputs."""

    def __init__(self, fn: IsolatedKernel, process: Process, number: int, size: int):
        self.fn, self.process, self.number, self.size = fn, process, number, size

    def __del__(self):
        self.fn.gone.append((self.process, self.number))


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


def launches(kernel: KernelRef) -> pd.DataFrame:
    """Return what a kernel launched, rows as of `IsolatedKernel.launches`; none for one that ran here."""
    return kernel.fn.launches() if isinstance(kernel.fn, IsolatedKernel) else pd.DataFrame()


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
