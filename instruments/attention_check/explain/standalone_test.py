"""A kernel's failure at a call as a pytest file that stands alone: tensors, golden value and limit inside."""

import base64
import inspect
import itertools
import math

import torch

from attention_check.adapters import OwnNames
from attention_check.probe.capture import Capture
from fa_lib.kernels.kernel_ref import KernelRef


def judged(o, q, k, v, causal=False, scale=None, mask=None, **more):
    """The error of o and how far the output of a right kernel may be from the golden value.

    The golden value is attention in float64 on these inputs. A right kernel rounds P once, and its output once, to the
    format of the inputs; its exponential is good to an eighth of such a rounding; its scores and sums are in FP32, in
    any order. To first order that is at most
        u |o| + sum_j P_j |v_j| (u + u / 8 + w (3 n_kv + 2 (head_dim + 4) A + 6 softcap + 8)),
    u = 2^-8 in BF16, 2^-11 in FP16, 2^-24 in FP32, w = 2^-24, A the largest sum of |q_i k_i| scale of the row; and
    where numbers are below the format's normal ones, half a step of its smallest for each. Our rule allows twice
    the error of attention written out, whose S (before it is scaled and after), P and output are rounded
    to the format (Baseline). The limit is the larger of the two: Baseline's error on a few outputs is small by luck.

    Args:
        o: (batch, heads, n_q, v_dim), q: (batch, heads, n_q, head_dim), k, v: (batch, kv_heads, n_kv, ...), on the CPU.
        causal: aligned bottom-right. scale: None is 1 / sqrt(head_dim). mask: boolean, or added to the scores.
        more: window, (keys to the left, keys to the right), None for no limit, around key i + n_kv - n_q of query i;
            softcap: S becomes softcap tanh(S / softcap), before masks; sinks: (heads,), one more score without a value.

    Returns:
        error: float64 (batch, heads, n_q), the largest of each row; 0 where a row sees no key. limit: a number.
    """
    window, softcap, sinks = (more.get(name) for name in ("window", "softcap", "sinks"))
    dtype, (n_q, d), n_kv = q.dtype, q.shape[-2:], k.shape[-2]
    u, w = torch.finfo(dtype).eps / 2, 2.0**-24
    step = torch.finfo(dtype).smallest_normal * u
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scale = d**-0.5 if scale is None else scale
    power = 2.0 ** (math.frexp(scale)[1] - 1)  # the part of it that costs no rounding
    error, limit = torch.zeros(q.shape[:-1], dtype=torch.float64), 0.0
    for b, h in itertools.product(range(q.shape[0]), range(q.shape[1])):
        q_h, k_h, v_h = (x[b, h].double() for x in (q, k, v))
        raw, A = q_h @ k_h.T, q_h.abs() @ k_h.abs().T * scale  # (n_q, n_kv)
        S, S_low = raw * scale, (raw * power).to(dtype).double() * (scale / power)
        if softcap is not None:
            S, S_low = (softcap * torch.tanh(x / softcap) for x in (S, S_low.to(dtype).double()))
        if mask is not None:
            m = mask.expand(*q.shape[:-1], n_kv)[b, h]
            S, S_low = (x.masked_fill(~m, -math.inf) if m.dtype == torch.bool else x + m.double() for x in (S, S_low))
        if causal:
            later = torch.ones(n_q, n_kv).triu(n_kv - n_q + 1) > 0
            S, S_low = (x.masked_fill(later, -math.inf) for x in (S, S_low))
        if window is not None:
            left, right = (n_q + n_kv if side is None else side for side in window)
            near = torch.ones(n_q, n_kv).tril(n_kv - n_q + right).triu(n_kv - n_q - left) > 0
            S, S_low = (x.masked_fill(~near, -math.inf) for x in (S, S_low))
        seen = S.amax(-1, keepdim=True) > -math.inf  # (n_q, 1)
        S, S_low = (x.masked_fill(~seen, 0.0) for x in (S, S_low))
        if sinks is not None:
            S, S_low = (torch.cat([x, sinks[h].double().expand(n_q, 1)], -1) for x in (S, S_low))
            v_h = torch.cat([v_h, torch.zeros_like(v_h[:1])])
        P = torch.softmax(S, -1)
        golden = P @ v_h  # (n_q, v_dim)
        P_low = torch.softmax(S_low.to(dtype).double(), -1).to(dtype).double()
        baseline = ((P_low @ v_h).to(dtype).double() - golden).abs()
        sums = w * (3 * n_kv + 2 * (d + 4) * A.amax(-1, keepdim=True) + 6 * (softcap or 0) + 8)
        bound = u * golden.abs() + (P @ v_h.abs()) * (u + u / 8 + sums) + step * (1 + v_h.abs().sum(0))
        error[b, h] = torch.where(seen, (o[b, h].double() - golden).abs(), 0.0).amax(-1)
        allowed = [x[x.isfinite() & seen].max().item() for x in (2 * baseline, bound) if (x.isfinite() & seen).any()]
        limit = max([limit, *allowed])
    return error, limit


