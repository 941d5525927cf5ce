"""What makes an error, in words: the subject of "... has this error"."""

from collections.abc import Mapping
from typing import Any

from attention_check.conventions.conventions import of_keys

CAUSES = {  # key of a mistakes.Cause -> its subject
    "accumulator": "O carried in {fmt} over {tiles} tiles",
    "sums": "attention with O and l carried in {fmt} over {tiles} tiles",
    "row_sum": "the row sum l carried in {fmt} over {tiles} tiles",
    "scores": "attention with scores rounded to {fmt}",
    "every_step": "attention with every step in {fmt} over {tiles} tiles",
    "inputs": "attention with Q, K and V rounded to {fmt}",
    "probs_truncated": "P truncated to {fmt}, not rounded to nearest,",
    "scale_factor": "attention with {factor:.4g} times its scale",
    "factor": "{factor:.4g} times attention's output",
    "bias": "rounding to one side, which makes outputs {factor:.6g} times attention's,",
    "keep_missing": "attention without dropout",
    "mask_rounded": "a mask rounded to Q's format before it is added",
}


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
    return f"{subject(where)} has {'this error' if where['same'] else 'an error of this size'}"
