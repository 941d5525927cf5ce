"""Defects of what is carried from tile to tile, and of partial results."""

import torch

from benchmarks.mutants.skeleton import Steps, attention, changed, valued

FEW = 4  # queries of decoding


def in_bf16(x):
    return valued(x, x.bfloat16())


o_in_bf16 = changed("o_in_bf16", __name__, carry=lambda O, l: (in_bf16(O), l))
o_in_fp16 = changed("o_in_fp16", __name__, carry=lambda O, l: (valued(O, O.half()), l))
l_in_bf16 = changed("l_in_bf16", __name__, carry=lambda O, l: (O, in_bf16(l)))
both_in_bf16 = changed("both_in_bf16", __name__, carry=lambda O, l: (in_bf16(O), in_bf16(l)))


def low_in_decoding(q, k, v, **options):
    few = Steps(carry=lambda O, l: (valued(O, O.to(q.dtype)), valued(l, l.to(q.dtype))))
    return attention(q, k, v, **options, steps=few if q.shape[-2] <= FEW else Steps())


def splits_in_16_bits(q, k, v, **options):
    steps = Steps(tile=-(-k.shape[-2] // 8), part=lambda O, dtype: valued(O, O.to(dtype)))
    return attention(q, k, v, **options, steps=steps)


o_not_rescaled = changed("o_not_rescaled", __name__, rescale=lambda O, factor: O * (factor > 0))
maximum_of_first_tile = changed(
    "maximum_of_first_tile", __name__,
    maximum=lambda m, S: torch.maximum(m, S.amax(-1, keepdim=True)).where(m == -torch.inf, m),
)  # fmt: skip
