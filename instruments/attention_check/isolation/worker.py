"""The process in which a stranger's kernel runs: it imports the kernel, and answers calls. `process` starts it, by the
path of this file, which therefore imports nothing of fa_lib.

It is told what to do by pickles, and answers in lines of JSON: nothing of the stranger's is unpickled by who judges it.
The tensors of both lie as raw bytes in two files that have no name: one that `process` writes, one that this writes.
"""

import ctypes
import importlib
import inspect
import json
import logging
import os
import pickle
import random
import socket
import struct
import sys
from collections.abc import Callable
from enum import StrEnum
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from operator import is_
from pathlib import Path
from typing import Any

import numpy as np
import torch


class Outcome(StrEnum):
    """What comes of a call of a kernel."""

    ANSWERED = "answered"
    REFUSED = "refused"  # it raises
    MALFORMED = "malformed"  # it returns no tensor, or one of another shape or dtype or not finite, or changes inputs
    WRONG = "wrong"  # it answers another question
    ENDED = "ended"  # it does not come back: its process hung or ended
    NOT_CALLED = "not_called"  # it did not come back too often before


ILLEGAL = ("illegal memory access", "misaligned address", "unspecified launch failure")  # in errors of CUDA's
UNSUPPORTED = (Outcome.REFUSED, Outcome.NOT_CALLED)  # what is no answer, and no fault either
HERE = Path(__file__).resolve().parents[2]  # site-packages, or instruments/ of a checkout
MACHINE = "ptx_machine"  # it logs what takes long
PACKAGES = ("fa_lib", "attention_check", "ptx_machine", "attention_gallery")
TEXT = 2000  # characters of an error's text
RESULTS = 2  # of a tuple: the output and the log-sum-exp
PATCHABLE = (torch, torch.Tensor, torch.nn.functional, torch.autograd, torch.linalg)
OWN = ("manual_seed",)  # torch replaces it by itself, when torch._dynamo is imported
SMALLEST = 5e-324  # 0 times anything where denormal numbers are flushed
DRAWS = ("torch's random numbers", "numpy's random numbers", "Python's random numbers")


def unusable(o: torch.Tensor, device: torch.device) -> str:
    """Why a tensor cannot be compared as one of numbers on a device, with a verb: "returns ..."; "" where it can."""
    if type(o) not in (torch.Tensor, torch.nn.Parameter):
        return f"returns {type(o).__name__}, a class of its own, where a plain tensor is due"
    if o.layout != torch.strided or o.is_quantized:
        return f"returns a tensor of layout {o.layout}, {o.dtype}, where one of plain numbers is due"
    if o.device != device:
        return f"returns a tensor on {o.device}, where one on {device} is due"
    if o.is_conj() or o.is_neg():
        return "returns a conjugate or negated view, where a tensor of its own numbers is due"
    return ""


