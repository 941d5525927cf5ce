"""The calls that show what a kernel can do, by key: lengths, head_dims, options, and two of them together."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from itertools import combinations
from typing import Any

import torch

from fa_lib import kernels
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.kernels.variants import Call
from fa_lib.numerics.formats import BF16, FP16, FP32, FP64, Format


@dataclass(frozen=True)
class Capabilities:
    """What `contract` found that decides how a kernel is called: it has gradients; it always masks causally; its causal
    mask is aligned top-left where queries are fewer than keys."""

    gradients: bool = True
    causal: bool = False
    top_left: bool = False


ALL_CAPABILITIES = Capabilities()  # where nothing else is known


@dataclass(frozen=True)
class Capability:
    """A call that a kernel may answer.

    Attributes:
        call: its key names the capability, in tables and findings.
        needs: keys of the capabilities without which it is not asked for; of two together, these two.
        combines: whether it is two others together, those that it needs.
    """

    call: Call
    needs: tuple[str, ...] = ()
    combines: bool = False

    @property
    def key(self) -> str:
        return self.call.key


def _alibi(heads, n):
    """-slope |i - j|, slopes 1/4, 1/16 ... as of arXiv 2108.12409, here for later keys too: there twice as steep, so
    that a transposed one is another. Whole numbers times a power of two: 16 bits hold them. (heads, n, n)."""
    slopes = torch.tensor([4.0**-h for h in range(1, heads + 1)])[:, None, None]
    later = torch.arange(n) - torch.arange(n)[:, None]  # of a query's key: how many keys behind its own
    return -slopes * torch.where(later > 0, 2 * later, -later)


def _boolean(n):
    """A mask (n, n) that hides two of three keys behind a row's own and one of three before it, and all beyond 20."""
    behind = torch.arange(n) - torch.arange(n)[:, None]  # of a query's key: how many keys behind its own
    return torch.where(behind > 0, behind % 3 == 1, behind % 3 != 1) & (behind <= 20)


def _hidden_first(added):
    """A mask (64, 1300) that hides the first 1,100 keys from every second row: whole tiles of up to 1,024 keys."""
    visible = torch.ones(64, 1300, dtype=torch.bool)
    visible[::2, :1100] = False
    return torch.zeros(64, 1300).masked_fill(~visible, -math.inf) if added else visible


def _of_each_sequence(n):
    """A mask (2, 1, n, n), one for each sequence of a batch and every head of it: the first sees keys up to its own,
    the second those from its own on. Every row sees a key."""
    earlier = torch.ones(n, n, dtype=torch.bool).tril()
    return torch.stack([earlier, earlier.mT])[:, None]


def _padding(n):
    """A mask (2, 1, 1, n), one for each sequence of a batch and every row of it: first and last keys are hidden."""
    at = torch.arange(n)
    return torch.stack([at < n - 90, at >= 150])[:, None, None]


FORMATS = (BF16, FP16, FP32, FP64)  # in the order in which they are asked for
FIRST = Call("format", 256, 256)  # asked for in every format, whose name is its key in tables
HEAD_DIM, GRADIENTS, GRADIENTS_AT, SINKS_GRADIENT = "head_dim", "gradients", "gradients_at", "sinks_gradient"
HEAD_DIMS = (32, 40, 72, 80, 96, 104, 128, 256)
ONE_QUERY_DIMS = (80, 96, 128)  # that kernels for one query read in vectors of 64 features
CAUSAL_FEWER, CAUSAL_ONE, FEWER, MORE = (
    "causal_fewer_queries", "causal_one_query", "fewer_queries", "more_queries",
)  # fmt: skip
UNMASKED = "unmasked"  # a call that is wrong without a mask, of a kernel that is right with a causal one
PAST_THE_END = "are outside of"  # in what a kernel raises in the machine that reads past a tensor
RACES = "watch_races"  # what is asked of GPU kernels in the machine, and the option that asks it
WATCHED = Call(RACES, 64, 192, 1, 1)  # numpy runs it
WINDOW_LEFT = "window_left"
OFF_TILES = "length_203"  # a block of keys and one of queries is not full
IN_EVERY_FORMAT = (  # of 16 bits: Triton compiles a version for each class of lengths (1, multiples of 16, others)
    OFF_TILES, f"causal_{OFF_TILES}", "one_key", "causal_one_key", FEWER, CAUSAL_ONE,
)  # fmt: skip