TENSORS = ("mask", "sinks")  # of the options
FA_LIBS = OwnNames({}, False)  # of a kernel that has fa_lib's names
TEST = '''"""{what}

{about}
Run it with `python -m pytest` from the folder where Python finds {module}. It needs torch and pytest alone.
KERNEL=package.module:function in the environment tests another kernel f(q, k, v, ...) on the same tensors;
function@bshd is one of (batch, sequence, heads, head_dim).
"""

import base64
import importlib
import itertools
import math
import os

import torch

KERNEL = os.environ.get("KERNEL") or {kernel!r}
OPTIONS = {options!r}
GIVEN = OPTIONS if os.environ.get("KERNEL") else {given!r}  # the same, as the kernel takes them
NAMES = {{}} if os.environ.get("KERNEL") else {names!r}  # of mask and sinks -> what the kernel calls them
DEVICE = {device!r}
TENSORS = {{  # name: dtype, shape, bytes in base64
{tensors}}}


{judged}

def tensor(dtype, shape, text):
    raw = bytearray(base64.b64decode("".join(text)))
    return torch.frombuffer(raw, dtype=getattr(torch, dtype)).reshape(shape)


def test_the_kernel_is_within_the_limit():
    name, _, layout = KERNEL.partition("@")
    module, _, function = name.partition(":")
    kernel = getattr(importlib.import_module(module), function)
    held = {{name: tensor(*each) for name, each in TENSORS.items()}}
    q, k, v = (held.pop(name) for name in "qkv")
    on_device = {{NAMES.get(name, name): x.to(DEVICE) for name, x in held.items()}}
    laid_out = (lambda x: x.transpose(1, 2)) if layout == "bshd" else (lambda x: x)
    tensors = [laid_out(x.to(DEVICE, copy=True)).contiguous() for x in (q, k, v)]
    o = kernel(*tensors, **GIVEN, **on_device)
    o = laid_out(o[0] if isinstance(o, (tuple, list)) else o)
    assert o.shape == (*q.shape[:-1], v.shape[-1]) and o.dtype == q.dtype, (o.shape, o.dtype)
    error, limit = judged(o.detach().cpu(), q, k, v, **OPTIONS, **held)
    assert error.isfinite().all(), "the output holds NaN or infinities"
    assert error.max() <= limit, f"the largest error is {{error.max() / limit:.2f}} times what a right kernel may have"
'''


def standalone(
    kernel: KernelRef, call: Capture, what: str, about: str, device: str = "cpu", own: OwnNames = FA_LIBS
) -> str:
    """The text of a pytest file that holds a kernel to the limit of `judged` at a call. It needs torch alone.

    Args:
        kernel: of a module. what: its first line. about: its second paragraph.
        own: what the kernel calls the options.
    """
    options = {name: x for name, x in call.options.items() if name not in TENSORS}
    names = {name: own.options[name] for name in TENSORS if own.options.get(name, name) != name}
    tensors = dict(q=call.q, k=call.k, v=call.v) | {name: x for name, x in call.options.items() if name in TENSORS}
    what, about, module = map(_in_docstring, (what, about, kernel.module))
    return TEST.format(
        what=what, about=about, module=module, kernel=kernel.key, device=device, names=names, options=options,
        given=own.given(options, call.q.shape[1] != call.k.shape[1]), judged=inspect.getsource(judged) + "\n",
        tensors="".join(f"    {name!r}: {_written(x)},\n" for name, x in tensors.items()),
    )  # fmt: skip


def _in_docstring(text):
    """What a stranger said, which neither ends the docstring nor is code."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _written(x):
    text = base64.b64encode(x.contiguous().view(-1).view(torch.uint8).numpy().tobytes()).decode()
    lines = "".join(f'        "{text[i : i + 100]}",\n' for i in range(0, len(text), 100))
    return f'("{str(x.dtype).removeprefix("torch.")}", {tuple(x.shape)}, [\n{lines}    ])'
