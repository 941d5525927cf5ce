"""A process of its own for a stranger's kernel, from this side: started, asked with a limit of time, and ended with all
that it has started. What it says is looked at before it is believed."""

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
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from attention_check.isolation import worker
from attention_check.isolation.worker import Outcome
from fa_lib.execution import reader_modules
from fa_lib.execution.process_settings import environment
from fa_lib.kernels.kernel_ref import KernelRef

GUARD = ("/bin/sh", "-c", "read end; kill -9 0")  # of the group, when the pipe ends because this process did
LINE = 2**20  # bytes of an answer, without its tensors
START_S = 300.0  # until Python and torch are there
GOODBYE_S = 2.0  # to end by itself
SLICE_S = 0.2  # a process may die and leave its end of the socket to a child
DTYPES = {f"{x}": x for x in vars(torch).values() if isinstance(x, torch.dtype)}


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
    """It imports a kernel when it is made, and is asked for `hello` first.

    Args:
        kernel: of a module.

    Raises:
        RuntimeError: it ends before it has heard of the kernel.

    Attributes:
        printed: bytes that it wrote to "stdout" and "stderr".
    """

    def __init__(self, kernel: KernelRef, threads: int):
        self.inbox, self.outbox, self.said, self.number = _nameless(), _nameless(), b"", 0
        self.printed = dict(stdout=0, stderr=0)
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
        try:
            reply = json.loads(line)
            possible = (Outcome.ANSWERED, Outcome.REFUSED, Outcome.MALFORMED)
            right = reply["number"] == self.number and reply["outcome"] in possible
            right = right and all(isinstance(name, str) for name in reply["state"])
        except (ValueError, KeyError, TypeError, RecursionError):
            right = False
        if not right:
            raise self._dead("answers with something that is no answer")
        return reply

    def _dead(self, problem=""):
        """The Ended of a process that has left, or says nothing that makes sense."""
        try:
            code = self.process.wait(0 if problem else GOODBYE_S)
        except subprocess.TimeoutExpired:
            code = None
        self._kill()
        if code is None:
            return Ended("crashes", problem or "closes its connection to the judge")
        if code < 0:
            name = signal_name(-code)
            return Ended("crashes", f"ends its process by {name}", name)
        return Ended("exits", f"ends its process with exit code {code}", number=code)

    def _kill(self):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.guard.wait()
        for reader in self.readers:
            reader.join(SLICE_S)
        self.socket.close()
        for descriptor in (self.inbox, self.outbox, self.lifeline):
            if descriptor is not None:
                os.close(descriptor)
        self.inbox = self.outbox = self.lifeline = -1

    def _count(self, name):
        """Read what it prints, so that it can go on, and keep how much it was."""
        with getattr(self.process, name) as stream:
            while got := stream.read1(2**16):
                self.printed[name] += len(got)


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
            view, done = memoryview(content.numpy().data), 0
            while done < len(view):
                done += os.pwrite(file, view[done:], end + done)
            end += len(view)
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
        raw, done = memoryview(x.reshape(-1).view(torch.uint8).numpy().data), 0
        while done < size:
            got = os.preadv(file, [raw[done:]], spec["start"] + done)
            if not got:
                raise ValueError("it has written less than it says")
            done += got
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
