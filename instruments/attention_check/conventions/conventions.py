"""The conventions that a call of attention may follow, likely ones first, and the option that selects each one."""

import math
import re
from ast import literal_eval
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from itertools import groupby, product
from typing import Any

import torch

from attention_check.conventions.attention import Dialect
from attention_check.conventions.reading import BASES, BEFORE, FROM, FURTHER, PAIRS, ROPE, ROTATED, CapturedCall


@dataclass(frozen=True)
class Convention:
    """A choice of one aspect of `attention.Dialect`.

    Attributes:
        aspect, choice: a field of Dialect, and its value.
        label: what the output is then, after "attention": "with a causal mask aligned top-left".
        fault: nobody means it so.
        fits: an CapturedCall -> whether it is another answer than what the caller believes.
        selects: library -> how to have it, or how to have what the caller believes.
    """

    aspect: str
    choice: Any
    label: str
    fault: bool = False
    fits: Callable[[CapturedCall], bool] = lambda call: True
    selects: Mapping[str, str] = field(default_factory=dict)

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
    (three dimensions, whose first was read as heads) and a last dimension beyond LARGEST_HEAD."""

    def fits(call):
        batch, heads, _, d = call.q.shape
        return (heads == 1 or batch == 1 and d > LARGEST_HEAD) and d > features and d % features == 0

    return fits


FAULT = True
_boolean, _numbers = _mask(lambda mask: mask.dtype == torch.bool), _mask(lambda mask: mask.dtype != torch.bool)
_of_entries = _mask(lambda mask: mask.ndim == 4 and mask.shape[0] > 1)  # it differs from entry to entry
_of_heads = _mask(lambda mask: mask.ndim > 2 and mask.shape[-3] > 1)
LARGEST_HEAD = 128  # features; in a tensor of three dimensions a larger last one is taken for several heads
TILES = (16, 32, 48, 64, 80, 96, 112, 128, 256)  # keys of a tile
CHUNKS, LOST = (*(2**i for i in range(4, 14)),), 256  # keys of a chunk; so few are a tile
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

NORMED_TO = {"l2": "length 1", "rms": "a root mean square of 1"}  # of reading.NORMS
PACKED = {  # of CapturedCall.masks
    "starts_of_q": "the places of its queries (cu_seqlens in place of cu_seqlens_k)",
    "lengths_of_q": "their own start, and as many as its queries",
}  # fmt: skip

CONVENTIONS = (
    Convention("causal", "none", "without the causal mask: rows see later keys", FAULT, _has("causal")),
    Convention("causal", "top_left", "with its causal mask aligned top-left", fits=_top_left, selects=ALIGNED),
    Convention("causal", "bottom_right", "with a causal mask", fits=_lacks("causal"), selects=ALIGNED),
    Convention("layout", "all_bshd", "of tensors read as (batch, sequence, heads, head_dim)", selects=LAYOUT),
    Convention("layout", "inputs_bshd", "of q, k and v read as (batch, sequence, heads, head_dim)", selects=LAYOUT),
    Convention("layout", "o_bshd", "with its output as (batch, sequence, heads, head_dim)", selects=LAYOUT),
    *(Convention("layout", f"{of}_bshd", f"of {' and '.join(of)} read as (batch, sequence, heads, head_dim)", FAULT)
      for of in ("q", "kv", "k", "v")),
    Convention("layout", "o_reshaped", "with its output reshaped from (batch, sequence, heads, head_dim), where it "
               "should be transposed", FAULT),
    *(Convention("layout", f"{of}_reshaped", f"of {words} with the strides of (batch, sequence, heads, head_dim)",
                 FAULT) for of, words in dict(q="q read", k="k read", v="v read", inputs="q, k and v read",
                                            all="tensors read and written").items()),
    *(Convention("layout", f"{name}_column_major", f"of {name} read as if its last stride were 1, which it is not: its "
                 "last two dimensions are exchanged in memory", FAULT) for name in "qkv"),
    Convention("layout", "o_flat_reshaped", "with its output viewed as (batch, sequence, heads * head_dim), where it "
               "should be transposed first", FAULT),
    Convention("layout", "o_flat", "with its output as (batch, sequence, heads * head_dim)", selects=SIDE_BY_SIDE),
    *(Convention("layout", f"flat_{features}", f"of heads of {features} features side by side in the last dimension",
                 fits=_flat(features), selects=SIDE_BY_SIDE) for features in HEAD_DIMS),
    Convention("scale", "default", "with the scale 1 / sqrt(head_dim)", fits=_has("scale"), selects=SCALE),
    Convention("scale", "one", "with the scale 1", selects=SCALE),
    Convention("scale", "one_over_d", "with the scale 1 / head_dim", selects=SCALE),
    Convention("scale", "twice", "with its scale applied twice", FAULT, _other_scale),
    Convention("scale", "sqrt_d", "with scores times sqrt(head_dim)", FAULT),
    Convention("scale", "log2_e", "with powers of e of scores scaled for powers of 2 (times log2 e)", FAULT),
    Convention("scale", "ln_2", "with powers of 2 in place of e", FAULT),
    Convention("mask", "ignored", "without the mask", FAULT, _has("mask")),
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
    Convention("mask", "first_entry", "with the mask of the first entry of the batch in all", FAULT, _of_entries),
    Convention("mask", "first_head", "with the mask of the first head in all", FAULT, _of_heads),
    Convention("mask", "entries_as_heads", "with the mask's entries taken for heads, and its heads for entries", FAULT,
               lambda call: call.q.shape[0] == call.q.shape[1] and (_of_entries(call) or _of_heads(call))),
    *(Convention("mask", choice, f"with keys of each sequence at {words}", FAULT,
                 lambda call, choice=choice: choice in call.masks) for choice, words in PACKED.items()),
    Convention("mask", -1.0, "with the mask subtracted", FAULT, _numbers),
    Convention("mask", "transposed", "with the mask transposed", FAULT,
               lambda call: _has("mask")(call) and call.q.shape[2] == call.k.shape[2]),
    Convention("heads", "interleaved", "with query head h sharing key head h modulo their number",
               fits=lambda call: any(1 < call.k.shape[at] < call.q.shape[at] for at in (1, 2)),
               selects={"torch": "enable_gqa=True repeats each key head for neighbouring query heads"}),
    Convention("heads", "first", "with the first head of k and v in all", FAULT, lambda call: call.k.shape[1] > 1),
    Convention("heads", "reversed", "with its heads in the reverse order", FAULT),
    Convention("window", "ignored", "without the window", FAULT, _has("window")),
    Convention("softcap", "ignored", "without the softcap", FAULT, _has("softcap")),
    Convention("softcap", "after_mask", "with the softcap after the mask, so that hidden keys are seen", FAULT,
               _has("softcap")),
    Convention("softcap", "after_bias", "with the softcap of scores and the mask's numbers together", FAULT,
               lambda call: _has("softcap")(call) and _numbers(call)),
    Convention("softcap", "clipped", "with scores clipped at the softcap", FAULT, _has("softcap")),
    Convention("softcap", "before_scale", "with the softcap before the scale", fits=_has("softcap")),
    Convention("sinks", "ignored", "without the sinks", FAULT, _has("sinks")),
    Convention("alibi", "falling", "with ALiBi: slopes of arXiv 2108.12409 times the distance subtracted"),
    Convention("alibi", "rising", "with ALiBi of the other sign: the distance added", FAULT),
    Convention("causal", "strict", "with a causal mask that hides a row's own key", FAULT,
               lambda call: call.q.shape[2] > 1),
    Convention("causal", "one_later", "with a causal mask that shows the next key", FAULT),
    Convention("causal", "reversed", "with a mask that shows the later keys alone", FAULT),
    *(Convention("causal", f"tiles_of_{keys}", f"with a causal mask for whole tiles of {keys} keys: rows see the "
                 "rest of their own tile", FAULT, lambda call, keys=keys: call.k.shape[2] > keys) for keys in TILES),
    *(Convention("causal", f"chunks_of_{keys}", f"with a causal mask within chunks of {keys} keys"
                 + ", as if tiles before a row's own were lost" * (keys <= LOST), keys <= LOST,
                 lambda call, n=keys: (call.k.shape[2] - call.q.shape[2]) // n < (call.k.shape[2] - 1) // n)
      for keys in CHUNKS),
    Convention("softmax", "over_queries", "with its softmax over queries", FAULT),
    Convention("softmax", "over_heads", "with its softmax over heads", FAULT, lambda e: max(e.q.shape[1:3]) > 1),
    Convention("softmax", "over_batch", "with its softmax over the batch", FAULT, lambda e: e.q.shape[0] > 1),
    Convention("softmax", "not_divided", "not divided by its row sum", FAULT),
    Convention("softmax", "plus_one", "with 1 added to the row sum (softmax off by one, a sink of 0)"),
    *(Convention("roles", f"{a}_and_{b}_swapped", f"with {a} and {b} exchanged", FAULT) for a, b in ("qk", "kv", "qv")),
    *(Convention("roles", f"{of}_one_{key}", words.format(side), FAULT) for of, words in (
        ("v", "with each value that of the key {}"),
        ("k", "with each key replaced by the one {}, and values as they are"),
    ) for key, side in (("later", "before"), ("earlier", "behind"))),
    Convention("roles", "negative", "with the opposite sign of its scores", FAULT),
    *(Convention("roles", f"{half}_half", f"with scores of the {half} half of the features alone", FAULT)
      for half in ("first", "last")),
    *(Convention("roles", f"first_{d}", f"with scores of the first {d} features alone", FAULT,
                 lambda call, d=d: d < call.q.shape[-1] != 2 * d) for d in (16, 32, 64, 96, 128)),
    *(Convention("roles", f"{of}_{norm}", f"with {' and '.join(of)} normalised to {words}", FAULT)
      for (norm, words), of in product(NORMED_TO.items(), ("qk", "q", "k"))),
    Convention("roles", "v_transposed", "with each head of v transposed", FAULT),
    *(Convention("roles", f"{ROPE}{key}_{pairs}_{base}",
                 f"with RoPE on {words} (base {float(base):,.0f}, features {features} together)", FAULT)
      for (key, words), (pairs, features), base in product(ROTATED.items(), PAIRS.items(), BASES)),
)  # fmt: skip
BY_CHOICE = {(each.aspect, each.choice): each for each in CONVENTIONS}
ASPECTS = {field.name for field in fields(Dialect)}
BY_KEY = {each.key: each for each in CONVENTIONS}


MOST_RUNS = 4  # of query heads that share a head of k, that are listed
FITTED = {  # an aspect of a Dialect with a number -> what the output is then
    "scale": "with {:.4g} times its scale", "mask": "with {:.4g} times its mask",
    "softcap": "with scores capped at {:.4g}", "alibi": "with {:.4g} times ALiBi's slopes",
    "sink": "with one more score of {:.4g} without a value in every row, as {keys:.4g} keys of zeros make it",
}  # fmt: skip


def _side(keys):
    return "all keys" if keys is None else f"{keys} {'key' if keys == 1 else 'keys'}"


def _few(numbers):
    return f"{', '.join(map(str, numbers[:8]))}{' ...' if numbers[8:] else ''}"


def _of_sources(sources):
    """Of `Dialect.sources`: which entries and heads take k and v of which."""
    entries, heads = [row[0][0] for row in sources], [head for _, head in sources[0]]
    if any((entry, head) != (of, heads[i]) for row, of in zip(sources, entries) for i, (entry, head) in enumerate(row)):
        return "heads take k and v of other entries and heads"
    moved = [f"entries take k and v of entries {_few(entries)}"] if entries != [*range(len(sources))] else []
    usual = heads == [i * (max(heads) + 1) // len(heads) for i in range(len(heads))]
    runs = [(head, [i for i, _ in run]) for head, run in groupby(enumerate(heads), key=lambda each: each[1])]
    listed = ", ".join(f"head {head} (heads {at[0]} to {at[-1]})" for head, at in runs)
    of = f"heads {_few(heads)}" if len(runs) > MOST_RUNS else listed
    return " and ".join(moved if moved and usual else [*moved, f"heads take k and v of {of}"])


def _turned(which: str, pairs: str, base: str) -> str:
    """Of a role with RoPE that has a number."""
    name, number = re.fullmatch(r"([a-z]+)(-?\d+)", which).groups()  # pyright: ignore[reportOptionalMemberAccess]
    count, side = abs(int(number)), "too far" if int(number) > 0 else "too few"
    words = {
        FURTHER: f"q turned by RoPE {count} position{'s' * (count > 1)} {side}",
        BEFORE: f"RoPE once more on the keys before {count}", FROM: f"RoPE once more on the keys from {count} on",
    }[name]  # fmt: skip
    return f"with {words} (base {float(base):,.0f}, features {PAIRS[pairs]} together)"


def what(dialect: Mapping[str, Any]) -> str:
    """The changes of a Dialect in words: "attention without the mask, with the scale 1"."""
    names = [BY_CHOICE[change].label for change in dialect.items() if change in BY_CHOICE]
    if isinstance(order := dialect.get("heads"), tuple):
        names.append(f"with its heads in the order {_few(order)}")
    if sources := dialect.get("sources"):
        names.append(f"whose {_of_sources(sources)}")
    if isinstance(window := dialect.get("window"), tuple):
        names.append(f"with a window of {_side(window[0])} to the left and {_side(window[1])} to the right")
    for aspect, words in FITTED.items():
        if isinstance(value := dialect.get(aspect), float) and (aspect, value) not in BY_CHOICE:
            names.append(words.format(value, keys=math.exp(min(value, 99.0)) if aspect == "sink" else 0))
    if (role := str(dialect.get("roles", ""))) not in (each.choice for each in CONVENTIONS) and role.startswith(ROPE):
        names.append(_turned(*role.removeprefix(ROPE).split("_")))
    if "keys" in dialect:
        first, end = dialect["keys"]
        names.append(f"of keys {first} to {end - 1} alone")
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
