"""The process in which a reader's kernel runs: it imports the kernel, and answers calls. `isolated_kernel.Process`
starts it. fa_lib is imported where the kernel does so, or a GPU is modelled."""

import ctypes
import importlib
import inspect
import logging
import os
import pickle
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

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
WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # bytes of a number -> dtype
SMALLEST = 5e-324  # 0 times anything where denormal numbers are flushed


def _reduced_tensor(x):
    return _tensor, (x.untyped_storage(), x.dtype, x.storage_offset(), tuple(x.shape), x.stride())


def _tensor(raw, dtype, *lies):
    return torch.empty(0, dtype=dtype, device=raw.device).set_(raw, *lies)


def _reduced_storage(raw):
    return _storage, (torch.empty(0, dtype=torch.uint8, device=raw.device).set_(raw).cpu().numpy(), f"{raw.device}")


def _storage(content, device):
    return torch.from_numpy(content).to(device, copy=True).untyped_storage()  # aligned as torch aligns it


REDUCED = {torch.Tensor: _reduced_tensor, torch.nn.Parameter: _reduced_tensor, torch.UntypedStorage: _reduced_storage}


def send(file: BinaryIO, message: Any) -> None:
    """Write plain containers that hold tensors. Of a tensor its device, its strides and what it shares are kept."""
    pickler = pickle.Pickler(file, protocol=5)
    pickler.dispatch_table = REDUCED  # torch's own takes several times as long, and shares nothing
    pickler.dump(message)
    file.flush()


def receive(file: BinaryIO) -> Any:
    """Read what `send` wrote. An EOFError or pickle.UnpicklingError says that it ends before."""
    return pickle.load(file)


