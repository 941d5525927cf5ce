"""The gradients of torch's flash kernel on CPUs, whose sums over rows are kept in the inputs' format, and two proofs
that this makes their error: an emulation that keeps these sums so has the same errors, and with sums in FP32 it has
small ones.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fa_lib import kernels
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.rule import rounds_scores_twice
from fa_lib.kernels.shipped import torch_cpu
from fa_lib.numerics.formats import BF16, FP32, FP64
from fa_lib.numerics.metrics import deviation, over_baseline

GRADIENTS = ("dq", "dk", "dv")


def torch_backward(n: int, queries: int, distribution: str, seed: int) -> list[dict]:
    """A cell: measure the gradients of torch's flash kernel in BF16, for a normal dO.

    Emulated: `shipped.torch_cpu`, tile by tile, every gradient's sum rounded to BF16 after each tile. Changed: the same
    emulation with these sums in FP32.

    Args:
        n: keys. queries: rows of Q. distribution, seed: as of `inputs.draw`.

    Returns:
        rows: tensor (of GRADIENTS); who ("kernel", "emulated", "changed"); max, of the Deviation; times_max, over
        Baseline's; relative, the error's root mean square over the golden value's; alike, the correlation of its errors
        with the kernel's; same, the share of its values that are the kernel's, bit for bit.
    """
    q, k, v = (BF16(x) for x in draw(distribution, seed, (1, 1, queries, 64), (1, 1, n, 64)))
    dO = BF16(draw("normal", seed + 1000, q.shape)[0])
    flash = lambda *x: kernels.flash(*(each.bfloat16() for each in x)).double()  # noqa: E731
    shipped = torch_cpu(BF16, queries)
    wide = shipped | dict(precision=replace(shipped["precision"], grad_sums=FP32))
    found = dict(
        kernel=_gradients(flash, q, k, v, dO),
        emulated=_gradients(lambda *x: kernels.tiled(*x, **shipped), q, k, v, dO),
        changed=_gradients(lambda *x: kernels.tiled(*x, **wide), q, k, v, dO),
    )
    golden = _gradients(lambda *x: kernels.reference(*x, precision=Precision.uniform(FP64)), q, k, v, dO)
    baseline = _gradients(lambda *x: kernels.reference(*x, precision=rounds_scores_twice(BF16)), q, k, v, dO)
    rows = []
    for i, tensor in enumerate(GRADIENTS):
        limit, own = deviation(baseline[i], golden[i], BF16).max, found["kernel"][i]
        for who, gradients in found.items():
            d = deviation(gradients[i], golden[i], BF16)
            errors = dict(max=d.max, times_max=over_baseline(d.max, limit), relative=d.relative)
            alike = np.corrcoef((own - golden[i]).flatten(), (gradients[i] - golden[i]).flatten())[0, 1]
            same = (gradients[i] == own).double().mean().item()
            rows.append(dict(tensor=tensor, who=who) | errors | dict(alike=float(alike), same=same))
    return rows


def _gradients(kernel: Callable, q: Tensor, k: Tensor, v: Tensor, dO: Tensor) -> list[Tensor]:
    """dQ, dK and dV of a kernel, float64."""
    x = [each.requires_grad_() for each in (q.clone(), k.clone(), v.clone())]
    return [each.double() for each in torch.autograd.grad(kernel(*x), x, dO)]
