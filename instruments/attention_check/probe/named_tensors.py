"""The tensors of a file by the names that people give them, and what the reader says of them.

Each tensor of a file is used or refused: none is ignored.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from attention_check.adapters import OPTION_NAMES

NAMES = {  # what it is -> the names that it is given: torch's, flash-attn's, those of model libraries
    "q": ("q", "query"), "k": ("k", "key"), "v": ("v", "value"),
    "o": ("o", "out", "output", "attn_output", "attn_out"),
    "dO": ("dO", "dout", "grad_out", "grad_output"),
    **OPTION_NAMES,
    "o_ref": ("o_ref", "o2", "out_ref", "out2", "ref", "reference", "expected", "o_b", "output_ref"),
    "lse": ("lse", "softmax_lse", "logsumexp", "log_sum_exp"),
    "dlse": ("dlse", "d_lse", "grad_lse", "lse_grad"),
    "dq": ("dq", "grad_q", "q_grad", "grad_query", "query_grad"),
    "dk": ("dk", "grad_k", "k_grad", "grad_key", "key_grad"),
    "dv": ("dv", "grad_v", "v_grad", "grad_value", "value_grad"),
    "q_scale": ("q_scale", "q_descale"),
    "k_scale": ("k_scale", "k_descale"),
    "v_scale": ("v_scale", "v_descale"),
    "cu_seqlens": ("cu_seqlens", "cu_seqlens_q", "cu_seq_lens_q"),
    "cu_seqlens_k": ("cu_seqlens_k", "cu_seqlens_kv", "cu_seq_lens_k"),
}  # fmt: skip
SECOND = "o_ref"  # another output of the call
BESIDE = ("lse", "dlse", "dq", "dk", "dv")  # what came with the output
STARTS = ("cu_seqlens", "cu_seqlens_k")  # of packed sequences: where each begins, and the last ends
FILE_LAYOUTS = ("bhsd", "bshd")  # of adapters.LAYOUTS, those of tensors in a file
NO_WINDOW = (None, None)
FEWEST = 64  # values of o that are not 0: each has a chance of 2^-13 to lie on FP16's grid if it is FP32's


@dataclass(frozen=True)
class Reading:
    """What the reader says of a file's tensors. None, or "", is what the file says.

    Attributes:
        fmt: a format of torch's to round q, k, v and dO to.
        layout: "bhsd" is (batch, heads, sequence, head_dim), "bshd" (batch, sequence, heads, head_dim).
        causal, scale, window, softcap: options of the call, as `kernels.options.CallOptions` has them.
        allow_large: as of `tensor_files.tensors`.

    Raises:
        ValueError: the layout is neither.
    """

    fmt: str = ""
    layout: str = "bhsd"
    causal: bool | None = None
    scale: float | None = None
    window: tuple[int | None, int | None] | None = None
    softcap: float | None = None
    allow_large: bool = False

    def __post_init__(self):
        if self.layout not in FILE_LAYOUTS:
            raise ValueError(f"layout: got {self.layout!r}; accepted for a file are {', '.join(FILE_LAYOUTS)}")

    def options(self, held: Mapping[str, Any]) -> dict[str, Any]:
        """A file's options and the reader's.

        Raises:
            ValueError: both name one, and differ.
        """
        stated = {f.name: getattr(self, f.name) for f in fields(self) if f.name in OPTION_NAMES}
        stated = {name: x for name, x in stated.items() if x is not None}
        for name, x in stated.items():
            if name in held and held[name] != x:
                raise ValueError(f"{name}: got {x!r}, and {held[name]!r} in the file; accepted is one of them")
        return {name: x for name, x in (dict(held) | stated).items() if (name, x) != ("window", NO_WINDOW)}


def by_meaning(held: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file under the keys of NAMES.

    Raises:
        ValueError: a name means nothing here, or two mean the same.
    """
    meanings = {name.lower(): what for what, names in NAMES.items() for name in names}
    found: dict[str, Tensor] = {}
    given: dict[str, str] = {}
    for name, x in held.items():
        what = meanings.get(name.lower())
        if what is None:
            accepted = "; ".join(" or ".join(names) for names in NAMES.values())
            raise ValueError(f"{name}: got a tensor of this name, which would not be used; accepted are {accepted}")
        if what in found:
            raise ValueError(f"{name}: got it beside {given[what]}; accepted is one of the two")
        found[what], given[what] = x, name
    return found


def option_values(held: Mapping[str, Tensor]) -> dict[str, Any]:
    """The options among a file's tensors (keys of NAMES), as kernels take them: numbers, a pair, tensors. A softcap of
    0 is none, and a window's side of -1 has no limit, as flash-attn writes them.

    Raises:
        ValueError: a tensor holds more or fewer numbers than the option has.
    """
    found: dict[str, Any] = {name: held[name] for name in ("mask", "sinks") if name in held}
    for name in ("causal", "scale", "softcap"):
        if name in held:
            found[name] = _numbers(name, held[name], 1)[0]
    if "causal" in found:
        if found["causal"] not in (0, 1):
            raise ValueError(f"causal: got {found['causal']}; accepted is one truth value")
        found["causal"] = bool(found["causal"])
    if found.get("softcap") == 0:
        del found["softcap"]
    if "window" in held:
        left, right = (None if side < 0 else side for side in _numbers("window", held["window"], 2))
        if (left, right) != NO_WINDOW:
            found["window"] = (left, right)
    return found


def _numbers(name, x, count):
    """The numbers of a tensor; whole ones as ints."""
    if x.numel() != count:
        accepted = "one number" if count == 1 else "two: keys to the left and to the right, -1 for no limit"
        raise ValueError(f"{name}: got {x.numel()} numbers; accepted is {accepted}")
    return [int(each) if float(each).is_integer() and count == 2 else each for each in x.reshape(-1).tolist()]


def refuse_ambiguous(names: Iterable[str], q: Tensor, k: Tensor, options: Mapping[str, Any]) -> None:
    """Raise a ValueError where a call with q and k (..., sequence, head_dim) has two readings by the names of the
    tensors in its file."""
    theirs = any(name.lower() == "is_causal" for name in names)
    if theirs and options.get("causal") and q.shape[-2] != k.shape[-2]:
        raise ValueError(
            "is_causal: got it where queries and keys differ in number: torch aligns it top-left, others "
            "bottom-right; accepted is causal, which is bottom-right, or a mask"
        )


def narrower_format(tensors: Mapping[str, Tensor]) -> str:
    """The name of the narrowest of BF16 and FP16 that holds all values of q, k, v and o, which are stored in a wider
    one, as .npz files hold BF16; "" where there is none, or no o to show in which format the kernel answers."""
    names = ("q", "k", "v", "o")
    wide = all(name in tensors and tensors[name].dtype in (torch.float32, torch.float64) for name in names)
    if not wide or int((tensors["o"] != 0).sum()) < FEWEST:  # a few round numbers say nothing
        return ""
    formats = dict(BF16=torch.bfloat16, FP16=torch.float16)
    return next((fmt for fmt, to in formats.items() if all(narrowed(tensors[x], to).dtype == to for x in names)), "")


def narrowed(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A tensor in a narrower dtype, where there is one and that changes no value; else as it is."""
    narrow = x.to(dtype or x.dtype)
    return narrow if torch.equal(narrow.to(x.dtype), x) else x
