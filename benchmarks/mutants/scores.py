"""Defects of the scores: their scale."""

import math

from benchmarks.mutants.skeleton import Steps, attention, changed, scale_of

no_scale = changed("no_scale", __name__, scale=lambda d, scale: 1.0 if scale is None else scale)
scale_1_over_d = changed("scale_1_over_d", __name__, scale=lambda d, scale: 1 / d if scale is None else scale)
scale_ignored = changed("scale_ignored", __name__, scale=lambda d, scale: d**-0.5)


def log2_e_forgotten(q, k, v, **options):
    steps = Steps(scale=lambda d, scale: math.log(2) * scale_of(d, scale))  # as where 2^x stands for e^x
    return attention(q, k, v, **options, steps=steps)
