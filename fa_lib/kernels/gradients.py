"""Gradients for a given dO."""

from collections.abc import Sequence

import torch
from torch import Tensor


def gradients(o: Tensor, inputs: Sequence[Tensor], dO: Tensor) -> tuple[Tensor, ...]:
    """Compute the gradients of `inputs` for dO, of o's shape and dtype.

    They have the bits of `torch.autograd.grad(o, inputs, dO)`: the sum hands 1 to every product, and 1 dO is dO. But
    where torch is given dO, it imports sympy to compare its shape with o's: half a second of every process.
    """
    with torch.enable_grad():  # it is off inside a backward pass
        total = (o * dO).sum()
    return torch.autograd.grad(total, inputs)