def in_format(key: str, fmt: Format | str) -> str:
    """What is asked for, of a capability in another format than the first."""
    return f"{key} in {fmt}"


def _options(n) -> dict[str, dict[str, Any]]:
    return {
        "causal": dict(causal=True), "boolean_mask": dict(mask=_boolean(n)), "added_mask": dict(mask=_alibi(2, n)),
        "window": dict(window=(64, 32)), "softcap": dict(softcap=2.0), "sinks": dict(sinks=torch.tensor([6.0, 4.0])),
    }  # fmt: skip


OPTIONS = _options(256)
GRADIENTS_WITH = {  # a capability -> what its gradients are called
    key: f"{GRADIENTS}_{key}"
    for key in (
        *OPTIONS, "scale", "gqa", "gqa_uneven", FEWER, CAUSAL_FEWER, MORE, OFF_TILES, "causal_window", "causal_softcap",
        "causal_sinks", "gqa_causal",
    )
}  # fmt: skip
NAMED_OPTIONS = (*OPTIONS, "scale", "gqa", GRADIENTS)  # that a reader means by options
LARGE = Call("large_scores", 256, 256)  # scores up to some 250
LARGE_CAPPED = Call("large_scores_softcap", 256, 256, options=dict(softcap=2.0))  # a tanh of exponentials overflows
OF_A_DEFECT = (  # Python's errors of a program with a defect; an AssertionError is its author's word
    "IndexError", "KeyError", "AttributeError", "TypeError", "ZeroDivisionError", "NameError", "UnboundLocalError",
    "RecursionError",
)  # fmt: skip


def at_head_dim(d: int) -> Call:
    """The call of HEAD_DIM at a size that was asked for by its number."""
    return Call(HEAD_DIM, 64, 64, head_dim=d)


def _last_row(option):
    return {name: x[..., -1:, :] if name == "mask" else x for name, x in option.items()}


def _two(a, b, *sizes, heads=2, **options):
    return Capability(Call(f"{a}_{b}", *sizes, heads=heads, options=options), (a, b), combines=True)


CAPABILITIES = (  # asked for in the first format that it has, and where it has what they need
    Capability(Call(OFF_TILES, 203, 203)),
    Capability(Call("length_1500", 1500, 1500, 1, 1)),
    Capability(Call("one_key", 1, 1)),
    *(Capability(Call(HEAD_DIM, 256, 256, head_dim=d)) for d in HEAD_DIMS),
    Capability(Call("v_dim_128", 256, 256, head_dim=192, v_dim=128)),
    Capability(Call("v_dim_512", 64, 256, 4, 1, head_dim=576, v_dim=512)),
    Capability(Call("scale", 256, 256, options=dict(scale=0.05))),
    Capability(Call(FEWER, 61, 256)),
    Capability(Call(CAUSAL_FEWER, 64, 256, options=dict(causal=True))),
    Capability(Call(MORE, 256, 97)),
    Capability(Call("one_query_decoding", 1, 256)),
    *(
        Capability(Call(f"one_query_{d}", 1, 256, head_dim=d), ("one_query_decoding", f"{HEAD_DIM}_{d}"))
        for d in ONE_QUERY_DIMS
    ),
    Capability(Call(CAUSAL_ONE, 1, 203, options=dict(causal=True))),
    Capability(Call("gqa", 256, 256, heads=4)),
    Capability(Call("gqa_uneven", 256, 256, heads=6), ("gqa",)),  # 3 heads of Q share a key head: no power of two
    *(Capability(Call(key, 256, 256, options=option)) for key, option in OPTIONS.items()),
    Capability(Call(WINDOW_LEFT, 256, 256, options=dict(window=(4, 0)))),  # fewer keys than a kernel may have parts
    _two("causal", "one_key", 1, 1, causal=True),
    _two("gqa", OFF_TILES, 203, 203, heads=4),
    *(_two(key, OFF_TILES, 203, 203, **option) for key, option in _options(203).items()),
    Capability(Call("boolean_mask_first", 64, 1300, options=dict(mask=_hidden_first(False))), ("boolean_mask",)),
    Capability(Call("boolean_mask_batch", 256, 256, options=dict(mask=_of_each_sequence(256))), ("boolean_mask",)),
    Capability(Call("boolean_mask_padding", 256, 256, options=dict(mask=_padding(256))), ("boolean_mask",)),
    Capability(Call("added_mask_first", 64, 1300, options=dict(mask=_hidden_first(True))), ("added_mask",)),
    Capability(Call("window_first", 64, 1300, options=OPTIONS["window"]), ("window",)),
    _two("scale", "softcap", 256, 256, scale=0.05, softcap=2.0),
    _two("gqa", "one_query_decoding", 1, 256, heads=4),
    _two("gqa_uneven", "one_query_decoding", 1, 256, heads=6),
    _two("gqa", "sinks", 256, 256, heads=4, sinks=torch.tensor([6.0, 4, 2, 5])),
    *(_two("gqa", a, 256, 256, heads=4, **OPTIONS[a]) for a in ("causal", "boolean_mask", "window", "softcap")),
    *(
        _two(a, b, 256, 256, **OPTIONS[a], **OPTIONS[b])
        for a, b in combinations(OPTIONS, 2) if {a, b} != {"boolean_mask", "added_mask"}
    ),
    *(_two(a, "one_query_decoding", 1, 256, **_last_row(OPTIONS[a])) for a in OPTIONS if a != "causal"),
)  # fmt: skip


