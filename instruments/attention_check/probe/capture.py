"""One captured call of attention in a file: Q, K, V, how they were used, what came out, its gradient, and where it was.

The tensors are named q, k, v, mask, causal, scale, ... (`named_tensors`); where it was stands in the header of a
.safetensors file.
"""

import weakref
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from attention_check.conventions.reading import in_four_dimensions
from attention_check.probe.named_tensors import (
    BESIDE,
    SECOND,
    Reading,
    by_meaning,
    narrowed,
    option_values,
    refuse_ambiguous,
)
from attention_check.probe.read_call import call_of
from attention_check.probe.tensor_files import require, tensors
from fa_lib.execution.files import replacing
from fa_lib.execution.untrusted import Untrusted
from fa_lib.kernels.options import validate
from fa_lib.numerics.formats import Format

JUDGED = (torch.bfloat16, torch.float16, torch.float32)  # dtypes in which calls are judged
AS_IT_IS = Reading()


@dataclass
class Capture:
    """A call of attention.

    Attributes:
        q, k, v: (batch, heads, sequence, head_dim), or any leading dimensions.
        options: of a kernel: causal, scale, mask, window, softcap, sinks; those that there are.
        o: what the kernel that ran gave; None where it is not known.
        dO: the gradient of o; None where no backward pass came by.
        about: where it was, as texts: model, step, layer, call, ...; empty where it is not known.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    options: dict
    o: Tensor | None = None
    dO: Tensor | None = None
    about: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor, options: dict, o: Tensor, about: dict[str, str]) -> "Capture":
        """Copies on the CPU of a call's tensors, of (batch, heads, sequence, head_dim). Its dO is the gradient of `o`
        in the first backward pass that reaches it: nothing of the model is kept alive for that."""
        used = dict(causal=False, scale=q.shape[-1] ** -0.5) | options
        used = {name: used[name] for name in ("causal", "scale", "mask") if name in used}  # torch's call has no others
        if "mask" in used:
            used["mask"] = _copy(used["mask"])
        captured = cls(_copy(q), _copy(k), _copy(v), used, _copy(o), about=dict(about))
        if o.requires_grad:
            own = weakref.ref(captured)

            def reached(grad):
                there = own()
                if there is not None and there.dO is None:
                    there.dO = _copy(grad)

            o.register_hook(reached)
        return captured

    def on(self, device: str) -> "Capture":
        """The same call with its tensors on a device of torch's."""
        given = {name: x.to(device) for name, x in vars(self).items() if isinstance(x, Tensor)}
        options = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in self.options.items()}
        return replace(self, options=options, **given)

    def in_four_dimensions(self) -> "Capture":
        """The same call of (batch, heads, sequence, head_dim), without o and dO; its mask is as large as the
        scores, and a causal that is False is left out."""
        q, k, v = (in_four_dimensions(x) for x in (self.q, self.k, self.v))
        options = {name: x for name, x in self.options.items() if name != "causal" or x}
        if "mask" in options:
            options["mask"] = in_four_dimensions(options["mask"].expand(*self.q.shape[:-1], k.shape[-2]))
        return Capture(q, k, v, options, about=self.about)

    def write(self, path: str | Path) -> None:
        """Write a .safetensors file, whole or not at all."""
        stored = {name: torch.as_tensor(x).contiguous() for name, x in self.options.items()}
        stored |= {name: getattr(self, name) for name in ("q", "k", "v", "o", "dO") if getattr(self, name) is not None}
        with replacing(path) as temporary:
            save_file(stored, temporary, metadata=self.about)


def _copy(x):
    return x.detach()[(None,) * (4 - x.ndim)].to("cpu", copy=True).contiguous()


def captured(path: str | Path, reading: Reading = AS_IT_IS) -> Capture:
    """The Capture that a file holds.

    Where all values of q, k, v and o are BF16's or FP16's, stored in a wider dtype, as a .npz file holds them, they are
    taken in that format, and `about` says so as "stored_in". With `reading.fmt` q, k and v are rounded to it; where
    that changes a value, o is left out (it is no answer to these inputs), and `about` says so as "without_o". Another
    output, a log-sum-exp and gradients are left to `explain`, and `about` names them as "beside".

    Args:
        path: .safetensors, .npz or .pt without pickle, with tensors q, k, v, and, where there were any, o, dO, mask
            (boolean or added to the scores), causal (one truth value), scale, softcap (one number each), window (two),
            sinks: under any of `named_tensors.NAMES`.

    Raises:
        ValueError: the file is of another kind or cannot be read, a name is missing, means nothing or stands twice, the
            shapes do not fit each other, the file and the reading contradict each other, or values of q, k or v are NaN
            or infinite.
    """
    stored = {name: x.detach() for name, x in tensors(path, reading.allow_large).items()}
    about: dict[str, str] = {name: text for name, text in _header(path).items() if name != "beside"}
    try:
        named = by_meaning(stored)
        require(named, stored)
        if beside := [name for name in (SECOND, *BESIDE) if name in named]:
            about["beside"] = ", ".join(beside)
        call = call_of(named, replace(reading, fmt=""), reading.options(option_values(named)))
        held = {name: getattr(call, name) for name in "qkvo" if name in named}
        held |= {name: x for name, x in call.others.items() if name == "dO"}
        q, k, v = (held[name] for name in "qkv")
        validate(q, k, v, **call.options)
        refuse_ambiguous(stored, q, k, call.options)
        due = (*q.shape[:-1], v.shape[-1])
        for name in ("o", "dO"):
            if name in held and tuple(held[name].shape) != due:
                raise ValueError(f"{name}: got shape {tuple(held[name].shape)}; accepted is the output's, {due}")
        if call.options.get("mask") is not None and call.options["mask"].isnan().any():
            raise ValueError("mask: got NaN; accepted are truth values, or numbers that are added to the scores")
        for name, x in (("q", q), ("k", k), ("v", v)):
            if count := int((~x.isfinite()).sum()):
                at = f" (it was at step {about['step']}, layer {about['layer']!r})" if "layer" in about else ""
                raise ValueError(
                    f"{name}: {count} of {x.numel()} values are NaN or infinite{at}; accepted are finite values: "
                    "capture a call from before the loss went wrong"
                )
        own = call.stated if call.stated in ("BF16", "FP16") else q.dtype
        to = Format.of(reading.fmt or own)
        if not reading.fmt and to.dtype != named["q"].dtype:
            about["stored_in"] = Format.of(named["q"].dtype).name
        rounded = [to(x.double()) for x in (q, k, v)]
        if "o" in held and any(not torch.equal(x, was.double()) for x, was in zip(rounded, (q, k, v))):
            del held["o"]
            about["without_o"] = to.name
        q, k, v = (x.to(to.dtype) for x in rounded)
        o = narrowed(held["o"], to.dtype) if "o" in held else None
        dO = to(held["dO"].double()).to(to.dtype) if "dO" in held else None
        if q.dtype not in JUDGED:
            rounds = "`fa-lib check tensors --format BF16` rounds them first"
            raise ValueError(f"q: got {q.dtype}; accepted are BF16, FP16 and FP32: {rounds}")
    except (ValueError, RuntimeError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None
    return Capture(q, k, v, call.options, o, dO, about)


def _header(path):
    """The texts in the header of a .safetensors file; none of any other."""
    if Path(path).suffix != ".safetensors":
        return {}
    with safe_open(path, "pt") as file:
        return {name: Untrusted(text) for name, text in (file.metadata() or {}).items()}
