"""The labels of capabilities, as tables and sentences show them."""

from collections.abc import Iterable

from attention_check.measure.capability import CAPABILITIES, GRADIENTS_AT, GRADIENTS_WITH, HEAD_DIM

LABELS = {
    "length_203": "a length off the tiles, N = 203", "length_1500": "a length off large tiles, N = 1500",
    "v_dim_128": "V of another head_dim, 192 and 128",
    "v_dim_512": "V of another head_dim, 576 and 512, one key head",
    "scale": "another scale", "fewer_queries": "fewer queries than keys",
    "causal_fewer_queries": "causal, fewer queries than keys", "one_query_decoding": "one query, as in decoding",
    "causal_one_query": "causal, one query", "gqa": "key heads shared, GQA 4 to 2", "boolean_mask": "a boolean mask",
    "added_mask": "an added mask, ALiBi", "window": "a window of 64 and 32 keys",
    "boolean_mask_first": "a boolean mask that hides 1,100 first keys",
    "boolean_mask_batch": "another boolean mask for each sequence of a batch",
    "added_mask_first": "a mask of -inf that hides 1,100 first keys",
    "window_first": "a window that hides 1,170 first keys", "large_scores": "scores up to some 250",
    "sinks_gradient": "gradient of the sinks", HEAD_DIM: "head_dim", GRADIENTS_AT: "gradients at head_dim",
}  # fmt: skip
SHORT = {"one_query_decoding": "one query"}  # beside something else
_WITH = {asked: option for option, asked in GRADIENTS_WITH.items()}
COMBINED = {each.key: each.needs for each in CAPABILITIES if each.combines}


def label(asked: str, *dims: int) -> str:
    """What was asked for, a row of `contract`, in words: "head_dim 40, 72", "causal, and softcap".

    Args:
        dims: the head_dims, where it asks for one.
    """
    if asked in COMBINED:
        first, second = COMBINED[asked]
        return f"{label(first)}, and {SHORT.get(second) or label(second)}"
    if asked in _WITH:
        return f"gradients with {label(_WITH[asked])}"
    numbers = ", ".join(map(str, sorted(filter(None, dims))))
    return f"{LABELS.get(asked, asked)} {numbers}".rstrip()


def labels(rows: Iterable[tuple[str, int]]) -> list[str]:
    """The labels of several (asked, dim), all head_dims of one in one label, at the end."""
    dims: dict[str, list[int]] = {}
    for asked, dim in rows:
        dims.setdefault(asked, []).append(dim)
    return [label(asked, *found) for asked, found in sorted(dims.items(), key=lambda each: any(each[1]))]
