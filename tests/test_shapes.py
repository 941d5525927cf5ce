"""The shapes in signatures hold: the metrics and the kernels under beartype, with jaxtyping's shapes."""

import subprocess
import sys

import pytest

from fa_lib.execution.paths import PACKAGE

SCRIPT = """
from beartype import beartype
from jaxtyping import TypeCheckError, install_import_hook, jaxtyped
with install_import_hook(["fa_lib.numerics.metrics", "fa_lib.kernels"], "beartype.beartype"):
    import fa_lib
    from fa_lib import kernels
    from fa_lib.kernels import backward, exponentials, polynomials, quantization_schemes, quantized_attention, shipped
import torch
from fa_lib import BF16, FP16, Precision, Tiling, deviation, draw, wasserstein
from fa_lib.numerics import formats

round_to = jaxtyped(typechecker=beartype)(formats.round_to)  # the hook cannot wrap numba's functions beside it

q, k, v = draw("normal", 0, (2, 4, 40, 16), (2, 2, 56, 16))
v = torch.cat([v, v], -1)  # (2, 2, 56, 32)
call = dict(tiling=Tiling(16, 16), precision=Precision.uniform(BF16))
golden = kernels.golden(q, k, v, inputs="BF16")
how = kernels.Algorithm("fa4", exp=polynomials.polynomial_exp(3), splits=2, maximum=exponentials.dynamic_maximum(2.0))
for o in (
    kernels.tiled(q, k, v, **call, window=(20, 3)), kernels.tiled(q, k, v, **call, algorithm=how, causal=True),
    kernels.reference(q, k, v, precision=Precision.materialized("FP16"), softcap=5.0), kernels.every_step(q, k, v),
    kernels.as_shipped(q, k, v), kernels.baseline(q, k, v), kernels.unfused(q, k, v), kernels.stepwise(q, k, v),
):
    assert o.shape == (2, 4, 40, 32)
assert kernels.rescales(q, k, **call).shape == (2, 4, 40)
assert kernels.flash(*(x.bfloat16() for x in (q, k, v[..., :16])), causal=True).shape == (2, 4, 40, 16)
leaves = [x.clone().requires_grad_() for x in (q, k, v)]
grads = torch.autograd.grad(kernels.tiled(*leaves, **call).sum(), leaves)
assert [g.shape for g in grads] == [x.shape for x in (q, k, v)]
deviation(golden, golden), wasserstein(q, k), round_to(q, (5, 11), "toward_zero"), FP16.ulp(q)
quantization_schemes.Scheme.of("FP8_BLOCK").apply(quantization_schemes.rotated(q, k, 0)[0])
quantization_schemes.smoothed(k), shipped.torch_cpu("BF16", 40)
nvfp4 = quantized_attention.Quantization.of("NVFP4", smooth=True)
x = [torch.cat([each] * 2, -2)[..., :64, :] for each in (q, k, v)]
assert quantized_attention.attention(*x, nvfp4, tiling=Tiling(16, 16)).shape == (2, 4, 64, 32)
try:
    quantization_schemes.rotated(q.float(), k, 0)
except TypeCheckError:
    print("checked")
"""


@pytest.mark.slow
def test_signatures_say_the_shapes_that_come():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.returncode == 0 and done.stdout == "checked\n", done.stderr
