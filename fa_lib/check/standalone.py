"""A kernel's failure at a call as a pytest file that stands alone: tensors, golden value and limit inside."""

import base64
import inspect
from collections.abc import Mapping

import torch

from fa_lib.check.capture import Capture
from fa_lib.check.limit import judged

TENSORS = ("mask", "sinks")  # of the options
NO_NAMES: Mapping[str, str] = {}
TEST = '''"""{what}

{about}
Run it with `python -m pytest` from the folder where Python finds {module}. It needs torch and pytest alone.
KERNEL=package.module:function in the environment tests another kernel f(q, k, v, ...) on the same tensors.
"""

import base64
import importlib
import itertools
import math
import os

import torch

KERNEL = os.environ.get("KERNEL") or {kernel!r}
OPTIONS = {options!r}
NAMES = {{}} if os.environ.get("KERNEL") else {names!r}  # of options -> what the kernel calls them
DEVICE = {device!r}
TENSORS = {{  # name: dtype, shape, bytes in base64
{tensors}}}


{judged}

def tensor(dtype, shape, text):
    raw = bytearray(base64.b64decode("".join(text)))
    return torch.frombuffer(raw, dtype=getattr(torch, dtype)).reshape(shape)


def test_the_kernel_is_within_the_limit():
    module, _, function = KERNEL.partition(":")
    kernel = getattr(importlib.import_module(module), function)
    held = {{name: tensor(*each) for name, each in TENSORS.items()}}
    q, k, v = (held.pop(name) for name in "qkv")
    on_device = {{name: x.to(DEVICE) for name, x in held.items()}}
    given = {{NAMES.get(name, name): x for name, x in (OPTIONS | on_device).items()}}
    o = kernel(*(x.to(DEVICE, copy=True) for x in (q, k, v)), **given)
    o = o[0] if isinstance(o, (tuple, list)) else o
    assert o.shape == (*q.shape[:-1], v.shape[-1]) and o.dtype == q.dtype, (o.shape, o.dtype)
    error, limit = judged(o.detach().cpu(), q, k, v, **OPTIONS, **held)
    assert error.isfinite().all(), "the output holds NaN or infinities"
    assert error.max() <= limit, f"the largest error is {{error.max() / limit:.2f}} times what a right kernel may have"
'''


def standalone(
    kernel: str, call: Capture, what: str, about: str, device: str = "cpu", names: Mapping[str, str] = NO_NAMES
) -> str:
    """The text of a pytest file that holds a kernel to the limit of `judged` at a call. It needs torch alone.

    Args:
        kernel: package.module:function. what: its first line. about: its second paragraph.
        names: option -> the kernel's name of it, of those it calls otherwise.
    """
    held = dict(q=call.q, k=call.k, v=call.v) | {name: x for name, x in call.options.items() if name in TENSORS}
    what, about, module = map(_in_docstring, (what, about, kernel.partition(":")[0]))
    return TEST.format(
        what=what, about=about, module=module, kernel=kernel, device=device, names=dict(names),
        judged=inspect.getsource(judged) + "\n",
        options={name: x for name, x in call.options.items() if name not in TENSORS},
        tensors="".join(f"    {name!r}: {_written(x)},\n" for name, x in held.items()),
    )  # fmt: skip


def _in_docstring(text):
    """What a stranger said, which neither ends the docstring nor is code."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _written(x):
    text = base64.b64encode(x.contiguous().view(-1).view(torch.uint8).numpy().tobytes()).decode()
    lines = "".join(f'        "{text[i : i + 100]}",\n' for i in range(0, len(text), 100))
    return f'("{str(x.dtype).removeprefix("torch.")}", {tuple(x.shape)}, [\n{lines}    ])'
