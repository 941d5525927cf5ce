"""One captured call of attention in a file: Q, K, V, how they were used, what came out, its gradient, and where it was.

The tensors are named q, k, v, mask, causal, scale, o and dO; where it was stands in the header of a .safetensors file.
"""

import weakref
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from fa_lib.check.attempt import shown
from fa_lib.execution.files import replacing
from fa_lib.formats import Format
from fa_lib.inputs import tensors
from fa_lib.kernels.options import check


@dataclass
class Capture:
    """A call of attention.

    Attributes:
        q, k, v: (batch, heads, sequence, head_dim), or any leading dimensions.
        options: of a kernel: causal, scale, mask; those that there are.
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
        used = {name: used[name] for name in ("causal", "scale", "mask") if name in used}
        if "mask" in used:
            used["mask"] = _copy(used["mask"])
        captured = cls(*map(_copy, (q, k, v)), used, _copy(o), about=dict(about))
        if o.requires_grad:
            own = weakref.ref(captured)

            def reached(grad):
                there = own()
                if there is not None and there.dO is None:
                    there.dO = _copy(grad)

            o.register_hook(reached)
        return captured

    def write(self, path: str | Path) -> None:
        """Write a .safetensors file, whole or not at all."""
        held = {name: torch.as_tensor(x).contiguous() for name, x in self.options.items()}
        held |= {name: getattr(self, name) for name in ("q", "k", "v", "o", "dO") if getattr(self, name) is not None}
        with replacing(path) as temporary:
            save_file(held, temporary, metadata=self.about)


def _copy(x):
    return x.detach()[(None,) * (4 - x.ndim)].to("cpu", copy=True).contiguous()


def captured(path: str | Path, fmt: str = "", allow_large: bool = False) -> Capture:
    """The Capture that a file holds.

    Args:
        fmt: a format of torch's to round q, k, v and dO to first, for a file that holds wider numbers than the kernel
            takes. Where that changes their dtype, o is left out: it is no answer to these inputs.
        path: .safetensors, .npz or .pt without pickle, with tensors named q, k, v, and, where there were any, mask
            (boolean or added to the scores), causal (one truth value), scale (one number), o and dO.
        allow_large: as of `inputs.tensors`.

    Raises:
        ValueError: the file is of another kind or cannot be read, a name is missing, the shapes do not fit each other,
            or values of q, k or v are NaN or infinite.
    """
    held, about = {name: x.detach() for name, x in tensors(path, allow_large).items()}, _header(path)
    q, k, v, o, dO = (held.get(name) for name in ("q", "k", "v", "o", "dO"))
    try:
        options = {name: held[name].item() for name in ("causal", "scale") if name in held}
        if "mask" in held:
            options["mask"] = held["mask"]
        check(q, k, v, **options)
        due = (*q.shape[:-1], v.shape[-1])
        for name, x in (("o", o), ("dO", dO)):
            if x is not None and tuple(x.shape) != due:
                raise ValueError(f"{name}: got shape {tuple(x.shape)}; accepted is the output's, {due}")
        if options.get("mask") is not None and options["mask"].isnan().any():
            raise ValueError("mask: got NaN; accepted are truth values, or numbers that are added to the scores")
        for name, x in (("q", q), ("k", k), ("v", v)):
            if count := int((~x.isfinite()).sum()):
                at = f" (it was at step {about['step']}, layer {about['layer']!r})" if "layer" in about else ""
                raise ValueError(
                    f"{name}: {count} of {x.numel()} values are NaN or infinite{at}; accepted are finite values: "
                    "capture a call from before the loss went wrong"
                )
        if fmt:
            to, was = Format.of(fmt), q.dtype
            q, k, v = (to(x.double()).to(to.dtype) for x in (q, k, v))
            dO = None if dO is None else to(dO.double()).to(to.dtype)
            o = o if q.dtype == was else None
        if q.dtype not in (torch.bfloat16, torch.float16, torch.float32):
            raise ValueError(
                f"format: got {q.dtype}; accepted are BF16, FP16 and FP32: --format BF16 rounds them first"
            )
    except (ValueError, RuntimeError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None
    return Capture(q, k, v, options, o, dO, about)


def _header(path):
    """The texts in the header of a .safetensors file; none of any other."""
    if Path(path).suffix != ".safetensors":
        return {}
    with safe_open(path, "pt") as file:
        return {name: shown(text) for name, text in (file.metadata() or {}).items()}
