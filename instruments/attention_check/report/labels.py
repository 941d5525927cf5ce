"""Names of what is measured, as tables, sentences and pictures show them."""

from collections.abc import Iterable, Mapping
from typing import Any

from attention_check.conventions.conventions import is_of_keys, of_keys
from attention_check.isolation.worker import Outcome
from attention_check.measure.capability import (
    CAPABILITIES,
    GRADIENTS_AT,
    GRADIENTS_WITH,
    HEAD_DIM,
    OFF_TILES,
    ONE_QUERY_DIMS,
    in_format,
)
from attention_check.measure.measurements import RAN, ROUNDED
from fa_lib.kernels.kernel_ref import label_of

LABELS = {
    "unmasked": "a call without a mask", "one_key": "one query and one key",
    "length_203": "a length off the tiles, N = 203",
    "length_1500": "a length off large tiles, N = 1500",
    "v_dim_128": "V of another head_dim, 192 and 128",
    "v_dim_512": "V of another head_dim, 576 and 512, one key head",
    "scale": "another scale", "fewer_queries": "fewer queries than keys",
    "more_queries": "more queries than keys",
    "causal_fewer_queries": "causal, fewer queries than keys", "one_query_decoding": "one query, as in decoding",
    "causal_one_query": "causal, one query", "gqa": "key heads shared, GQA 4 to 2",
    "gqa_uneven": "key heads shared, GQA 6 to 2",
    **{f"one_query_{d}": f"one query at head_dim {d}" for d in ONE_QUERY_DIMS},
    "boolean_mask": "a boolean mask",
    "added_mask": "an added mask, ALiBi", "window": "a window of 64 and 32 keys",
    "window_left": "a window of 4 and 0 keys", "watch_races": "races in shared memory",
    "boolean_mask_first": "a boolean mask that hides 1,100 first keys",
    "boolean_mask_batch": "another boolean mask for each sequence of a batch",
    "boolean_mask_padding": "another boolean mask of keys for each sequence, (batch, 1, 1, keys)",
    "added_mask_first": "a mask of -inf that hides 1,100 first keys",
    "window_first": "a window that hides 1,170 first keys", "large_scores": "scores up to some 250",
    "large_scores_softcap": "a softcap of scores up to some 250",
    "sinks_gradient": "gradient of the sinks", HEAD_DIM: "head_dim", GRADIENTS_AT: "gradients at head_dim",
}  # fmt: skip
SHORT = {"one_query_decoding": "one query", OFF_TILES: "N = 203"}  # beside something else
_WITH = {asked: option for option, asked in GRADIENTS_WITH.items()}
COMBINED = {each.key: each.needs for each in CAPABILITIES if each.combines}
KERNELS = {ROUNDED: "the golden value, rounded", RAN: "the kernel that ran"}
NAMES = {"dq": "dQ", "dk": "dK", "dv": "dV"}
SUMS = {"accumulator": "accumulator O", "row_sum": "row sum l"}
WAYS = {  # of running a model's prompt, of `probe.replays`
    "again": "the same inputs twice",
    "alone": "entry {entry} of the batch, alone and in it",
    "padding": "a prompt alone, and with padding on each side",
    "cache": "a prompt at once, and its last tokens one by one with a cache",
}
CASTS = {"output": "the output", "probs": "P", "inputs": "V, which is FP32,"}  # the last in older records
NOTES = {  # of `contract`
    "causal_only": "masks causally, and only so",
    "top_left": "is aligned top-left, as torch's is_causal",
    "other": "answers with something else than attention's output",
    "layout_all_bshd": "reads (batch, sequence, heads, head_dim), by the look of its answer: say --layout bshd",
    "bhsd": "reads (batch, heads, sequence, head_dim), by the look of its answer: leave out --layout bshd",
}
CAUSES = {  # key of a mistakes.Cause -> its subject
    "accumulator": "O carried in {fmt} over {tiles} tiles",
    "sums": "attention with O and l carried in {fmt} over {tiles} tiles",
    "row_sum": "the row sum l carried in {fmt} over {tiles} tiles",
    "scores": "attention with scores rounded to {fmt}",
    "every_step": "attention with every step in {fmt} over {tiles} tiles",
    "inputs": "attention with Q, K and V rounded to {fmt}",
    "probs_truncated": "P truncated to {fmt}, not rounded to nearest,",
    "bias": "rounding to one side, which makes outputs {factor:.6g} times attention's,",
    "keep_missing": "attention without dropout",
    "mask_rounded": "a mask rounded to Q's format before it is added",
    "dropout": "dropout of {factor:.0%} of the weights",
    "kernel": "a {fmt} kernel: q, k, v, P and the answer in {fmt}, sums in FP32",
    "products": "{fmt} products: q, k, v and P rounded to {fmt}, all else in FP32",
    "cut": "{fmt} products that cut bits off: q, k, v and P truncated to {fmt}",
    "written": "{fmt} products in unfused code: q, k, v and P, divided by its sum, rounded to {fmt}, all else in FP32",
    "written_k_scaled": "{fmt} products in unfused code: q, k times the scale, v and P, divided by its sum, rounded to "
    "{fmt}, all else in FP32",
    "probs": "P in {fmt} as it is, up to 1, and row sums of what was not rounded",
    "probs_shifted": "P in {fmt}, times the power of two that uses all of it",
    "quantized": "q, k, v and P in {fmt}",
    "quantized_qkv": "q, k and v in {fmt}",
    "quantized_kv": "k and v in {fmt}, as in a quantised cache",
    "quantized_qk": "q and k in {fmt}",
    "quantized_k": "k in {fmt}",
    "quantized_v": "v in {fmt}",
}


