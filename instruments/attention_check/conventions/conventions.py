"""The conventions that a call of attention may follow, likely ones first, and the option that selects each one."""

import math
from ast import literal_eval
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from attention_check.conventions.attention import Dialect, Unfit
from attention_check.conventions.rope import BASES, PAIRS, ROPE, ROTATED, of_number

if TYPE_CHECKING:  # which imports this module
    from attention_check.conventions.reading import CapturedCall


@dataclass(frozen=True)
class Convention:
    """A choice of one aspect of `attention.Dialect`.

    Attributes:
        aspect, choice: a field of Dialect, and its value.
        label: what the output is then, after "attention": "with a causal mask aligned top-left".
        fault: nobody means it so.
        fits: an CapturedCall -> whether it is another answer than what the caller believes.
        selects: library -> how to have it, or how to have what the caller believes.
        how: computes it. Of a scale: (as believed, head_dim, features of q up to the last that is not 0) -> the scale.
            Of a causal mask: (rows, keys, the key that aligns with each row) -> the keys that are seen, (rows, n_kv).
            Of a layout: tensors by the names q, k, v, o -> the same as (batch, heads, sequence, head_dim). Of roles: q,
            k, v -> q, k, v in their places. Of sinks: (as believed, the scale) -> the sinks. The other aspects are read
            in `reading`, `rope` and `attention`.
    """

    aspect: str
    choice: Any
    label: str
    fault: bool = False
    fits: "Callable[[CapturedCall], bool]" = lambda call: True
    selects: Mapping[str, str] = field(default_factory=dict)
    how: Callable[..., Any] = field(default=lambda *values: values, kw_only=True)

    @property
    def key(self) -> str:
        return f"{self.aspect}_{self.choice}"


def _has(name):
    return lambda call: call.options.get(name) is not None and call.options[name] is not False


def _lacks(name):
    return lambda call: not _has(name)(call)


def _other_scale(call):
    """A scale whose square is not 1 / head_dim."""
    d, scale = call.q.shape[-1], call.options.get("scale")
    return scale is not None and abs(scale * scale * d - 1) > 1e-6


def _top_left(call):
    """With other lengths of q and k, in the believed layout or with heads and sequence exchanged."""
    return call.q.shape[1:3] != call.k.shape[1:3] and (_has("causal")(call) or _lacks("mask")(call))


def _in_parts(call):
    """Not for all keys: `search.IN_PARTS` asks it of some."""
    return False


def _mask(test):
    return lambda call: call.options.get("mask") is not None and test(call.options["mask"])


def _triangle(offset):
    """A mask that hides the keys above a diagonal, which begins in a corner, and no others."""

    def fits(call):
        mask, n_q, n_kv = call.options.get("mask"), call.q.shape[2], call.k.shape[2]
        if mask is None or n_q == n_kv or mask.shape[-2:] != (n_q, n_kv) or mask[..., 0, 0].numel() != 1:
            return False
        visible = mask.reshape(n_q, n_kv) if mask.dtype == torch.bool else mask.reshape(n_q, n_kv) > -math.inf
        return torch.equal(visible.cpu(), torch.ones(n_q, n_kv, dtype=torch.bool).tril(offset * (n_kv - n_q)))

    return fits


def _flat(features):
    """Whether the last dimension may hold several heads of so many features: the tensors have one head, or one entry
    (three dimensions, whose first was read as heads) and a last dimension of LARGEST_HEAD or more."""

    def fits(call):
        batch, heads, _, d = call.q.shape
        return (heads == 1 or batch == 1 and d >= LARGEST_HEAD) and d > features and d % features == 0

    return fits


def _of(names, change):
    """A layout in which the tensors of these names are changed."""
    return lambda tensors: {name: change(x) if name in names else x for name, x in tensors.items()}


def _turned(x):
    return x.transpose(1, 2)


def _viewed(x):
    """Memory of (batch, sequence, heads, head_dim), taken for (batch, heads, sequence, head_dim)."""
    batch, heads, n, d = x.shape
    return x.reshape(batch, n, heads, d).transpose(1, 2)


def _contiguous(x):
    """Memory of (batch, heads, sequence, head_dim), where it is (batch, sequence, heads, head_dim)."""
    return x.transpose(1, 2).reshape(x.shape)


