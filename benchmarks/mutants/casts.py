"""Defects of casts, of the exponential and of the output."""

import torch

from benchmarks.mutants.skeleton import changed, valued

LACKS = {torch.bfloat16: 16, torch.float16: 13}  # bits of FP32 that a format does not have, in its normal range


def cut(x, dtype):
    """x with the value that a 16-bit dtype has of it when the lowest bits are dropped."""
    if dtype not in LACKS:
        return x
    bits = x.detach().contiguous().view(torch.int32)
    return valued(x, ((bits >> LACKS[dtype]) << LACKS[dtype]).view(torch.float32))


p_truncated = changed("p_truncated", __name__, probs=cut)
output_truncated = changed("output_truncated", __name__, store=lambda O, dtype: cut(O, dtype).to(dtype))


def in_8_bits(P, dtype):
    return valued(P, (P * 256).to(torch.float8_e4m3fn).to(P.dtype) / 256)


p_in_fp8 = changed("p_in_fp8", __name__, probs=in_8_bits)
exp_low_at_0 = changed("exp_low_at_0", __name__, exp=lambda x: torch.exp(x).where(x < 0, 1 - 2**-8))
fp16_inside = changed("fp16_inside", __name__, scores=lambda S, first: valued(S, S.half()))
no_maximum = changed("no_maximum", __name__, maximum=lambda m, S: torch.zeros_like(m))
too_large = changed("too_large", __name__, divide=lambda O, l: 1.15 * O / l.where(l > 0, 1))
