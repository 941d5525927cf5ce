"""exp: the race in torch's is guarded against, and what is rounded to 16 bits is correctly rounded."""

import subprocess
import sys

import mpmath
import numpy as np
import pytest
import torch

from fa_lib import BF16, FP16, round_to
from fa_lib.execution.paths import ROOT
from fa_lib.numerics.dots import EXACT

FIRST_CALLS = """
import torch
calls, exp = [], torch.exp
torch.exp = lambda x, **options: calls.append((x.dtype, x.numel())) or exp(x, **options)
import fa_lib.kernels
assert calls == [(torch.float32, 64), (torch.float64, 64)], calls
"""


def test_one_small_exp_per_dtype_comes_before_everything():
    """64 elements are below torch's grain of parallel work, so these calls run on one thread."""
    subprocess.run([sys.executable, "-c", FIRST_CALLS], check=True, cwd=ROOT)


@pytest.mark.parametrize("fmt", [BF16, FP16], ids=str)
def test_exp_of_every_16_bit_argument_is_correctly_rounded(fmt):
    """The exponential of softmax takes arguments <= 0. All of a 16-bit format's, against 40 digits."""
    x = torch.arange(-(2**15), 0, dtype=torch.int32).to(torch.int16).view(fmt.dtype).double()  # sign bit set
    x = x[x.isfinite()]
    ours = round_to(torch.exp(x), fmt)
    with mpmath.workdps(40):
        exact = [mpmath.exp(mpmath.mpf(value)) for value in x.tolist()]
        error = np.array([float(abs(mpmath.mpf(o) - e)) for o, e in zip(ours.tolist(), exact)])
        # to nearest: no other value of the format is closer than half a gap away
        half = fmt.ulp(ours).numpy() / 2
        below = fmt.ulp(torch.nextafter(ours, torch.zeros(()).double())).numpy() / 2  # below a power of two
    limit = np.where([e < o for o, e in zip(ours.tolist(), exact)], below, half)
    assert (error <= limit).all()


@pytest.mark.parametrize("rest", [-1.0, -745.0, torch.inf, torch.nan])
@pytest.mark.parametrize("few", [True, False])
def test_arguments_whose_exponential_is_0_leave_the_bits_of_the_others(rest, few):
    """Hidden keys, and scores far below their maximum, are kept from torch, which is slow there."""
    x = -torch.rand(100, 67, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 800
    x[::3, 5:] = -torch.inf
    x[1], x[2, ::2] = rest, -746.5
    x = x[:3] if few else x
    assert torch.equal(EXACT.exp_(x.clone()).view(torch.int64), torch.exp(x).view(torch.int64))