class OwnPackages:
    """Finds the judge's PACKAGES, wherever the kernel's modules are: in a checkout they would import the checkout's."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in PACKAGES:
            return None
        files = (folder / name / "__init__.py" for folder in (HERE, HERE.parent))
        return next((spec_from_file_location(name, file) for file in files if file.is_file()), None)


def broken(error: BaseException) -> bool:
    """Whether a kernel did what no GPU allows, on the PTX machine (ptx_machine.Fault) or a GPU: that is no refusal."""
    on_gpu = isinstance(error, RuntimeError) and any(words in _written(str, error, "") for words in ILLEGAL)
    return getattr(type(error), "malformed", False) is True or on_gpu


class Worker:
    """One kernel. fn: called fn(q, k, v, **options). watch: that has looked. inbox, outbox: descriptors of the files of
    tensors."""

    def __init__(self, fn: Callable, watch: "Watch", inbox: int, outbox: int):
        self.fn, self.watch, self.inbox, self.outbox, self.graphs = fn, watch, inbox, outbox, {}

    def answer(self, order: dict) -> dict:
        """What is told of a call, or of its backward pass: outcome (of Outcome), results, changed, state, launches."""
        for number in order["forget"]:
            self.graphs.pop(number, None)
        try:
            reply = self.call(order) if order["do"] == "call" else self.backward(order)
        except BaseException as error:  # SystemExit and KeyboardInterrupt too: they are the kernel's
            reply = _raised(error)
            if broken(error):
                reply |= dict(outcome=Outcome.MALFORMED, problem=f"fails: {reply['text']}")
        machine = sys.modules.get("ptx_machine.launches")
        return reply | dict(state=self.watch.look(), launches=machine.taken() if machine else [])

    def call(self, order: dict) -> dict:
        tensors = self.read(order["storages"], order["tensors"])
        before = [_bits(x).clone() for x in tensors]
        options = {name: tensors[x] if kind == "tensor" else x for name, (kind, x) in order["options"].items()}
        others = [options.pop(place) for place in [*options] if isinstance(place, int)]  # by position
        wanted = [x for x, wants in zip(tensors, order["wants"]) if wants]
        for x in wanted:
            x.requires_grad_()
        o = self.fn(*tensors[:3], *others, **options)
        several = isinstance(o, (tuple, list))
        results = list(o[:RESULTS]) if several else [o]
        if not results or not isinstance(results[0], torch.Tensor):
            return dict(outcome=Outcome.MALFORMED, problem=f"returns {type(o).__name__}, where a tensor is due")
        results = [x for x in results if isinstance(x, torch.Tensor)]
        for x in results:
            if problem := unusable(x, tensors[0].device):
                return dict(outcome=Outcome.MALFORMED, problem=problem)
        if sum(x.nbytes for x in results) > order["most"]:
            problem = f"returns {results[0].dtype} of shape {tuple(results[0].shape)}, far more than is due"
            return dict(outcome=Outcome.MALFORMED, problem=problem)
        if wanted:
            self.graphs[order["number"]] = results, wanted, tensors, before
        changed = [i for i, (x, was) in enumerate(zip(tensors, before)) if not torch.equal(_bits(x), was)]
        return dict(outcome=Outcome.ANSWERED, several=several, results=self.write(results), changed=changed)

    def backward(self, order: dict) -> dict:
        results, wanted, inputs, before = self.graphs.pop(order["graph"])
        pairs = list(zip(results, self.read(order["storages"], order["tensors"])))
        pairs = [(x, dx) for x, dx in pairs if x.requires_grad] or pairs
        inputs, before = [*inputs[:3], *(dx for _, dx in pairs)], [*before[:3], *(_bits(dx).clone() for _, dx in pairs)]
        grads = torch.autograd.grad([x for x, _ in pairs], wanted, [dx for _, dx in pairs])
        for name, x, was in zip(("q", "k", "v", *["dO"] * len(pairs)), inputs, before):
            if not torch.equal(_bits(x), was):
                return dict(outcome=Outcome.MALFORMED, problem=f"changes {name} in its backward pass")
        for g in grads:
            if problem := unusable(g, wanted[0].device):
                return dict(outcome=Outcome.MALFORMED, problem=f"{problem} (a gradient)")
        return dict(outcome=Outcome.ANSWERED, several=True, results=self.write(grads), changed=[])

    def read(self, storages: list[tuple[int, int, str]], tensors: list[dict]) -> list[torch.Tensor]:
        """Tensors as they lie in memory over there: their strides, and what they share."""
        contents = []
        for start, size, device in storages:
            raw = torch.empty(size, dtype=torch.uint8)
            read_at(self.inbox, raw, start)
            contents.append(raw.to(device))
        found = []
        for each in tensors:
            raw = contents[each["storage"]]
            x = torch.empty(0, dtype=each["dtype"], device=raw.device)
            found.append(x.set_(raw.untyped_storage(), each["offset"], each["shape"], each["stride"]))
        return found

    def write(self, results) -> list[dict]:
        """What is said of each tensor; its bytes go to the file."""
        specs, start = [], 0
        for x in results:
            specs.append(dict(dtype=f"{x.dtype}", shape=[*x.shape], start=start, size=x.nbytes))
            write_at(self.outbox, _bits(x), start)
            start += x.nbytes
        return specs


def write_at(file: int, content: torch.Tensor, start: int) -> None:
    """Write bytes, uint8 (n,) on the CPU, to a file from a place on."""
    view, done = memoryview(content.numpy().data), 0
    while done < len(view):
        done += os.pwrite(file, view[done:], start + done)


def read_at(file: int, content: torch.Tensor, start: int) -> None:
    """Fill a tensor of bytes, uint8 (n,) on the CPU, from a place of a file on.

    Raises:
        ValueError: the file ends before.
    """
    view, done = memoryview(content.numpy().data), 0
    while done < len(view):
        got = os.preadv(file, [view[done:]], start + done)
        if not got:
            raise ValueError("it has written less than it says")
        done += got


def state() -> dict:
    """What other code computes by, as it is now: torch's settings, and random numbers."""
    numpys: tuple = np.random.get_state()  # pyright: ignore[reportAssignmentType]  # a dict only if legacy=False
    return {
        "the default dtype": torch.get_default_dtype(),
        "the number of threads": torch.get_num_threads(),
        "grad mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "deterministic algorithms": (
            torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic,
            torch.backends.cudnn.benchmark,
        ),
        "the precision of FP32 products": torch.get_float32_matmul_precision(),
        "flushing of denormal numbers": SMALLEST * 1.0 == 0,
        DRAWS[0]: torch.get_rng_state().numpy().tobytes(),
        DRAWS[1]: (numpys[1].tobytes(), numpys[2:]),
        DRAWS[2]: random.getstate(),
    }  # fmt: skip