def label(asked: str, *dims: int) -> str:
    """Name what was asked for, a row of `contract`, with its head_dims: "head_dim 40, 72", "causal, and softcap"."""
    if " in " in asked:
        key, _, fmt = asked.partition(" in ")
        return in_format(label(key), fmt)
    if asked in COMBINED:
        first, second = COMBINED[asked]
        return f"{label(first)}, and {SHORT.get(second) or label(second)}"
    if asked in _WITH:
        return f"gradients with {label(_WITH[asked])}"
    numbers = ", ".join(map(str, sorted(filter(None, dims))))
    return f"{LABELS.get(asked, asked)} {numbers}".rstrip()


def labels(where: Mapping[str, Any]) -> str:
    """Name all that was asked for, `asked` and `dims` of a finding, all head_dims of one in one label, at the end."""
    dims: dict[str, list[int]] = {}
    for asked, dim in zip(where["asked"], where["dims"]):
        dims.setdefault(asked, []).append(dim)
    return "; ".join(label(asked, *sizes) for asked, sizes in sorted(dims.items(), key=lambda each: any(each[1])))


def named(kernel: str) -> str:
    """Name a kernel, RAN or ROUNDED."""
    return KERNELS.get(kernel) or label_of(kernel)


def noted(outcome: str, note: str, problem: str) -> str:
    """Say what a kernel did with a call; "" where it answered as it should."""
    if note not in NOTES and is_of_keys(note):
        return f"answers with {of_keys(note)}"
    return NOTES.get(note, "" if outcome == Outcome.ANSWERED else problem)


def listed(texts: Iterable[str]) -> str:
    """Join texts: "a, b and c"."""
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last


def plural(count: int, one: str, more: str = "s") -> str:
    """The ending of a noun: `one` for one thing, else `more`."""
    return one if count == 1 else more


def queries_in_words(queries: int | None) -> str:
    """Name a number of queries at a time; None: as many as keys."""
    return "as many queries as keys" if queries is None else f"{queries} quer{plural(queries, 'y', 'ies')}"


def subject(where: Mapping[str, Any]) -> str:
    """A cause's subject. where: of a Cause: key, fmt, tiles, factor."""
    if where["key"] in CAUSES:
        return CAUSES[where["key"]].format(**where)
    text = of_keys(where["key"])
    return f"{text}," if "," in text or ":" in text else text


def has_this_error(where: Mapping[str, Any]) -> str:
    """Which mistake has an error, as a clause. where: of a Cause; an empty key where there is none."""
    if not where["key"]:
        return "no mistake and no rounding that was tried has this error"
    return f"{subject(where)} has {'this error' if where['same'] else 'most of this error'}"
