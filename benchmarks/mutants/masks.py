"""Defects of masks, windows and sinks."""

import math

import torch

from benchmarks.mutants.skeleton import Mutant, attention, begun, changed, visible


def wider(n_q, n_kv, causal, window):
    left, right = window or (None, None)
    return visible(n_q, n_kv, causal, (left if left is None else left + 1, right))


window_off_by_one = changed("window_off_by_one", __name__, seen=wider)


def later(n_q, n_kv, causal, window):
    left, right = window or (None, None)
    return visible(n_q, n_kv, False, (left, 1 if causal else right))


sees_next = changed("sees_next", __name__, seen=later)


def aligned(n_q, n_kv, causal, window):
    seen = visible(n_q, n_kv, False, window)
    return seen.tril() if causal else seen


top_left = changed("top_left", __name__, seen=aligned)


def forgotten(n_q, n_kv, causal, window):
    seen = visible(n_q, n_kv, causal, window)
    seen[:, (n_kv - 1) // 64 * 64 :] = True
    return seen


last_tile_unmasked = changed("last_tile_unmasked", __name__, seen=forgotten)


def mask_inverted(q, k, v, causal=False, scale=None, mask=None, **options):
    mask = ~mask if mask is not None and mask.dtype == torch.bool else mask
    return attention(q, k, v, causal, scale, mask, **options)


hidden_rows_nan = changed("hidden_rows_nan", __name__, divide=lambda O, l: O / l)
hidden_rows_mean = changed("hidden_rows_mean", __name__, hide=torch.finfo(torch.float32).min)
hidden_nan_spreads = changed("hidden_nan_spreads", __name__, clear=lambda v, seen: v)
sink_without_mass = changed("sink_without_mass", __name__, begin=lambda sinks, l: (begun(sinks, l)[0], l))


def sink_in_powers_of_2(q, k, v, sinks=None, **options):
    sinks = None if sinks is None else sinks * math.log(2)  # as where 2^sink stands for e^sink
    return attention(q, k, v, sinks=sinks, **options)


MUTANTS = (
    Mutant(window_off_by_one, "The window's left edge lets one key more in.",
           "github.com/huggingface/transformers/issues/39408"),
    Mutant(sees_next, "With a causal mask a query sees the next key."),
    Mutant(top_left, "The causal mask is aligned top-left, where the others align bottom-right.",
           "github.com/pytorch/executorch/issues/22426", told="a convention, torch's is_causal has it"),
    Mutant(last_tile_unmasked, "Masks are not applied to the last tile."),
    Mutant(mask_inverted, "A boolean mask is taken for its opposite."),
    Mutant(hidden_rows_nan, "A row that sees no key is NaN.", "github.com/pytorch/pytorch/issues/103749",
           told="a convention, eager attention has it"),
    Mutant(hidden_rows_mean, "A row that sees no key is the mean of V.",
           "github.com/huggingface/transformers/issues/38690", told="a convention, where hidden scores are finite"),
    Mutant(hidden_nan_spreads, "NaN in a V that a mask hides from all makes every output NaN.",
           "github.com/pytorch/pytorch/issues/101967", told="many kernels multiply 0 by NaN, torch's too"),
    Mutant(sink_without_mass, "A sink joins the maximum, and its mass does not join l.",
           "github.com/ROCm/rocm-libraries/pull/12229"),
    Mutant(sink_in_powers_of_2, "Scores have log2(e) in their scale, for 2^x, and the sink's logit does not.",
           "github.com/ROCm/rocm-libraries/pull/12229"),
)  # fmt: skip