class Watch:
    """Sees what changes from one look to the next, of `state` and of torch's functions."""

    def __init__(self):
        self.state, self.functions = state(), {of: dict(vars(of)) for of in PATCHABLE}

    def look(self) -> list[str]:
        """Names of what is no longer as it was at the last look; of functions those that others stand in for."""
        was, self.state = self.state, state()
        changed = [name for name in was if was[name] != self.state[name]]
        for of, function in self.functions.items():
            now = vars(of)
            if len(now) == len(function) and all(map(is_, now.values(), function.values())):
                continue
            gone = {name: fn for name, fn in function.items() if now.get(name) is not fn}
            other = [name for name, fn in gone.items() if callable(fn) and not isinstance(fn, type)]
            inherited = {name for base in getattr(of, "__mro__", ())[1:-1] for name in vars(base)}
            other += [name for name in now if name not in function and name in inherited]
            changed += [f"{of.__name__}.{name}" for name in other if name not in OWN]
            self.functions[of] = dict(now)
        return changed


def parameters(fn: Callable) -> list[list] | None:
    """Name, kind and whether it has a default, of each parameter; None where a kernel keeps its signature to itself."""
    try:
        signature = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return None
    return [[p.name, int(p.kind), p.default is not p.empty] for p in signature]


def function_of(module: str, function: str, gpu: str) -> Any:
    """Return what a module holds under a name; with a GPU, in its arithmetic."""
    if not gpu:
        return getattr(importlib.import_module(module), function)
    from fa_lib.kernels.kernel_ref import KernelRef

    return KernelRef(module, function, gpu).imported()


def serve(orders: int, inbox: int, outbox: int) -> None:
    """Import the kernel that the first order names, and answer the others until there are none.

    Args:
        orders: descriptor of a socket. inbox, outbox: of the files of tensors.
    """
    channel = socket.socket(fileno=orders)
    first = _next(channel)
    assert first is not None, "no order"
    sys.path[:] = first["path"]
    sys.meta_path.insert(0, OwnPackages)
    torch.set_num_threads(first["threads"])
    _tell(channel, dict(outcome=Outcome.ANSWERED, number=0, state=[]))
    teller = logging.Handler(logging.INFO)
    teller.emit = lambda record: _tell(channel, dict(note=record.getMessage()))
    logging.getLogger(MACHINE).addHandler(teller)
    logging.getLogger(MACHINE).setLevel(logging.INFO)
    watch, reply = Watch(), dict(outcome=Outcome.ANSWERED)
    try:
        fn = function_of(**{name: first[name] for name in ("module", "function", "gpu")})
    except BaseException as error:
        reply = _raised(error) | dict(text=_written(repr, error, _name(error)))
    else:
        doc = f"{getattr(fn, '__doc__', None) or ''}"[:TEXT]  # of built-in functions it has the parameters
        reply |= dict(callable=callable(fn), type=type(fn).__name__, parameters=parameters(fn), doc=doc)
    _tell(channel, reply | dict(number=0, state=watch.look()))
    worker = Worker(fn, watch, inbox, outbox) if reply["outcome"] == Outcome.ANSWERED else None
    while worker and (order := _next(channel)):
        _tell(channel, worker.answer(order) | dict(number=order["number"]))
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)  # what C code has printed
    os._exit(0)  # the stranger's atexit has no say


def _next(channel):
    """The next order; None where there is none any more."""
    head = _exactly(channel, 8)
    return pickle.loads(_exactly(channel, *struct.unpack("<Q", head))) if head else None


def _exactly(channel, size):
    received = b""
    while len(received) < size:
        got = channel.recv(size - len(received))
        if not got:
            return b""
        received += got
    return received


def _tell(channel, told):
    channel.sendall(json.dumps(told).encode() + b"\n")


def _bits(x):
    """The bytes of a tensor's values, one after the other, on the CPU."""
    return x.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _raised(error):
    text = _written(str, error, "")
    return dict(outcome=Outcome.REFUSED, exits=isinstance(error, SystemExit), error=_name(error), text=text)


def _name(error):
    return _written(lambda one: type(one).__name__, error, "an error without a name")


def _written(write, error, otherwise):
    """A text of an error of the stranger's, which may not even be printed."""
    try:
        return f"{write(error)}"[:TEXT]
    except BaseException:
        return otherwise


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:]))
