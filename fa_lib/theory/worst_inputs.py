"""How bad can it get? A search, tile by tile, for inputs on which the roundings of a kernel all err to one side."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor

from fa_lib import kernels
from fa_lib.kernels.algorithm import Algorithm
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.tiled import Forward
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.dots import Exact
from fa_lib.numerics.formats import BF16, FP64, Format

SPREAD = 1.0  # the most that scores differ


def search(
    fmt: Format, tiles: int, seed: int, *, algorithm: str = "fa1", block_kv: int = 64, candidates: int = 256
) -> np.ndarray:
    """Search a score, from -SPREAD to 0, and a value, from 1/2 to 1, for the keys of each tile.

    With V of one sign |O| is not small by cancellation, so that the error counts against O itself. The search is
    greedy: of many random next tiles it takes the one after which O is furthest above, or below, the golden value.

    Args:
        fmt: of every step of the kernel.
        tiles: number of tiles of keys.
        seed: of the search.
        algorithm: as `kernels.tiled`.
        block_kv: keys of a tile.
        candidates: number of random tiles to try at each step.

    Returns:
        float64 (2, tiles, 1): scores and values.
    """
    p, how = replace(Precision.uniform(fmt), products=EqualKeys(block_kv)), Algorithm.of(algorithm)
    random, sides, kernel = np.random.default_rng(seed), [], Forward.of(p, how, 1.0, block_kv)
    for side in (1, -1):
        x = np.zeros((2, tiles, 1))
        m = torch.full((1, 1), -torch.inf, dtype=torch.float64)
        l, O = torch.zeros_like(m), torch.zeros_like(m)
        for t in range(tiles):
            candidate_tile = random.uniform(size=(2, 1, candidates)) * [[[-SPREAD]], [[0.5]]] + [[[0.0]], [[0.5]]]
            x = np.repeat(x[..., :1], candidates, 2)
            x[:, [t]] = candidate_tile
            scores, values = (fmt(torch.from_numpy(part[: t + 1])) for part in x)  # (tiles so far, candidates) each
            S = p.scores(scores[t][:, None])
            carried = m, l, O.repeat(candidates, 1)  # of the tiles that all candidates have
            m, l, O = kernel.tile(p, how, p.probs, S.clone(), values[t][:, None], p.maximum(S), carried)
            golden = (scores.softmax(0) * values).sum(0)
            o = p.output(kernel.last(p, l, O))[:, 0]
            best = int((side * (o - golden) / golden).argmax())
            x, m, l, O = x[..., [best]], m[[best]], l[[best]], O[[best]]
        sides.append(x)
    flash = searched_kernel(fmt, algorithm, block_kv)
    return max(sides, key=lambda x: relative_error(flash, x, fmt, block_kv).abs().item())


@dataclass(frozen=True)
class EqualKeys(Exact):
    """Products and sums over a tile of `keys` equal keys, of which P (candidates, 1) and v (candidates, 1) hold one: a
    row of P meets its own v."""

    keys: int

    def matmul(self, A: Tensor, B: Tensor, C: Tensor | None = None) -> Tensor:
        """Compute C + keys A B, (candidates, 1)."""
        return self.keys * A * B if C is None else C + self.keys * A * B

    def totals(self, P: Tensor) -> Tensor:
        """Sum P over the keys, (candidates, 1)."""
        return self.keys * P


@lru_cache
def worst_inputs(n: int, seed: int, head_dim: int = 64) -> tuple[Tensor, Tensor, Tensor]:
    """Make inputs of the scores and values that `search` finds for FA1 with every step in BF16, tiles of 64.

    The first column of V is as found; the others are it times 1 to 3/4, so that Baseline's largest error is that of
    many outputs, and not of one that may be exact by luck.

    Args:
        n: number of queries and of keys.
        seed: of the search.
        head_dim: of Q, K and V.

    Returns:
        (Q, K, V), float64 (1, 1, n, head_dim) each.
    """
    tiles = min(max(1, n // 64), head_dim)
    scores, values = torch.from_numpy(search(BF16, tiles, seed, candidates=64)[..., 0])
    tile = (torch.arange(n) // 64).clamp(max=tiles - 1)  # the tile of each key
    q, k = torch.zeros(2, 1, 1, n, head_dim, dtype=torch.float64)
    q[..., :tiles] = scores * head_dim**0.5  # a row's score in every tile, against the kernel's scale
    k[..., torch.arange(n), tile] = 1
    v = values[tile][:, None] * torch.linspace(1, 0.75, head_dim, dtype=torch.float64)  # (n, head_dim)
    return q, k, v[None, None]


def relative_error(kernel: Callable, x: np.ndarray, fmt: Format, block_kv: int) -> Tensor:
    """A kernel's signed relative error, of each candidate of x (2, tiles, candidates), float64 (candidates,)."""
    tiles = x.shape[1]
    scores, values = torch.from_numpy(x)
    tile = torch.arange(tiles).repeat_interleave(block_kv)  # the tile of each key (n_kv,)
    k = torch.nn.functional.one_hot(tile, tiles).double()[None, None]  # (1, 1, n_kv, tiles)
    q = fmt(scores.T)[None, None]  # (1, 1, candidates, tiles): a candidate's score in every tile
    v = fmt(values)[tile][None, None]  # (1, 1, n_kv, candidates)
    # of all candidates' scores with all candidates' values, each with its own (candidates,)
    golden = kernels.golden(q, k, v, inputs=FP64, scale=1.0)[0, 0].diagonal()
    return (kernel(q, k, v, scale=1.0)[0, 0].diagonal() - golden) / golden


def searched_kernel(fmt: Format, algorithm: str, block_kv: int) -> Callable:
    """The kernel that `search` is for: every step in fmt."""
    options = dict(tiling=Tiling(64, block_kv), precision=Precision.uniform(fmt), algorithm=algorithm)
    return partial(kernels.tiled, **options)
