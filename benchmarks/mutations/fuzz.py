"""Is a changed kernel still right? Random calls say so, and no judge: a kernel's largest error, over that of the kernel
before the change, both held to that kernel in float64."""

import inspect
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

CALLS = 80
QUERIES, KEYS = (1, 3, 64, 113, 130, 257, 300), (1, 5, 64, 100, 192, 203, 255, 256, 257, 300, 500, 1100)
HEADS, HEAD_DIMS = ((2, 2), (4, 2), (4, 1)), (32, 64, 80)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def call(fn: Callable, number: int) -> tuple[dict, dict]:
    """Draw call `number` of a kernel: (q, k, v and dO by name; options that the kernel takes)."""
    draw, generator = random.Random(number), torch.Generator().manual_seed(number)
    takes = set(inspect.signature(fn).parameters)
    dtype, batch = draw.choice(DTYPES), draw.choice((1, 2))
    n_q, n_kv, (heads, shared), d = (draw.choice(each) for each in (QUERIES, KEYS, HEADS, HEAD_DIMS))
    q, k, v = (
        torch.randn(batch, h, n, d, generator=generator) for h, n in ((heads, n_q), (shared, n_kv), (shared, n_kv))
    )
    kind = draw.choice(("normal", "normal", "large scores", "mean", "one key"))
    if kind == "large scores":
        q = q * 12
    if kind == "mean":
        v = v + 4
    if kind == "one key":
        k[:, :, draw.randrange(n_kv)] *= 16
    options: dict = {}
    if draw.random() < 0.5:
        options["causal"] = True
    if draw.random() < 0.3:
        options["scale"] = draw.choice((0.05, 0.3))
    if "window" in takes and draw.random() < 0.3:
        options["window"] = draw.choice(((50, 50), (None, 7), (130, None), (0, 0), (3, 200)))
    if "softcap" in takes and draw.random() < 0.3:
        options["softcap"] = draw.choice((5.0, 30.0))
    if "sinks" in takes and draw.random() < 0.3:
        options["sinks"] = 3 * torch.randn(heads, generator=generator)
    if "mask" in takes and draw.random() < 0.5:
        shape = (draw.choice((1, batch)), draw.choice((1, heads)), n_q, n_kv)
        mask = torch.randn(shape, generator=generator)
        options["mask"] = (
            mask > draw.choice((-1.0, 0.0, 1.5)) if draw.random() < 0.5 else mask.masked_fill(mask > 1, -torch.inf)
        )
    tensors = dict(
        q=q.to(dtype), k=k.to(dtype), v=v.to(dtype), dO=torch.randn(batch, heads, n_q, d, generator=generator).to(dtype)
    )
    return tensors, options


def answers(fn: Callable, tensors: dict[str, Tensor], options: dict) -> dict[str, Tensor]:
    """o, dq, dk, dv of a call."""
    inputs = [tensors[name].clone().requires_grad_() for name in "qkv"]
    o = fn(*inputs, **options)
    gradients = torch.autograd.grad(o, inputs, tensors["dO"])
    return dict(zip(("o", "dq", "dk", "dv"), (o.detach(), *gradients)))


def wide(options: dict) -> dict:
    """Options in float64."""
    return {name: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for name, x in options.items()}


@dataclass(frozen=True)
class Expected:
    """What the right kernel answers at a call.

    Attributes:
        tensors, options: the call. found: its answers. exact: those in float64. floors: of the error of each, that FP32
            costs: terms as large as that may cancel, and leave no gradient.
    """

    tensors: dict[str, Tensor]
    options: dict
    found: dict[str, Tensor]
    exact: dict[str, Tensor]
    floors: dict[str, float]


@lru_cache(maxsize=1)
def expected(right: Callable, calls: int) -> list[Expected]:
    """The answers of a right kernel, at calls 0 to `calls` - 1."""
    every = []
    for number in range(calls):
        tensors, options = call(right, number)
        exact = answers(right, {name: x.double() for name, x in tensors.items()}, wide(options))
        every.append(Expected(tensors, options, answers(right, tensors, options), exact, _floors(tensors, options)))
    return every


def _floors(tensors, options):
    """A few units of FP32 of the largest terms that o, dq, dk and dv are sums of."""
    q, k, v, dO = (tensors[name].double().abs().max().item() for name in ("q", "k", "v", "dO"))
    head_dim = tensors["q"].shape[-1]
    dS = options.get("scale", head_dim**-0.5) * dO * v * head_dim
    return {name: 2**-21 * x for name, x in dict(o=v, dq=dS * k, dk=dS * q, dv=dO).items()}


def compared(right: Callable, changed: Callable, calls: int = CALLS) -> dict:
    """What a change does. An error is the largest of a tensor, over that of the right kernel, which counts as half of a
    unit roundoff of the largest value at least; inf: an exception, another shape, or a value that is no number.

    Returns:
        dict: same (whether every bit is), worst (of the errors; inf too where the dtype is another one), where (call
        and tensor of the worst; what is raised), above (the worst, where the right kernel's error counts as what FP32
        costs at least: terms that cancel may leave no gradient, and a right kernel nothing but FP32's roundings).
    """
    found = dict(same=True, worst=0.0, where="", above=0.0)
    for number, each in enumerate(expected(right, calls)):
        try:
            given = answers(changed, each.tensors, each.options)
        except Exception as error:  # noqa: BLE001, of any kind
            return dict(same=False, worst=math.inf, where=f"call {number}: {type(error).__name__}", above=math.inf)
        for name, x in given.items():
            own, exact = each.found[name], each.exact[name]
            if x.shape != own.shape:
                where = f"call {number}: the shape of {name}"
                return dict(same=False, worst=math.inf, where=where, above=math.inf)
            typed = x.dtype == own.dtype
            if typed and torch.equal(x.isnan(), own.isnan()) and torch.equal(x.nan_to_num(), own.nan_to_num()):
                continue
            off = (x - exact).abs().max().item()
            due = max((own - exact).abs().max().item(), torch.finfo(own.dtype).eps / 4 * exact.abs().max().item())
            times, above = (_over(off, least) for least in (due, max(due, each.floors[name])))
            times = times if typed else math.inf
            found |= dict(same=False, above=max(found["above"], above))
            if times > found["worst"]:
                found |= dict(worst=times, where=f"call {number}: {name if typed else f'the dtype of {name}'}")
    return found


def _over(off: float, due: float) -> float:
    return math.inf if math.isnan(off) or math.isinf(off) else off / due if due else math.inf if off else 0.0


def first_call(fn: Callable) -> str | float:
    """What anybody sees at a first call, with and without a causal mask, of 300 rows in BF16: the largest error, over
    the largest value of the output; or what is wrong with it, in words."""
    generator, worst = torch.Generator().manual_seed(0), 0.0
    q, k, v = (torch.randn(1, 2, 300, 64, generator=generator).bfloat16() for _ in "qkv")
    for causal in (False, True):
        try:
            o = fn(q, k, v, causal=causal)
        except Exception as error:  # noqa: BLE001, of any kind
            return type(error).__name__
        exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=causal)
        if not isinstance(o, Tensor) or o.shape != exact.shape or not o.isfinite().all():
            return "no output of finite values"
        worst = max(worst, ((o - exact).abs().max() / exact.abs().max()).item())
    return worst