def _overlapping(x):
    """Element (i, c) of a head that lies as (head_dim, n) in memory, read at place i + c of it."""
    n, d = x.shape[-2:]
    return x.mT.flatten(-2).unfold(-1, d, 1)[..., :n, :]


def _hadamard(x):
    """The orthonormal Hadamard transform (Sylvester's) of the last dimension; it is its own inverse."""
    d = x.shape[-1]
    if d & (d - 1):
        raise Unfit(f"layout: {d} features are no power of 2")
    found = x.double()
    for size in (2**i for i in range(d.bit_length() - 1)):
        a, b = found.unflatten(-1, (-1, 2, size)).unbind(-2)
        found = torch.stack([a + b, a - b], -2).flatten(-3)
    return (found * d**-0.5).to(x.dtype)


def _in_thirds(tensors):
    """The heads of q, k and v, side by side head by head, taken for all of q, then of k, then of v."""
    q, k, v = (tensors[name] for name in "qkv")
    if not q.shape == k.shape == v.shape:
        raise Unfit("layout: q, k and v of other shapes are in no one tensor")
    return tensors | dict(zip("qkv", torch.stack([q, k, v], 2).flatten(1, 2).chunk(3, 1)))


def _in_one(call):
    """Whether q, k and v may be heads of one tensor, (batch, sequence, heads of all three, head_dim)."""
    return len({(x.shape[0], *x.shape[2:]) for x in (call.q, call.k, call.v)}) == 1


def _strided(names):
    """A layout of such a tensor, in which some of q, k and v are read as if they were contiguous."""

    def read(tensors):
        memory, first, found = torch.cat([tensors[name] for name in "qkv"], 1).transpose(1, 2).flatten(), 0, {}
        for name in "qkv":
            batch, heads, n, d = tensors[name].shape
            found[name] = memory[first : first + batch * heads * n * d].view(batch, n, heads, d).transpose(1, 2)
            first += heads * d
        return tensors | {name: found[name] for name in names}

    return read


def _side_by_side(features):
    def apart(x):
        if x.shape[-1] % features:
            raise Unfit(f"layout: heads of {features} features in {tuple(x.shape)}")
        return x.flatten(0, 1).unflatten(-1, (-1, features)).transpose(1, 2)

    return _of("qkvo", apart)


def _flat_output(turned):
    """The output alone has its heads side by side; turned: they were behind the sequence before."""

    def apart(tensors):
        (batch, heads, n, _), features, o = tensors["q"].shape, tensors["v"].shape[-1], tensors["o"]
        if heads == 1 or o.shape[-1] != heads * features or o.numel() != batch * heads * n * features:
            raise Unfit(f"layout: o {tuple(o.shape)} of {heads} heads")
        o = o.reshape(batch, n, heads, features).transpose(1, 2) if turned else o.reshape(batch, heads, n, features)
        return tensors | dict(o=o)

    return apart


def filled(q):
    """Features of q up to the last that is not 0, as of a head that was padded."""
    at = (q != 0).flatten(0, -2).any(0).nonzero()
    return int(at.max()) + 1 if len(at) else q.shape[-1]


def _alone(q, features):
    """q, with 0 in all other features."""
    part = torch.zeros_like(q)
    part[..., features] = q[..., features]
    return part


def _normed(x, power):
    """A tensor whose rows have the length head_dim to a power, rounded as it is stored."""
    return (F.normalize(x.double(), dim=-1) * x.shape[-1] ** power).to(x.dtype)


