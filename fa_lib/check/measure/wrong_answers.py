"""What a wrong answer looks like: another layout, scale, mask or order of heads, found by trying each."""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fa_lib import kernels
from fa_lib.check.isolation.calls import KernelError, kernel_errors
from fa_lib.check.probe.sampling import both, sampled
from fa_lib.kernels.eager import as_many_heads
from fa_lib.kernels.layouts import first_output
from fa_lib.kernels.options import Options, within
from fa_lib.numerics.formats import Format

FAR = 0.2  # of the golden value's root mean square: 50 times what BF16 costs, a fifth of what another answer is off
CLOSE = 0.05  # to what a wrong answer is said to look like: a scale of 1 / head_dim is 0.12 from no scores at all


@dataclass(frozen=True)
class Call:
    """A call whose answer is not attention's.

    Attributes:
        q, k, v: (batch, heads, sequence, head_dim), of a format. options: of the call.
        rows: so many rows of Q, spread evenly, are compared; None is all.
        known: the golden value of all rows, where it is there already.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    fmt: Format
    options: dict[str, Any]
    rows: int | None = None
    known: Tensor | None = None

    def golden(self, **changed) -> Tensor:
        """The golden value (entries, heads, rows, d_v) of the compared rows, with options changed where they are
        given."""
        sample = sampled(self.q, self.k, self.v, self.rows, **self.options | changed)
        return kernels.golden(sample.q, sample.k, sample.v, inputs=self.fmt, **sample.options)

    def whole(self) -> Tensor:
        """The golden value (batch, heads, n_q, d_v) of all rows."""
        return self.known if self.known is not None else self.of(self.q, self.k, self.v)

    def of(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The golden value (batch, heads, n_q, d_v) of all rows of other tensors in the shapes of q, k and v."""
        return kernels.golden(q, k, v, inputs=self.fmt, **self.options)

    def compared(self, o: Tensor) -> Tensor:
        """The compared rows (entries, heads, rows, features) of a tensor like Q."""
        return sampled(self.q, self.k, self.v, self.rows).taken(o)

    def scaled(self, factor: float) -> Tensor:
        """As `golden`, with so many times the scale that is asked for."""
        return self.golden(scale=factor * (self.options.get("scale") or self.q.shape[-1] ** -0.5))


def _swapped(x):
    return x.transpose(1, 2)


def _bshd(call):
    return call.compared(_swapped(call.of(*map(_swapped, (call.q, call.k, call.v)))))


def _reshaped(call):
    golden = call.whole()
    return call.compared(_swapped(golden).reshape(golden.shape))


def _interleaved(call):
    times = call.q.shape[1] // call.k.shape[1]
    return call.compared(call.of(call.q, *(x.repeat(1, times, 1, 1) for x in (call.k, call.v))))


def _over_queries(call):
    q, k, v = (as_many_heads(x.double(), call.q) for x in (call.q, call.k, call.v))
    return call.compared(torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -2) @ v)


def _inverted(call):
    mask = call.options["mask"]
    if mask.dtype == torch.bool:
        return call.golden(mask=~mask)
    hidden = mask == -math.inf
    return call.golden(mask=torch.where(hidden, 0.0, -math.inf) if hidden.any() else -mask)


def _capped_after(call):
    """Hidden keys have the score -softcap, and are seen."""
    S = call.q.double() @ as_many_heads(call.k.double(), call.q).mT
    S = S * (call.options.get("scale") or call.q.shape[-1] ** -0.5)
    near = Options.of(call.q, call.k, call.v, **{n: x for n, x in call.options.items() if n != "softcap"})
    visible = within(near.n_q, near.n_kv, near.left, near.right, S.device)
    if near.mask is not None:
        S = S.masked_fill(~near.mask, -math.inf) if near.mask.dtype == torch.bool else S + near.mask
    cap = call.options["softcap"]
    P = torch.softmax(cap * torch.tanh(S.masked_fill(~visible, -math.inf) / cap), -1)
    return call.compared(P @ as_many_heads(call.v.double(), call.q))


