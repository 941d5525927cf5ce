"""What somebody's kernel can do: formats, shapes, options and gradients, each asked for once."""

from collections.abc import Callable

import pandas as pd
import torch

from fa_lib import kernels
from fa_lib.check.attempt import KernelError, attempt, guarded
from fa_lib.experiments.variant import Call, by_key
from fa_lib.formats import BF16, FP16, FP32, FP64
from fa_lib.inputs import draw
from fa_lib.metrics import deviation

FORMATS = (BF16, FP16, FP32, FP64)  # in the order in which they are asked for
FIRST = Call("N = 256", 256, 256)  # asked for in every format
CALLS = by_key([  # asked for in the first format that it has
    Call("a length off the tiles, N = 203", 203, 203),
    Call("head_dim 32", 256, 256, head_dim=32),
    Call("head_dim 80", 256, 256, head_dim=80),
    Call("head_dim 128", 256, 256, head_dim=128),
    Call("another scale", 256, 256, options=dict(scale=0.05)),
    Call("causal", 256, 256, options=dict(causal=True)),
    Call("fewer queries than keys", 64, 256),
    Call("causal, fewer queries than keys", 64, 256, options=dict(causal=True)),
    Call("one query, as in decoding", 1, 256),
    Call("key heads shared, GQA 4 to 2", 256, 256, heads=4),
    Call("a boolean mask", 256, 256, options=dict(mask=torch.ones(256, 256, dtype=torch.bool).tril(20))),
])  # fmt: skip
LARGE = Call("scores up to some 250", 256, 256)
FAR = 0.2  # of the golden value's root mean square: 50 times what BF16 costs, a fifth of what another answer is off


def contract(kernel: str | Callable, head_dim: int = 64, device: str = "cpu") -> list[dict]:
    """What a kernel can do.

    Returns:
        rows: asked, outcome, note, problem. Formats come first.
            outcome: "yes", "no" (it raises), "broken" (as `attempt` has it) or "wrong" (it answers another question).
            note: "top_left" (causal, aligned as torch's is_causal), "unmasked" (it takes causal=True and does not
            mask), "other" (its answer is not attention's), or "".
            problem: what it raises or returns instead, in words, or "".
    """
    fn, rows = kernels.plain(kernel), []

    def ask(asked, fmt, call, times=1):
        q, k, v = draw("normal", 0, *call.shapes(head_dim, batch=2))
        q, k, v = (fmt(x).to(device, fmt.dtype) for x in (q * times, k, v))
        options = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in call.options.items()}
        answer = attempt(fn, q, k, v, **options)
        outcome, note = answer.outcome, ""
        if outcome == "yes" and times == 1:  # else a score's own rounding may turn the softmax
            outcome, note = _compared(answer.o, q, k, v, fmt, options)
        rows.append(dict(asked=asked, outcome=outcome, note=note, problem=answer.problem))
        return outcome

    can = [fmt for fmt in FORMATS if ask(f"{fmt}", fmt, FIRST) == "yes"]
    if can:
        for asked, call in CALLS.items():
            ask(asked, can[0], call)
        ask(LARGE.key, can[0], LARGE, times=64)
        rows.append(_gradients(fn, can[0], head_dim, device))
    return rows


def formats(asked: pd.DataFrame) -> list[str]:
    """The formats that a table of `contract` says yes to."""
    can = set(asked.asked[asked.outcome == "yes"])
    return [f"{fmt}" for fmt in FORMATS if f"{fmt}" in can]


def _compared(o, q, k, v, fmt, options):
    """Outcome and note of an answer of the right shape."""
    if not _far(o, kernels.golden(q, k, v, inputs=fmt, **options)):
        return "yes", ""
    if options.get("causal"):
        top_left = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        if not _far(o, kernels.golden(q, k, v, inputs=fmt, mask=top_left)):
            return "yes", "top_left"
        if not _far(o, kernels.golden(q, k, v, inputs=fmt)):
            return "wrong", "unmasked"
    return "wrong", "other"


def _far(o, golden):
    return deviation(o, golden).rmse > FAR * golden.square().mean().sqrt().item()


def _gradients(fn, fmt, head_dim, device):
    q, k, v = (fmt(x).to(device, fmt.dtype).requires_grad_() for x in draw("normal", 0, (1, 2, 256, head_dim)))
    asked = dict(asked="gradients", outcome="yes", note="", problem="")
    try:
        grads = torch.autograd.grad(guarded(fn)(q, k, v).float().sum(), (q, k, v))
    except KernelError as error:
        return asked | dict(outcome=error.outcome, problem=str(error))
    if all(g.isfinite().all() for g in grads):
        return asked
    return asked | dict(outcome="broken", problem="returns NaN or infinite values in dQ, dK or dV")