def _ring(keys, own, blocks):
    size = max(keys.shape[1] // blocks, 1)
    return (keys // size <= own // size) & (keys % size <= own % size)


FAULT = True
_boolean, _numbers = _mask(lambda mask: mask.dtype == torch.bool), _mask(lambda mask: mask.dtype != torch.bool)
LARGEST_HEAD = 128  # features; in three dimensions a last one that is as large may be that of several heads
TILES = (4, 8, 16, 32, 48, 64, 80, 96, 112, 128, 256)  # keys of a tile
CHUNKS, LOST = (*(2**i for i in range(4, 14)),), 256  # keys of a chunk; so few are a tile
RINGS = (2, 4, 8)  # blocks of keys
HEAD_DIMS = (64, 128, 32, 80, 96, 40, 48, 16, 72, 112, 160, 192, 256)
LAYOUT = {
    "torch": "scaled_dot_product_attention takes (batch, heads, sequence, head_dim)",
    "flash-attn": "flash_attn_func takes (batch, sequence, heads, head_dim)",
    "jax": "jax.nn.dot_product_attention takes (batch, sequence, heads, head_dim)",
    "mlx": "mx.fast.scaled_dot_product_attention takes (batch, heads, sequence, head_dim)",
    "onnx": "Attention (opset 23) takes (batch, heads, sequence, head_dim), or 3-D with q_num_heads",
}
SIDE_BY_SIDE = {
    "torch": "x.unflatten(-1, (heads, head_dim)).transpose(1, 2) takes them apart",
    "onnx": "Attention (opset 23) takes them with q_num_heads and kv_num_heads",
}
ALIGNED = {
    "torch": "is_causal=True is top-left; torch.nn.attention.bias.causal_lower_right is bottom-right",
    "flash-attn": "causal=True is bottom-right, since 2.1",
    "jax": "is_causal=True is top-left; a mask gives any other",
    "mlx": 'mask="causal" is bottom-right',
    "onnx": "is_causal=1 is top-left without a KV cache, bottom-right with past_key",
}
BOOLEAN = {
    "torch": "scaled_dot_product_attention: True is seen; nn.MultiheadAttention: True is hidden",
    "jax": "mask: True is seen",
    "mlx": "a boolean mask: True is seen",
    "onnx": "attn_mask of type bool: True is seen",
}
SCALE = {"the scale": "scale= of torch, JAX and MLX, softmax_scale= of flash-attn, the attribute scale of ONNX"}

NORMS = {"l2": (0.0, "length 1"), "rms": (0.5, "a root mean square of 1")}  # the power of head_dim, as a length
NORMED = {f"{of}_{norm}": of for of in ("qk", "q", "k") for norm in NORMS}
FLAT = "flat_"  # a layout: heads lie side by side in the last dimension, of so many features each
BSHD = "_bshd"  # the end of one: tensors are (batch, sequence, heads, head_dim)
SHIFTED = ("later", "before", 1), ("earlier", "behind", -1)
PACKED = {  # of CapturedCall.masks
    "starts_of_q": "the places of its queries (cu_seqlens in place of cu_seqlens_k)",
    "lengths_of_q": "their own start, and as many as its queries",
}  # fmt: skip

CONVENTIONS = (
    Convention("causal", "none", "without the causal mask: rows see later keys", FAULT, _has("causal"),
               how=lambda rows, keys, own: keys >= 0),
    Convention("causal", "top_left", "with a causal mask aligned top-left", fits=_top_left, selects=ALIGNED,
               how=lambda rows, keys, own: keys <= rows),
    Convention("causal", "bottom_right", "with a causal mask", fits=_lacks("causal"), selects=ALIGNED,
               how=lambda rows, keys, own: keys <= own),
    *(Convention("layout", f"{name}{BSHD}", f"{words} (batch, sequence, heads, head_dim)", selects=LAYOUT,
                 how=_of(of, _turned)) for name, of, words in (
        ("all", "qkvo", "of tensors read as"), ("inputs", "qkv", "of q, k and v read as"),
        ("o", "o", "with its output as"),
    )),
    *(Convention("layout", f"{of}{BSHD}", f"of {' and '.join(of)} read as (batch, sequence, heads, head_dim)", FAULT,
                 how=_of(of, _turned)) for of in ("q", "kv", "k", "v")),
    Convention("layout", "o_reshaped", "with its output reshaped from (batch, sequence, heads, head_dim), where it "
               "should be transposed", FAULT, how=_of("o", _viewed)),
    *(Convention("layout", f"{name}_{key}", f"of {words} {how}", FAULT,
                 lambda call, of=of: "o" not in of or call.k.shape[1] > 1 or bool({"causal", "mask"} & {*call.options}),
                 how=_of(of, change))
      for key, change, how in (
        ("reshaped", _viewed, "with the strides of (batch, sequence, heads, head_dim)"),
        ("contiguous", _contiguous, "as if contiguous, where memory is (batch, sequence, heads, head_dim)"))
      for name, of, words in (("q", "q", "q read"), ("k", "k", "k read"), ("v", "v", "v read"),
                              ("inputs", "qkv", "q, k and v read"),
                              ("all", "qkvo", "q, k and v read, and o written,"))),
    Convention("layout", "in_thirds", "of q, k and v that lie head by head in one tensor, which is split in thirds",
               FAULT, lambda call: call.q.shape == call.k.shape == call.v.shape, how=_in_thirds),
    *(Convention("layout", f"{name}_of_packed", f"of {words}, views of one packed tensor, read as if contiguous", FAULT,
                 _in_one, how=_strided(of)) for name, of, words in (
        ("kv", "kv", "k and v"), ("inputs", "qkv", "q, k and v"),
    )),
    *(Convention("layout", f"{name}_column_major", f"of {name} read as if its last stride were 1, which it is not: its "
                 "last two dimensions are exchanged in memory", FAULT, how=_of(name, lambda x: x.mT.reshape(x.shape)))
      for name in "qkv"),
    *(Convention("layout", f"{name}_inner", f"of {name} with strides of 1 in its last two dimensions, which are "
                 "exchanged in memory", FAULT, how=_of(name, _overlapping)) for name in "qkv"),
    Convention("layout", "o_hadamard", "with a Hadamard transform of the features of its output", FAULT,
               how=_of("o", _hadamard)),
    Convention("layout", "o_flat_reshaped", "with its output viewed as (batch, sequence, heads * head_dim), where it "
               "should be transposed first", FAULT, how=_flat_output(False)),
    Convention("layout", "o_flat", "with its output as (batch, sequence, heads * head_dim)", selects=SIDE_BY_SIDE,
               how=_flat_output(True)),
    *(Convention("layout", f"{FLAT}{features}", f"of heads of {features} features side by side in the last dimension",
                 fits=_flat(features), selects=SIDE_BY_SIDE, how=_side_by_side(features)) for features in HEAD_DIMS),
    Convention("scale", "default", "with the scale 1 / sqrt(head_dim)", fits=_has("scale"), selects=SCALE,
               how=lambda own, d, filled: d**-0.5),
    Convention("scale", "one", "with the scale 1", selects=SCALE, how=lambda own, d, filled: 1.0),
    Convention("scale", "unpadded", "with the scale 1 / sqrt(head_dim), without the features of 0 at its end",
               fits=lambda call: filled(call.q) < call.q.shape[-1], selects=SCALE,
               how=lambda own, d, filled: filled**-0.5),
    Convention("scale", "zero", "with scores of 0: equal weights for all keys that a row sees", FAULT,
               how=lambda own, d, filled: 2.0**-100),  # a scale of 0 is refused, and has no bound
    Convention("scale", "one_over_d", "with the scale 1 / head_dim", selects=SCALE, how=lambda own, d, filled: 1 / d),
    Convention("scale", "twice", "with its scale applied twice", FAULT, _other_scale,
               how=lambda own, d, filled: own**2),
    Convention("scale", "sqrt_d", "with scores times sqrt(head_dim)", FAULT, how=lambda own, d, filled: d**0.5),
    Convention("scale", "log2_e", "with powers of e of scores scaled for powers of 2 (times log2 e)", FAULT,
               how=lambda own, d, filled: own / math.log(2)),
    Convention("scale", "ln_2", "with powers of 2 in place of e", FAULT, how=lambda own, d, filled: own * math.log(2)),
    Convention("mask", "ignored", "without the mask", FAULT, lambda call: _has("mask")(call) and not call.starts),
    Convention("mask", "together", "whose sequences see each other, as without cu_seqlens", FAULT,
               lambda call: bool(call.starts)),
    Convention("mask", "inverted", "with the boolean mask of the other polarity: True is hidden", fits=_boolean,
               selects=BOOLEAN),
    *(Convention("mask", f"triangle_{key}", f"with the mask's triangle aligned {key.replace('_', '-')}",
                 fits=_triangle(i), selects=ALIGNED) for i, key in enumerate(("bottom_right", "top_left"))),
    Convention("mask", "added", "with the boolean mask added to the scores as 0 and 1", FAULT, _boolean,
               selects=BOOLEAN),
    Convention("mask", "truth", "with the mask's numbers taken for truth values: what is not 0 is seen", fits=_numbers,
               selects=BOOLEAN),
    Convention("mask", "hidden", "with the mask's numbers taken for truth values: what is not 0 is hidden",
               fits=_numbers, selects=BOOLEAN),
    Convention("mask", "one_less", "without the last key that the mask shows", FAULT, _has("mask")),
    Convention("mask", "one_more", "with one key more than the mask shows, behind the last", FAULT, _has("mask")),
    *(Convention("mask", choice, f"with keys of each sequence at {words}", FAULT,
                 lambda call, choice=choice: choice in call.masks) for choice, words in PACKED.items()),
    Convention("mask", -1.0, "with the mask subtracted", FAULT, _numbers),
    Convention("mask", "transposed", "with the mask transposed", FAULT,
               lambda call: _has("mask")(call) and call.q.shape[2] == call.k.shape[2]),
    Convention("heads", "interleaved", "with query head h sharing key head h modulo their number",
               fits=lambda call: any(1 < call.k.shape[at] < call.q.shape[at] for at in (1, 2)),
               selects={"torch": "enable_gqa=True repeats each key head for neighbouring query heads"}),
    Convention("heads", "first", "with the first head of k and v in all", FAULT, lambda call: call.k.shape[1] > 1),
    Convention("window", "ignored", "without the window", FAULT, _has("window")),
    Convention("softcap", "ignored", "without the softcap", FAULT, _has("softcap")),
    Convention("softcap", "after_mask", "with the softcap after the mask, so that hidden keys are seen", FAULT,
               _has("softcap")),
    Convention("softcap", "after_bias", "with the softcap of scores and the mask's numbers together",
               fits=lambda call: _has("softcap")(call) and _numbers(call)),
    Convention("softcap", "clipped", "with scores clipped at the softcap", FAULT, _has("softcap")),
    Convention("softcap", "of_scores", "with scores times the tanh, where the softcap should be", FAULT,
               _has("softcap")),
    Convention("softcap", "before_scale", "with the softcap before the scale", fits=_has("softcap")),
    *(Convention("sinks", key, words, FAULT, _has("sinks"), how=how) for key, words, how in (
        ("ignored", "without the sinks", lambda sinks, scale: torch.full_like(sinks, -math.inf)),
        ("scaled", "with sinks times the scale", lambda sinks, scale: scale * sinks),
        ("ln_2", "with powers of 2 of the sinks in place of e", lambda sinks, scale: sinks * math.log(2)),
        ("log2_e", "with powers of e of sinks times log2 e", lambda sinks, scale: sinks / math.log(2)),
    )),
    Convention("alibi", "falling", "with ALiBi: slopes of arXiv 2108.12409 times the distance subtracted"),
    Convention("alibi", "rising", "with ALiBi of the other sign: the distance added", FAULT,
               lambda call: not _numbers(call)),
    Convention("causal", "strict", "with a causal mask that hides a row's own key", FAULT,
               lambda call: call.q.shape[2] > 1, how=lambda rows, keys, own: keys < own),
    Convention("causal", "one_later", "with a causal mask that shows the next key", FAULT,
               how=lambda rows, keys, own: keys <= own + 1),
    Convention("causal", "reversed", "with a mask that shows a row's own key and later ones alone", FAULT,
               how=lambda rows, keys, own: keys >= own),
    Convention("causal", "inverted", "with the causal mask inverted: it shows the later keys alone", FAULT,
               how=lambda rows, keys, own: keys > own),
    *(Convention("causal", f"tiles_of_{n}", f"with a causal mask for whole tiles of {n} keys: rows see the rest of "
                 "their own tile", FAULT, lambda call, n=n: call.k.shape[2] > n,
                 how=lambda rows, keys, own, n=n: keys < (own // n + 1) * n) for n in TILES),
    *(Convention("causal", f"chunks_of_{n}", f"with a causal mask within chunks of {n} keys"
                 + ", as if tiles before a row's own were lost" * (n <= LOST), n <= LOST,
                 lambda call, n=n: (call.k.shape[2] - call.q.shape[2]) // n < (call.k.shape[2] - 1) // n,
                 how=lambda rows, keys, own, n=n: (keys <= own) & (keys >= own // n * n)) for n in CHUNKS),
    *(Convention("causal", f"ring_of_{n}", f"with the causal mask inside each of {n} blocks of keys, past ones too, as "
                 "in a ring of devices", FAULT, lambda call, n=n: _has("causal")(call) and not call.k.shape[2] % n,
                 how=lambda rows, keys, own, n=n: _ring(keys, own, n)) for n in RINGS),
    Convention("softmax", "over_queries", "with its softmax over queries", FAULT),
    Convention("softmax", "over_heads", "with its softmax over heads", FAULT, lambda e: max(e.q.shape[1:3]) > 1),
    Convention("softmax", "over_batch", "with its softmax over the batch", FAULT, lambda e: e.q.shape[0] > 1),
    Convention("softmax", "not_divided", "not divided by its row sum", FAULT),
    Convention("softmax", "twice", "with a second softmax, of the weights", FAULT),
    Convention("softmax", "twice_of_seen", "with a second softmax, of the weights of the keys that are seen", FAULT,
               lambda call: bool({"causal", "mask", "window"} & call.options.keys())),
    Convention("softmax", "plus_one", "with 1 added to the row sum (softmax off by one, a sink of 0)"),
    Convention("roles", "q_and_k_swapped", "with q and k exchanged", FAULT, how=lambda q, k, v: (k, q, v)),
    Convention("roles", "k_and_v_swapped", "with k and v exchanged", FAULT, how=lambda q, k, v: (q, v, k)),
    Convention("roles", "q_and_v_swapped", "with q and v exchanged", FAULT, how=lambda q, k, v: (v, k, q)),
    *(Convention("roles", f"v_one_{key}", f"with each value that of the key {side}", FAULT,
                 how=lambda q, k, v, by=by: (q, k, v.roll(by, -2))) for key, side, by in SHIFTED),
    *(Convention("roles", f"k_one_{key}", f"with each key replaced by the one {side}, and values as they are", FAULT,
                 how=lambda q, k, v, by=by: (q, k.roll(by, -2), v)) for key, side, by in SHIFTED),
    *(Convention("roles", f"k_{side}_64", f"with the {side} 64 features of k {place} the others", FAULT,
                 lambda call: call.q.shape[-1] > 64, how=lambda q, k, v, by=by: (q, k.roll(by, -1), v))
      for side, place, by in (("last", "before", 64), ("first", "behind", -64))),
    Convention("roles", "negative", "with the opposite sign of its scores", FAULT, how=lambda q, k, v: (-q, k, v)),
    Convention("roles", "first_half", "with scores of the first half of the features alone", FAULT,
               how=lambda q, k, v: (_alone(q, slice(q.shape[-1] // 2)), k, v)),
    Convention("roles", "last_half", "with scores of the last half of the features alone", FAULT,
               how=lambda q, k, v: (_alone(q, slice(q.shape[-1] // 2, None)), k, v)),
    *(Convention("roles", f"{name}_of_0", f"with {words} of 0", FAULT, _in_parts, how=how) for name, words, how in (
        ("kv", "keys and values", lambda q, k, v: (q, 0 * k, 0 * v)), ("v", "values", lambda q, k, v: (q, k, 0 * v)),
    )),
    *(Convention("roles", f"first_{d}", f"with scores of the first {d} features alone", FAULT,
                 lambda call, d=d: d < call.q.shape[-1] != 2 * d, how=lambda q, k, v, d=d: (_alone(q, slice(d)), k, v))
      for d in (16, 32, 64, 96, 128)),
    *(Convention("roles", f"{of}_{norm}", f"with {' and '.join(of)} normalised to {length}", FAULT,
                 how=lambda q, k, v, of=of, power=power: (
                     _normed(q, power) if "q" in of else q, _normed(k, power) if "k" in of else k, v))
      for (norm, (power, length)), of in product(NORMS.items(), ("qk", "q", "k"))),
    Convention("roles", "v_transposed", "with each head of v transposed", FAULT, how=lambda q, k, v: (q, k, v.mT)),
    *(Convention("roles", f"{ROPE}{key}_{pairs}_{base}",
                 f"with RoPE on {words} (base {float(base):,.0f}, features {features} together)", FAULT)
      for (key, words), (pairs, features), base in product(ROTATED.items(), PAIRS.items(), BASES)),
)  # fmt: skip
BY_CHOICE = {(each.aspect, each.choice): each for each in CONVENTIONS}
ASPECTS = {field.name for field in fields(Dialect)}
BY_KEY = {each.key: each for each in CONVENTIONS}


FITTED = {  # an aspect of a Dialect with a number -> what the output is then
    "scale": "with {:.4g} times its scale", "mask": "with {:.4g} times its mask",
    "softcap": "with scores capped at {:.4g}", "alibi": "with {:.4g} times ALiBi's slopes",
    "hidden": "with the score {:.4g} for keys that should be hidden",
    "penalty": "with {:.4g} added to the scores of keys that should be hidden",
    "sinks": "whose sinks count {:.4g} times", "values": "with {:.4g} times its values",
    "sink": "with one more score of {:.4g} without a value in every row, as {keys:.4g} keys of zeros make it",
}  # fmt: skip


def _side(keys):
    return "all keys" if keys is None else f"{keys} {'key' if keys == 1 else 'keys'}"


def _few(numbers):
    return f"{', '.join(map(str, numbers[:8]))}{' ...' if numbers[8:] else ''}"


def what(dialect: Mapping[str, Any]) -> str:
    """The changes of a Dialect in words: "attention without the mask, with the scale 1"."""
    names = [BY_CHOICE[change].label for change in dialect.items() if change in BY_CHOICE]
    if isinstance(order := dialect.get("heads"), tuple):
        names.append(f"with its heads in the order {_few(order)}")
    if isinstance(order := dialect.get("sinks"), tuple):
        names.append(f"whose heads have the sinks of heads {_few(order)}")
    if isinstance(order := dialect.get("mask"), tuple):
        names.append(f"whose {order[0]} read the masks of {order[1]} {_few(order[2:])}")
    if isinstance(window := dialect.get("window"), tuple):
        names.append(f"with a window of {_side(window[0])} to the left and {_side(window[1])} to the right")
    for aspect, words in FITTED.items():
        if isinstance(value := dialect.get(aspect), float) and (aspect, value) not in BY_CHOICE:
            names.append(words.format(value, keys=math.exp(min(value, 99.0)) if aspect == "sink" else 0))
    if (role := dialect.get("roles")) and ("roles", role) not in BY_CHOICE:
        names.append(of_number(role))
    if "keys" in dialect:
        first, end = dialect["keys"]
        names.append(f"of keys {first} to {end - 1} alone")
    if "part" in dialect:
        first, end = dialect["part"]
        names.append(f"for {f'keys {first} to {end - 1}' if end - first > 1 else f'key {first}'} alone")
    text = " ".join(["attention", ", ".join(names)]).rstrip()
    return f"{dialect['factor']:.4g} times {text}" if "factor" in dialect else text


def keys_of(dialect: Mapping[str, Any]) -> str:
    """The changes of a Dialect, with "+" between them: keys of conventions, and aspect=number of what was fitted."""
    fitted = {name: f"{name}={x:.4g}" if isinstance(x, float) else f"{name}={x}" for name, x in dialect.items()}
    return "+".join(BY_CHOICE[change].key if change in BY_CHOICE else fitted[change[0]] for change in dialect.items())


def of_keys(keys: str) -> str:
    """As `what`, of the keys of conventions with "+" between them."""
    return what(dict(_change(key) for key in keys.split("+")))


def _change(key):
    aspect, _, value = key.partition("=")
    if not value:
        return BY_KEY[key].aspect, BY_KEY[key].choice
    number = value if aspect == "roles" else literal_eval(value)
    return aspect, float(number) if isinstance(number, int) else number


def is_of_keys(text: str) -> bool:
    """Whether a text is what `of_keys` takes."""
    return all(key in BY_KEY or "=" in key and key.partition("=")[0] in ASPECTS for key in text.split("+"))