def _top_left(call):
    n_q, n_kv = call.q.shape[-2], call.k.shape[-2]
    below = torch.ones(n_q, n_kv, dtype=torch.bool, device=call.q.device).tril()
    return call.golden(causal=False, mask=both(below, call.options.get("mask")))


@dataclass(frozen=True)
class Guess:
    """Another answer that a kernel may have given.

    Attributes:
        of: a Call -> it, on the compared rows. needs: options without which it is no other answer.
        all_rows: it works on all rows of Q at once, however few are compared.
    """

    of: Callable[[Call], Tensor]
    needs: tuple[str, ...] = ()
    all_rows: bool = False


GUESSES: dict[str, Guess] = {
    "bshd": Guess(_bshd),
    "output_reshaped": Guess(_reshaped, all_rows=True),
    "heads_reversed": Guess(lambda call: call.compared(call.whole().flip(1)), all_rows=True),
    "heads_interleaved": Guess(_interleaved, all_rows=True),
    "causal": Guess(lambda call: call.golden(causal=True)),
    "unmasked": Guess(lambda call: call.golden(causal=False), ("causal",)),
    "top_left": Guess(_top_left, ("causal",)),
    "scale_ignored": Guess(lambda call: call.golden(scale=None), ("scale",)),
    "scale_1": Guess(lambda call: call.golden(scale=1.0)),
    "scale_1_over_d": Guess(lambda call: call.golden(scale=1 / call.q.shape[-1])),
    "scale_sqrt_d": Guess(lambda call: call.golden(scale=call.q.shape[-1] ** 0.5)),
    "scale_log2_e": Guess(lambda call: call.scaled(1 / math.log(2))),
    "scale_ln_2": Guess(lambda call: call.scaled(math.log(2))),
    "mask_ignored": Guess(lambda call: call.golden(mask=None), ("mask",)),
    "mask_inverted": Guess(_inverted, ("mask",)),
    "mask_added": Guess(lambda call: call.golden(mask=call.options["mask"].double()), ("mask",)),
    "window_ignored": Guess(lambda call: call.golden(window=None), ("window",)),
    "all_masks_ignored": Guess(lambda call: call.golden(causal=False, mask=None, window=None)),
    "softcap_ignored": Guess(lambda call: call.golden(softcap=None), ("softcap",)),
    "softcap_after_mask": Guess(_capped_after, ("softcap",), all_rows=True),
    "sinks_ignored": Guess(lambda call: call.golden(sinks=None), ("sinks",)),
    "over_queries": Guess(_over_queries, all_rows=True),
}


def answers(call: Call, all_rows: bool = True) -> Iterator[tuple[str, Tensor]]:
    """Key and answer (entries, heads, rows, d_v) of every guess of GUESSES that fits a call. all_rows: those that work
    on all rows, too."""
    for key, guess in GUESSES.items():
        lacks = any(call.options.get(name) is None or call.options[name] is False for name in guess.needs)
        if lacks or guess.all_rows and not all_rows:
            continue
        with suppress(ValueError):  # one that does not fit the call's shapes
            yield key, guess.of(call)


def distance(o: Tensor, golden: Tensor) -> float:
    """The root mean square of a difference, over the golden value's; FAR and more is another answer. Infinite where the
    shapes differ."""
    if o.shape != golden.shape:
        return math.inf
    return ((o.double() - golden).square().mean().sqrt() / golden.square().mean().sqrt()).item()


def diagnose(o: Tensor, call: Call) -> str:
    """The key of GUESSES that the answer to all rows of a call is nearest to; "factor" where it is near a multiple of
    the golden value; else "other"."""
    found = {key: distance(o, guess) for key, guess in answers(call)}
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
        with kernel_errors():
            o = first_output(fn(call.q, call.k, call.v, **call.options))
    except KernelError:
        return ""
    right = isinstance(o, Tensor) and o.ndim == 4 and distance(_swapped(o), call.golden()) <= CLOSE
    return "output_bshd" if right else ""
