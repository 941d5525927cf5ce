"""The weights that a kernel gives to its keys, measured: with rows of the identity as V a kernel returns P itself."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attention_check.adapters import OwnNames
from attention_check.isolation.calls import call_kernel
from attention_check.isolation.isolated_kernel import isolated
from attention_check.tolerance import tolerance
from fa_lib import kernels
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.kernels.options import ResolvedOptions
from fa_lib.kernels.precision import Precision

if TYPE_CHECKING:
    from attention_check.explain.verdict import Explanation

SQUARE = 512  # keys: of so many, values have as many features, and tell each weight
FEATURES = 64  # of values, where keys are more
VISIBILITY = ("causal", "window", "mask")  # options that say which keys are seen


@dataclass(frozen=True)
class Weights:
    """The weights of a kernel, and what they are. heads: those of all entries of the batch.

    Attributes:
        measured, expected, bound: float64 (heads, n_q, n_kv): the kernel's, golden ones, how far right ones may be.
        options, left_out: of the call, as believed; names of those that the kernel does not take.
        explained: what the output is that these weights make of drawn values, the same in all heads.
        changed: weights of the first block of keys that a second call with the same tensors gives otherwise.
        of_seen_keys: the same, had the call's mask been the keys with a weight: None where it is not needed, or they
            explain nothing.
    """

    measured: Tensor
    expected: Tensor
    bound: Tensor
    options: dict[str, Any]
    left_out: list[str]
    changed: int
    explained: "Explanation"
    of_seen_keys: "Explanation | None"

    @property
    def times(self) -> Tensor:
        """The difference of each weight over its bound: (heads, n_q, n_kv)."""
        return (self.measured - self.expected).abs().nan_to_num(math.inf) / self.bound.clamp(min=1e-300)

    @property
    def differs(self) -> bool:
        """Whether they are not those of attention."""
        return not self.explained.is_rounding or bool((self.times > 1).any())

    def __str__(self) -> str:
        from attention_check.report.weights_words import lines

        return "\n".join(lines(self))


def weights(f: KernelRef | str | Callable, q: Tensor, k: Tensor, width: int | None = None, **options) -> Weights:
    """Measure the weights of a kernel, and explain what they make; `print` the result to read it.

    1 and 0 are exact in every format, and a scale of V for FP8 keeps them. A kernel that subtracts V's mean rounds
    other numbers than these.

    Args:
        f: a kernel, or the text of one, as `check_kernel` takes it.
        q: (batch, heads, n_q, head_dim). k: (batch, kv_heads, n_kv, head_dim).
        width: head_dim of V, which is the number of keys that a call returns; None: q's.
        options: causal, scale, mask, window, softcap, sinks, as they are believed.

    Raises:
        ValueError: an argument does not fit, or the kernel gives no output.
    """
    options = {name: x for name, x in options.items() if x is not None and x is not False}
    eye = torch.eye(k.shape[2], dtype=q.dtype).expand(*k.shape[:2], -1, -1)
    ResolvedOptions.of(q, k, eye, **options)
    P, left_out, changed = _measured(f, q, k, eye, width or q.shape[-1], options)
    about = [tolerance(q, k, eye, precision=precision, **options)
             for precision in (Precision.kernel(q.dtype), Precision.materialized(q.dtype))]  # fmt: skip
    bound, expected = torch.stack([each.bound for each in about]).amax(0), about[0].golden
    found, of_seen = _explained(q, k, P, expected, bound, options)
    P, expected, bound = (x.flatten(0, 1) for x in (P, expected, bound))
    return Weights(P, expected, bound, options, left_out, changed, found, of_seen)


def _measured(f, q, k, eye, width, options):
    """The kernel's P, in blocks of `width` keys, the options that it does not take, and `Weights.changed`. The last
    block goes on with the first keys, so that no column of V is 0: a scale for each column would be 0, too."""
    n_kv, blocks = k.shape[2], []
    with isolated(KernelRef.of(f)) if isinstance(f, (str, KernelRef)) else nullcontext(f) as kernel:
        fn = kernels.plain(kernel)
        names = OwnNames.of(fn).options
        taken = {name: x for name, x in options.items() if names.get(name, name)}
        for first in (*range(0, n_kv, width), 0):
            v = eye[..., torch.arange(first, first + width) % n_kv].contiguous()
            answer = call_kernel(fn, q, k, v, **taken)
            if answer.o is None:
                raise ValueError(f"kernel: it {answer.problem}")
            blocks.append(answer.o.double())
    *blocks, again = blocks
    changed = (blocks[0] != again) & ~(blocks[0].isnan() & again.isnan())
    return torch.cat(blocks, -1)[..., :n_kv], [name for name in options if name not in taken], int(changed.sum())


def _explained(q, k, P, expected, bound, options):
    """What the weights (batch, heads, n_q, n_kv) make of drawn values, as the options are believed; and, where no cause
    is found, with the keys that have a weight. Where they are beyond their bounds, the output has no other limit than
    its own bound."""
    from attention_check.conventions.reading import CapturedCall
    from attention_check.explain.explain import explain_call

    n_kv = P.shape[-1]
    features = n_kv if n_kv <= SQUARE else FEATURES
    v = torch.randn(n_kv, features, generator=torch.Generator().manual_seed(0)).to(q.dtype)
    o, v = P @ v.double(), v.expand(*k.shape[:2], -1, -1)
    call, far = CapturedCall(q, k, v, o, options), bool(((P - expected).abs() > bound).any())
    found = explain_call(call)
    if found.is_rounding and far:
        call = replace(call, declared=Precision.kernel(q.dtype))
        found = explain_call(call)
    seen = (P > 0) | (expected > 0) & (expected <= bound)  # a smaller weight may be rounded to 0
    if found.has_cause or not P.isfinite().all() or torch.equal(seen, expected > 0):
        return found, None
    mask = options.get("mask")
    if mask is not None and mask.dtype != torch.bool:
        seen = mask.expand(P.shape).masked_fill(~seen, -math.inf)
    rest = {name: x for name, x in options.items() if name not in VISIBILITY}
    again = explain_call(replace(call, options=rest | dict(mask=seen)))
    return found, again if again.has_cause else None
