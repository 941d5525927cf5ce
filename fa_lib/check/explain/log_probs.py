"""Two outputs of attention as a model's log-probabilities would see them, by one fixed projection."""

import torch
from torch import Tensor

VOCABULARY = 64


def log_probs(a: Tensor, b: Tensor) -> dict[str, float]:
    """How far apart two outputs of attention are once they are log-probabilities.

    No model is run: the heads of a token are put side by side, brought to a root mean square of 1 (as a last norm
    does), and one fixed random orthonormal projection makes logits of spread 1 of them, over VOCABULARY tokens. In a
    model, layers follow that may shrink or raise the difference.

    Args:
        a, b: float64 (batch, heads, rows, v_dim).

    Returns:
        dict: mean and max of |difference| over tokens and vocabulary.
    """
    width = a.shape[1] * a.shape[3]
    drawn = torch.randn(max(width, VOCABULARY), min(width, VOCABULARY), generator=torch.Generator().manual_seed(0))
    projection = torch.linalg.qr(drawn.double())[0]  # (larger, smaller), orthonormal columns
    projection = projection if width >= VOCABULARY else projection.T * (VOCABULARY / width) ** 0.5

    def of(o):
        x = o.cpu().transpose(1, 2).flatten(2)  # (batch, rows, width)
        x = x / x.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-300)
        return torch.log_softmax(x @ projection, -1)

    difference = (of(a) - of(b)).abs()
    return dict(mean=difference.mean().item(), max=difference.max().item())
