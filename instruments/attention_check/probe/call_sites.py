"""Torch's side of the probe: where in a model a call is, and how to compute beside it and leave it alone."""

import random
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from attention_check.probe.sampling import both
from attention_check.probe.skipped import UNSEEN, Why

FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


@dataclass(frozen=True)
class SdpaArguments:
    """The arguments of a call of scaled_dot_product_attention, under torch's names."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    attn_mask: torch.Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    def options(self, dtype: torch.dtype) -> dict:
        """causal, scale and mask as kernels take them: torch aligns causal top-left, and kernels bottom-right. dtype:
        that the kernel computes in; under autocast not the query's."""
        causal, mask = bool(self.is_causal), None if self.attn_mask is None else self.attn_mask.detach()
        if mask is not None and mask.dtype == self.query.dtype:
            mask = mask.to(dtype)
        n_q, n_kv = self.query.shape[-2], self.key.shape[-2]
        if causal and (mask is not None or n_q != n_kv):
            top = torch.ones(n_q, n_kv, dtype=torch.bool, device=self.query.device).tril()
            causal, mask = False, both(top, mask)
        options = dict(causal=causal, scale=self.scale, mask=mask)
        return {name: x for name, x in options.items() if x is not None}


class CallTracker:
    """A context manager that knows which modules run in its thread.

    Steps and layers are those of `Probe`, for each question to `here`. In eval mode torch's nn.MultiheadAttention and
    encoders take a fast path, but not where a function mode is active. Around them every mode is turned off, so that
    they compute what they did.

    Args:
        unseen: called with a Why when a module begins whose calls are hidden: such a one (Why.FUSED), and an outermost
            one that holds compiled modules, or modules of transformers with attention other than sdpa.
    """

    def __init__(self, unseen):
        self.unseen, self.hooks, self.running = unseen, [], []  # (module, what turns the modes off or None)
        self.hidden = WeakKeyDictionary()  # outermost module -> every Why but FUSED that holds of it
        self.models, self.steps = WeakKeyDictionary(), Counter()  # outermost module -> its name -> steps begun
        self.kinds = Counter()  # of outermost modules, by class
        self.names: dict[torch.nn.Module, str] = {}  # module -> name, in the run of the outermost module that goes on
        self.calls = Counter()  # of each layer, in this step

    def __enter__(self):
        self.thread = threading.get_ident()
        entered, left = register_module_forward_pre_hook, register_module_forward_hook
        self.hooks = [entered(self._entered), left(self._left, always_call=True)]
        return self

    def __exit__(self, *_):
        while self.running:  # what an interrupt left behind
            self._end()
        for hook in self.hooks:
            hook.remove()
        self.hooks = []

    def here(self):
        """model: the class of the outermost module, numbered where several have it ("Block", "Block 2"); step: of this
        model; layer; call: how many were before in this step and layer."""
        modules = [module for module, _ in self.running]
        model = self._model(modules[0]) if modules else ""
        if not self.names:
            self.names = {module: name for name, module in modules[0].named_modules()} if modules else {}
            self.steps[model] += 1
            self.calls.clear()
        layer = next((self.names[module] for module in reversed(modules) if module in self.names), "")
        self.calls[layer] += 1
        return dict(model=model, step=self.steps[model] - 1, layer=layer, call=self.calls[layer] - 1)

    def _model(self, module):
        if module not in self.models:
            kind = type(module).__name__
            self.kinds[kind] += 1
            self.models[module] = kind if self.kinds[kind] == 1 else f"{kind} {self.kinds[kind]}"
        return self.models[module]

    def _entered(self, module, args):
        if torch.compiler.is_compiling() or threading.get_ident() != self.thread:
            return
        off = None
        if isinstance(module, FUSED) and not module.training and torch.backends.mha.get_fastpath_enabled():
            if not any(off for _, off in self.running):
                self.unseen(Why.FUSED)
            off = torch._C.DisableTorchFunction()
            off.__enter__()
        if not self.running:
            if module not in self.hidden:
                self.hidden[module] = _hidden(module)
            for why in self.hidden[module]:
                self.unseen(why)
        self.running.append((module, off))

    def _left(self, module, args, output):
        if torch.compiler.is_compiling() or threading.get_ident() != self.thread:
            return
        while any(module is other for other, _ in self.running) and self._end() is not module:
            pass  # an inner one whose hook was never called

    def _end(self):
        module, off = self.running.pop()
        if off is not None:
            off.__exit__(None, None, None)
        if not self.running:
            self.names = {}
        return module


def _hidden(module):
    """Why calls of attention within a module may not be seen."""
    modules = list(module.modules())
    found = [Why.COMPILED] if _runs_compiled() and any(map(_is_compiled, modules)) else []
    return [*found, Why.EAGER] if any(_setting(each) in UNSEEN for each in modules) else found


def _setting(module):
    """The attention that a module of transformers is set to; "" of any other."""
    try:
        return f"{module.config._attn_implementation}"
    except Exception:  # whatever a stranger's module calls its config
        return ""


def _is_compiled(module):
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None


def _runs_compiled():
    """Whether compiled modules run compiled: torch.compiler.set_stance("force_eager") has them run as they were."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return dynamo is not None and getattr(getattr(dynamo, "_stance", None), "stance", "") != "force_eager"


@contextmanager
def observing_sdpa(seen):
    """Where `seen(o, args, kwargs)` is told of each scaled_dot_product_attention that torch.nn.functional calls: a
    function that torch hands to a mode as a whole, multi_head_attention_forward, hides from that mode what it calls."""
    before = F.scaled_dot_product_attention

    def seeing(*args, **kwargs):
        o = before(*args, **kwargs)
        seen(o, args, kwargs)
        return o

    F.scaled_dot_product_attention = seeing
    try:
        yield
    finally:
        F.scaled_dot_product_attention = before


@contextmanager
def undisturbed(device):
    """Where nothing reaches the model: no gradient, no autocast, no other mode, no random number drawn for it."""
    kind, others = ("cuda", []) if device.type == "cpu" else (device.type, [device])
    with (
        torch.inference_mode(False), torch.no_grad(), torch.autocast(device.type, enabled=False),
        torch._C.DisableTorchFunction(), same_random_numbers(others, kind),
    ):  # fmt: skip
        yield


@contextmanager
def same_random_numbers(devices: Sequence[torch.device] = (), kind: str = "cuda") -> Iterator[None]:
    """Whatever is drawn inside, random numbers after it are those that were next: torch's, numpy's and Python's."""
    numbers, python = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng(devices, device_type=kind):
            yield
    finally:
        np.random.set_state(numbers)
        random.setstate(python)
