"""Defects of masks, windows and sinks."""

import math

import torch

from benchmarks.mutants.skeleton import attention, begun, changed, visible


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
