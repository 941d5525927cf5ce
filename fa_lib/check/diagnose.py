"""What a wrong answer looks like: another layout, scale, mask or order of heads, found by trying each."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fa_lib import kernels
from fa_lib.check.attempt import KernelError, blamed
from fa_lib.formats import Format
from fa_lib.kernels.eager import as_many_heads

FAR = 0.2  # of the golden value's root mean square: 50 times what BF16 costs, a fifth of what another answer is off
CLOSE = 0.05  # to what a wrong answer is said to look like: a scale of 1 / head_dim is 0.12 from no scores at all


@dataclass(frozen=True)
class Call:
    """A call whose answer is not attention's. q, k, v: (batch, heads, sequence, head_dim), of a format. options: of the
    call."""

    q: Tensor
    k: Tensor
    v: Tensor
    fmt: Format
    options: dict[str, Any]

    def golden(self, *tensors: Tensor, **changed) -> Tensor:
        """The golden value, of other tensors and with options changed where they are given."""
        return kernels.golden(*(tensors or (self.q, self.k, self.v)), inputs=self.fmt, **self.options | changed)

    def scaled(self, factor: float) -> Tensor:
        """The golden value with so many times the scale that is asked for."""
        return self.golden(scale=factor * (self.options.get("scale") or self.q.shape[-1] ** -0.5))


def _swapped(x):
    return x.transpose(1, 2)


def _bshd(call):
    return _swapped(call.golden(*map(_swapped, (call.q, call.k, call.v))))


def _interleaved(call):
    times = call.q.shape[1] // call.k.shape[1]
    return call.golden(call.q, *(x.repeat(1, times, 1, 1) for x in (call.k, call.v)))


def _over_queries(call):
    q, k, v = (as_many_heads(x.double(), call.q) for x in (call.q, call.k, call.v))
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -2) @ v


GUESSES: dict[str, Callable[[Call], Tensor]] = {  # note -> the answer that it would be
    "bshd": _bshd,
    "output_reshaped": lambda call: _swapped(call.golden()).reshape(call.golden().shape),
    "heads_reversed": lambda call: call.golden().flip(1),
    "heads_interleaved": _interleaved,
    "causal": lambda call: call.golden(causal=True),
    "scale_ignored": lambda call: call.golden(scale=None),
    "scale_1": lambda call: call.golden(scale=1.0),
    "scale_1_over_d": lambda call: call.golden(scale=1 / call.q.shape[-1]),
    "scale_sqrt_d": lambda call: call.golden(scale=call.q.shape[-1] ** 0.5),
    "scale_log2_e": lambda call: call.scaled(1 / math.log(2)),
    "scale_ln_2": lambda call: call.scaled(math.log(2)),
    "mask_ignored": lambda call: call.golden(mask=None),
    "softcap_ignored": lambda call: call.golden(softcap=None),
    "sinks_ignored": lambda call: call.golden(sinks=None),
    "over_queries": _over_queries,
}


def distance(o: Tensor, golden: Tensor) -> float:
    """The root mean square of a difference, over the golden value's; FAR and more is another answer."""
    if o.shape != golden.shape:
        return math.inf
    return ((o.double() - golden).square().mean().sqrt() / golden.square().mean().sqrt()).item()


def diagnose(o: Tensor, call: Call) -> str:
    """The key of GUESSES that an answer is nearest to; "factor" where it is near a multiple of the golden value; else
    "other"."""
    found = {}
    for key, guess in GUESSES.items():
        try:
            found[key] = distance(o, guess(call))
        except ValueError:  # a guess that does not fit the call's shapes
            continue
    best = min(found, key=lambda key: found[key])
    if found[best] <= CLOSE:
        return best
    golden = call.golden()
    factor = (o.double() * golden).sum() / golden.square().sum()
    return "factor" if factor and distance(o / factor, golden) <= CLOSE else "other"


def transposed_output(fn: Callable, call: Call) -> str:
    """Of a kernel whose output has another shape: "output_bshd" where it is (batch, sequence, heads, head_dim), and
    right but for that; else ""."""
    try:
        with blamed():
            o = fn(call.q, call.k, call.v, **call.options)
    except KernelError:
        return ""
    right = isinstance(o, Tensor) and o.ndim == 4 and distance(_swapped(o), call.golden()) <= CLOSE
    return "output_bshd" if right else ""
