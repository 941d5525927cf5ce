"""A byte-level decoder, small enough for hundreds of runs on a CPU, and its text: the sources of Python's library."""

import hashlib
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, rms_norm

from fa_lib.training.data import generator
from fa_lib.training.decoder_attention import Arithmetic, Attention


@dataclass(frozen=True)
class Sizes:
    """Sizes of the decoder and of its batches."""

    layers: int = 2
    heads: int = 2
    head_dim: int = 32
    tokens: int = 256
    batch: int = 4

    @property
    def width(self) -> int:
        """Numbers of a token."""
        return self.heads * self.head_dim


class Decoder(nn.Module):
    """Predicts each next byte: pre-norm blocks of causal attention and a GELU network, learned positions.

    Args:
        sizes: of the decoder. how: the Arithmetic of every attention call. seed: of the initial weights.
        mixed: every linear layer multiplies BF16 values and rounds its output to BF16, forward and backward, as
            autocast does; norms, the loss and the weights that the optimizer holds are FP32. Else all is FP32.
    """

    def __init__(self, sizes: Sizes, how: Arithmetic, seed: int, mixed: bool):
        super().__init__()
        self.sizes, self.how, self.mixed, width = sizes, how, mixed, sizes.width
        draw = generator(seed)

        def normal(*shape):
            return nn.Parameter(torch.randn(shape, generator=draw) / shape[-1] ** 0.5)

        self.bytes, self.places = normal(256, width), normal(sizes.tokens, width)
        self.blocks = nn.ParameterList()
        for _ in range(sizes.layers):
            shapes = dict(qkv=(3 * width, width), out=(width, width), up=(4 * width, width), down=(width, 4 * width))
            self.blocks.append(nn.ParameterDict({name: normal(*shape) for name, shape in shapes.items()}))
        self.head = normal(256, width)

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """Compute x weightᵀ: (..., in) and (out, in) -> (..., out)."""
        if not self.mixed:
            return x @ weight.T
        return rounded(rounded(x) @ rounded(weight).T)

    def forward(self, text: Tensor) -> Tensor:
        """Compute the logits of each next byte, (batch, tokens, 256), of text, int64 (batch, tokens)."""
        sizes, x = self.sizes, self.bytes[text] + self.places  # (batch, tokens, width)
        for block in self.blocks:
            qkv = self.linear(rms_norm(x, x.shape[-1:]), block["qkv"])
            q, k, v = qkv.unflatten(-1, (3, sizes.heads, -1)).unbind(2)  # (batch, tokens, heads, head_dim) each
            o = Attention.apply(*(y.transpose(1, 2) for y in (q, k, v)), self.how)  # (batch, heads, tokens, head_dim)
            x = x + self.linear(o.transpose(1, 2).flatten(2), block["out"])
            x = x + self.linear(gelu(self.linear(rms_norm(x, x.shape[-1:]), block["up"])), block["down"])
        return self.linear(rms_norm(x, x.shape[-1:]), self.head)

    def loss(self, text: Tensor) -> Tensor:
        """Compute the mean cross entropy in nats of text, int64 (batch, tokens + 1), a tensor of one number."""
        return cross_entropy(self(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


def rounded(x: Tensor) -> Tensor:
    """Round x to BF16's values; its gradient is rounded, too."""
    return x.bfloat16().float()


@cache
def text() -> tuple[Tensor, Tensor, str]:
    """Read the sources of Python's library that begin with a to t, in the order of their names.

    Returns:
        (bytes to train on, uint8 (n,); held out bytes, every tenth file, uint8 (n,); the first 16 digits of their
        SHA-256). They differ between versions of Python.
    """
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-t]*.py"))
    train, test = (b"".join(f.read_bytes() for i, f in enumerate(files) if (i % 10 == 9) == held) for held in (0, 1))
    a, b = (torch.from_numpy(np.frombuffer(part, np.uint8).copy()) for part in (train, test))
    return a, b, hashlib.sha256(train + test).hexdigest()[:16]


def batch(source: Tensor, sizes: Sizes, *seed: int, count: int = 0) -> Tensor:
    """Draw windows of a text, int64 (count or sizes.batch, tokens + 1), from a seed: whole numbers."""
    count = count or sizes.batch
    starts = torch.randint(len(source) - sizes.tokens - 1, (count,), generator=generator(*seed))
    return torch.stack([source[i : i + sizes.tokens + 1] for i in starts]).long()


def trivial_losses() -> dict[str, float]:
    """Compute the held-out cross entropy in nats of predictors that know one byte's frequency, and pairs' (counts of
    the training text, plus one)."""
    train, test = (x.numpy() for x in text()[:2])
    single = np.bincount(train, minlength=256) + 1.0
    pairs = np.bincount(256 * train[:-1].astype(int) + train[1:], minlength=65536).reshape(256, 256) + 1.0
    pairs /= pairs.sum(1, keepdims=True)
    return dict(bytes=-np.log(single / single.sum())[test].mean(), pairs=-np.log(pairs[test[:-1], test[1:]]).mean())
