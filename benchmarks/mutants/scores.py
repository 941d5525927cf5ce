"""Defects of the scores: their scale."""

import math

from benchmarks.mutants.skeleton import Mutant, Steps, attention, changed, scale_of

no_scale = changed("no_scale", __name__, scale=lambda d, scale: 1.0 if scale is None else scale)
scale_1_over_d = changed("scale_1_over_d", __name__, scale=lambda d, scale: 1 / d if scale is None else scale)
scale_ignored = changed("scale_ignored", __name__, scale=lambda d, scale: d**-0.5)


def log2_e_forgotten(q, k, v, **options):
    steps = Steps(scale=lambda d, scale: math.log(2) * scale_of(d, scale))  # as where 2^x stands for e^x
    return attention(q, k, v, **options, steps=steps)


MUTANTS = (
    Mutant(no_scale, "Scores are not scaled unless a scale is given."),
    Mutant(scale_1_over_d, "Scores are scaled by 1 / d, not by 1 / sqrt(d)."),
    Mutant(scale_ignored, "A scale that is given is ignored.", "github.com/bo-ke/llm-internal-medicine/pull/47"),
    Mutant(log2_e_forgotten, "2^x is taken where e^x is due: log2(e) is forgotten."),
)  # fmt: skip
