"""What makes an error, in words: the subject of "... has this error"."""

from collections.abc import Mapping
from typing import Any

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
    "scale_1": "attention without a scale",
    "scale_twice": "attention with its scale multiplied in twice",
    "scale_ignored": "attention with the scale 1 / sqrt(head_dim)",
    "scale_1_over_d": "attention with the scale 1 / head_dim (1 / sqrt(head_dim) multiplied in twice)",
    "scale_sqrt_d": "attention with the scale sqrt(head_dim)",
    "scale_log2_e": "attention whose scores are multiplied by log2(e) once too often",
    "scale_ln_2": "attention that takes 2 to the power of its scores, without log2(e),",
    "sinks_ignored": "attention without sinks",
    "softcap_ignored": "attention without softcap",
    "softcap_after_mask": "attention with its softcap after the mask, which hidden keys come through,",
    "keep_missing": "attention without dropout",
    "top_left": "a causal mask aligned top-left (query i sees keys 0 .. i)",
    "unmasked": "attention without its causal mask",
    "mask_ignored": "attention without the mask",
    "mask_inverted": "a mask of the other polarity",
    "mask_added": "a boolean mask that is added to the scores as 0 and 1",
    "mask_rounded": "a mask rounded to Q's format before it is added",
    "window_ignored": "attention without its window",
    "all_masks_ignored": "attention without any of its masks",
    "causal": "attention with a causal mask that was not asked for",
    "bshd": "attention of tensors read with their heads for the sequence, and the sequence for heads,",
    "output_reshaped": "an output in the order (batch, sequence, heads, head_dim), reshaped and not transposed,",
    "heads_reversed": "attention with its heads in the reverse order",
    "heads_interleaved": "attention that gives query head h the key head h modulo their number",
    "over_queries": "a softmax over queries, where one over keys is due,",
}


def subject(where: Mapping[str, Any]) -> str:
    """A cause's subject. where: of a Cause: key, fmt, tiles, factor."""
    return CAUSES[where["key"]].format(**where)


def has_this_error(where: Mapping[str, Any]) -> str:
    """Which mistake has an error, as a clause. where: of a Cause; an empty key where there is none."""
    if not where["key"]:
        return "no mistake and no rounding that was tried has this error"
    return f"{subject(where)} has {'this error' if where['same'] else 'an error of this size'}"