def tensors_of(args: Sequence, options: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Name -> tensor, of a call's arguments by position, from q on, and of its options."""
    names = ["q", "k", "v", *(f"argument {place}" for place in range(4, len(args) + 1))]
    return {name: x for name, x in (*zip(names, args), *options.items()) if isinstance(x, torch.Tensor)}


def copies(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Name -> the bits that a tensor has now."""
    return {name: _bits(x).clone() for name, x in tensors.items()}


def changed(tensors: Mapping[str, torch.Tensor], before: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of tensors that have other bits than before."""
    return [name for name, x in tensors.items() if not torch.equal(_bits(x), before[name])]


def _bits(x):
    """As whole numbers, so that NaN equals itself."""
    return x.detach().contiguous().view(WHOLE[x.element_size()])


def unusable(o: torch.Tensor, device: torch.device) -> str:
    """Why a tensor cannot be compared as one of numbers on a device, with a verb: "returns ..."; "" where it can."""
    own = type(o) in (torch.Tensor, torch.nn.Parameter) and not (o.is_conj() or o.is_neg() or o.is_quantized)
    if own and o.layout == torch.strided and o.device == device:
        return ""
    got = f"{type(o).__name__}, {o.layout}, {o.dtype}, on {o.device}"
    return f"returns no plain tensor of its own numbers on {device}: {got}"


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
    on_gpu = isinstance(error, RuntimeError) and any(words in _text(error) for words in ILLEGAL)
    return getattr(type(error), "malformed", False) is True or on_gpu


class Worker:
    """Calls one kernel, fn(q, k, v, **options). graphs: of calls whose backward pass may come, by the call's number."""

    def __init__(self, fn: Callable, watch: "Watch"):
        self.fn, self.watch, self.graphs = fn, watch, {}

    def answer(self, do: str, forget: Sequence[int], **given: Any) -> dict:
        """What is told of a `call` or `backward`: answer; or problem; or raised. And state."""
        for number in forget:
            self.graphs.pop(number, None)
        try:
            reply = getattr(self, do)(**given)
        except SystemExit as error:
            leave(error.code)
        except BaseException as error:  # as of a panic in Rust
            text = _text(error)
            reply = dict(problem=f"fails: {text}") if broken(error) else dict(raised=f"{type(error).__name__}: {text}")
        return reply | dict(state=self.watch.look())

    def call(self, number: int, args: Sequence, options: Mapping[str, Any], wants: Sequence[bool]) -> dict:
        """wants: of which of its tensors gradients may be asked for."""
        given = tensors_of(args, options)
        before = copies(given)
        wanted = [x.requires_grad_() for x, wants_grad in zip(given.values(), wants) if wants_grad]
        device = args[0].device
        o = self.fn(*args, **options)
        results = o[:RESULTS] if isinstance(o, (tuple, list)) else [o]
        if not results or not isinstance(results[0], torch.Tensor):
            return dict(problem=f"returns {type(o).__name__}, where a tensor is due")
        results = [x for x in results if isinstance(x, torch.Tensor)]
        if problems := [problem for x in results if (problem := unusable(x, device))]:
            return dict(problem=problems[0])
        if names := changed(given, before):
            return dict(problem=f"changes its inputs: {', '.join(names)}")
        if wanted:
            self.graphs[number] = results[0], wanted, given, before
        return dict(answer=(*map(_plain, results),) if isinstance(o, (tuple, list)) else _plain(o))

    def backward(self, number: int, dO: torch.Tensor) -> dict:
        """dO: of its output; a log-sum-exp has no gradient here."""
        o, wanted, given, before = self.graphs.pop(number)
        given, before = given | dict(dO=dO), before | copies(dict(dO=dO))
        grads = torch.autograd.grad(o, wanted, dO)
        if names := changed(given, before):
            return dict(problem=f"changes {', '.join(names)} in its backward pass")
        if problems := [problem for g in grads if (problem := unusable(g, wanted[0].device))]:
            return dict(problem=f"{problems[0]} (a gradient)")
        return dict(answer=[*map(_plain, grads)])


def state() -> dict:
    """What other code computes by, as it is now: torch's settings."""
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
    }  # fmt: skip


class Watch:
    """Sees what of `state` changes from one look to the next."""

    def __init__(self):
        self.state = state()

    def look(self) -> list[str]:
        """Names of what is no longer as it was at the last look."""
        was, self.state = self.state, state()
        return [name for name in was if was[name] != self.state[name]]


def signature_of(fn: Callable) -> inspect.Signature | None:
    """A kernel's signature without annotations, and with None for each default that is no truth value; None where it
    tells none."""
    try:
        found = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return None
    kept = (True, False, inspect.Parameter.empty)
    bare = [(p.name, p.kind, next((x for x in kept if p.default is x), None)) for p in found]
    return inspect.Signature([inspect.Parameter(name, kind, default=default) for name, kind, default in bare])


def function_of(module: str, function: str, gpu: str) -> Any:
    """Return what a module holds under a name; with a GPU, in its arithmetic."""
    if not gpu:
        return getattr(importlib.import_module(module), function)
    from fa_lib.kernels.kernel_ref import KernelRef

    return KernelRef(module, function, gpu).imported()


def serve(descriptor: int, kernel: Mapping[str, str], threads: int, path: list[str]) -> None:
    """Import a kernel, and answer orders until there is None.

    Args:
        descriptor: of a socket. kernel: as `function_of` takes it. path: its sys.path.
    """
    end = socket.socket(fileno=descriptor)
    file: Any = end.makefile("rwb")
    threading.Thread(target=_end_with_the_judge, args=(end,), daemon=True).start()
    os.set_inheritable(descriptor, False)  # a program that the kernel starts would keep it open after a crash
    mine = [descriptor]
    os.register_at_fork(after_in_child=lambda: os.close(mine.pop()) if mine else None)  # and so would a fork
    sys.path[:] = path
    sys.meta_path.insert(0, OwnPackages)
    torch.set_num_threads(threads)
    teller = logging.Handler(logging.INFO)
    teller.emit = lambda record: send(file, dict(note=record.getMessage()))
    logging.getLogger(MACHINE).addHandler(teller)
    logging.getLogger(MACHINE).setLevel(logging.INFO)
    send(file, {})
    watch = Watch()
    fn: Any = None
    try:
        fn = function_of(**kernel)
        doc = f"{getattr(fn, '__doc__', None) or ''}"[:TEXT]  # of built-in functions it has the parameters
        reply = dict(callable=callable(fn), type=type(fn).__name__, signature=signature_of(fn), doc=doc)
    except SystemExit as error:
        leave(error.code)
    except BaseException as error:
        reply = dict(raised=f"{type(error).__name__}({_text(error)!r})"[:TEXT])
    send(file, reply | dict(state=watch.look()))
    worker = Worker(fn, watch)
    while order := receive(file):
        send(file, worker.answer(**order))
    leave()


def leave(code: object = None) -> NoReturn:
    """End the process as sys.exit does, but without what others do at exit: it may take long, or set another code."""
    if isinstance(code, str):
        print(code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)  # what C code has printed
    os._exit(code if isinstance(code, int) else code is not None)


def _end_with_the_judge(end):
    """Wait until the other end is closed, and end this process and those that it has started."""
    other = select.poll()
    other.register(end, 0)
    other.poll()
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _text(error):
    """The text of an error; of some it cannot be written."""
    try:
        return str(error)[:TEXT]
    except BaseException:
        return ""


def _plain(x):
    """A tensor's values, one after the other, in a storage of their own size."""
    x = x.detach().contiguous()
    return x if x.untyped_storage().nbytes() == x.nbytes else x.clone()