QUESTIONS = (  # (asked, dim) of a table of `contract`
    *((f"{fmt}", 0) for fmt in FORMATS),
    *((each.key, each.call.head_dim or 0 if each.key == HEAD_DIM else 0) for each in CAPABILITIES),
    (LARGE.key, 0), (LARGE_CAPPED.key, 0), (GRADIENTS, 0), *((GRADIENTS_AT, d) for d in HEAD_DIMS),
    *((asked, 0) for asked in GRADIENTS_WITH.values()), (SINKS_GRADIENT, 0),
)  # fmt: skip


def crashed(problem: str, shapes_taken: bool = False) -> bool:
    """Whether what a kernel raises, "raises ...", is a defect of its own, and no refusal of a call that it is made for.

    Args:
        shapes_taken: it has answered a call of these shapes, so that a RuntimeError of torch's refuses no shape.
    """
    name = problem.removeprefix("raises ").partition(":")[0]
    return name in OF_A_DEFECT or "values to unpack" in problem or (shapes_taken and name == "RuntimeError")


def kernel_fn(kernel: KernelRef | str | Callable, causal: bool = False) -> Callable:
    """The kernel of a name, called f(q, k, v, **options); where `causal` is set, it masks causally in every call, and
    else where it is told to.

    Raises:
        ValueError: there is no such kernel.
    """
    fn = kernels.plain(kernel)
    if causal:
        return _causal(fn)
    return _unmasked(fn) if masks_by_default(fn) else fn


def parameters(fn: Callable) -> Mapping[str, inspect.Parameter] | None:
    """A kernel's parameters by name; None of one that is compiled, and keeps its signature to itself."""
    try:
        return inspect.signature(fn).parameters
    except ValueError:
        return None


def masks_by_default(fn: Callable) -> bool:
    """Whether a kernel has a parameter `causal` that is set where it is not given."""
    known = parameters(fn) or {}
    return "causal" in known and known["causal"].default is True


def _unmasked(fn):
    """A kernel that masks causally only where it is told to."""

    @wraps(fn)
    def unmasked(q, k, v, *, causal=False, **options):
        return fn(q, k, v, causal=causal, **options)

    return unmasked


def _causal(fn):
    """A kernel told to mask causally if it has a word for that: one that always masks may have none."""
    known = parameters(fn)
    takes_causal = known is None or any(p.name == "causal" or p.kind is p.VAR_KEYWORD for p in known.values())

    def masking(q, k, v, **options):
        others = {name: x for name, x in options.items() if name != "causal"}
        return fn(q, k, v, **others, **(dict(causal=True) if takes_causal else {}))

    return masking
