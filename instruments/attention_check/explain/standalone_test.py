"""A kernel's failure at a call as a pytest file that stands alone: tensors, golden value and limit inside."""

import base64
import inspect

import torch

from attention_check.explain.standalone_limit import judged
from attention_check.probe.capture import Capture
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.kernels.option_names import OwnNames

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
