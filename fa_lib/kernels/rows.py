"""What the emulated kernels share: checked shapes, masks by row, and rows worked off by threads.

A row of Q never meets another one, so a kernel is written for a few rows of one head, and `by_rows` applies it.
"""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

CHUNK = {"cpu": 1 << 17, "cuda": 1 << 24}  # elements of one tile of S: near a core's L2, or enough for a GPU


def check(q, k, v, mask=None, scale=None):
    """The contract of every kernel: shapes that fit.

    Raises:
        ValueError: names the argument, what came and what is accepted.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.ndim < 2:
            raise ValueError(
                f"{name}: got {_describe(x)}; accepted is a floating-point tensor (batch, heads, sequence, head_dim)"
            )
        if 0 in x.shape:
            raise ValueError(f"{name}: got shape {tuple(x.shape)}; accepted are dimensions of at least 1")
        if x.dtype != q.dtype or x.device != q.device:
            raise ValueError(f"{name}: got {x.dtype} on {x.device}; accepted is q's, {q.dtype} on {q.device}")
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"v: got shape {tuple(v.shape)}; accepted is k's {tuple(k.shape[:-1])} before head_dim")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"k: got head_dim {k.shape[-1]}; accepted is q's, {q.shape[-1]}")
    if q.ndim != k.ndim or q.shape[:-3] != k.shape[:-3]:
        raise ValueError(f"k: got shape {tuple(k.shape)}; accepted are q's leading dimensions, {tuple(q.shape[:-2])}")
    if q.ndim > 2 and q.shape[-3] % k.shape[-3]:
        raise ValueError(f"k: got {k.shape[-3]} heads; accepted is a divisor of q's {q.shape[-3]} heads (GQA)")
    if scale is not None and not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"scale: got {scale!r}; accepted is a finite number above 0, or None for 1 / sqrt(head_dim)")
    if mask is not None:
        full = (*q.shape[:-1], k.shape[-2])
        if not isinstance(mask, torch.Tensor) or not (mask.dtype == torch.bool or mask.is_floating_point()):
            raise ValueError(f"mask: got {_describe(mask)}; accepted is a boolean or floating-point tensor")
        try:
            fits = torch.broadcast_shapes(mask.shape, full) == torch.Size(full)
        except RuntimeError:
            fits = False
        if not fits:
            raise ValueError(f"mask: got shape {tuple(mask.shape)}; accepted is what broadcasts to {full}")


def _describe(x):
    return f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, torch.Tensor) else type(x).__name__


class Mask:
    """What some rows of one head may see, tile by tile.

    Args:
        first, rows: the rows of Q, first .. first + rows - 1.
        n_q, n_kv: lengths of Q and of K. `causal` aligns bottom-right as flash-attn does: query i sees the keys
            up to i + n_kv - n_q, so the last query sees every key.
        mask: (rows, n_kv) of this head, boolean (True: visible) or added to S; or None.
    """

    def __init__(self, first, rows, n_q, n_kv, causal, mask, device):
        self.causal, self.mask = causal, mask
        if causal:
            self.last_key = torch.arange(first, first + rows, device=device)[:, None] + (n_kv - n_q)
            self.last = first + rows - 1 + n_kv - n_q

    def hides_all(self, j):
        """True where no row sees key j or a later one."""
        return self.causal and j > self.last

    def __call__(self, S, j):
        """S (rows, keys) whose first key is j, with what is hidden at -inf and an additive mask added."""
        if self.mask is not None:
            tile = self.mask[:, j : j + S.shape[1]]
            S = S.masked_fill(~tile, -math.inf) if tile.dtype == torch.bool else S + tile
        if self.causal and j + S.shape[1] - 1 > self.last_key[0]:
            keys = torch.arange(j, j + S.shape[1], device=S.device)
            S = S.masked_fill(keys > self.last_key, -math.inf)
        return S

    @property
    def trivial(self):
        """True where nothing is masked at all."""
        return self.mask is None and not self.causal


def by_rows(kernel, q, k, v, precision, *, causal, scale, mask, width, rows=None, out_features=None):
    """Apply `kernel(q_i, k, v, scale, mask_i)` to every few rows of every head, on as many threads as torch uses.

    Args:
        kernel: takes q_i (rows, head_dim), k (n_kv, head_dim) and v (n_kv, head_dim), float64 and rounded to
            `precision.inputs`, the scale and a Mask; returns (rows, features).
        width: keys the kernel works on at once, from which the number of rows that fit the cache follows.
        rows: that number instead of the one that follows.
        out_features: of the result where it is not v's head_dim.

    Returns:
        float64 tensor, q's shape with the last dimension the kernel's features.
    """
    check(q, k, v, mask, scale)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    lead, n_q, n_kv = q.shape[:-2], q.shape[-2], k.shape[-2]
    group = q.shape[-3] // k.shape[-3] if q.ndim > 2 else 1  # Q heads that share a K/V head
    if mask is not None:
        mask = (mask if mask.dtype == torch.bool else mask.double()).expand(*lead, n_q, n_kv)
    q, k, v = (precision.inputs(x.detach().double().reshape(-1, *x.shape[-2:])) for x in (q, k, v))
    out = q.new_empty(q.shape[0], n_q, out_features or v.shape[-1])
    rows = rows or max(16, CHUNK.get(q.device.type, CHUNK["cuda"]) // max(min(width, n_kv), q.shape[-1]))

    def work(task):
        head, first = task
        here = slice(first, min(first + rows, n_q))
        q_i = q[head, here]
        mask_i = None if mask is None else mask[np.unravel_index(head, lead)][here]
        visible = Mask(first, q_i.shape[0], n_q, n_kv, causal, mask_i, q.device)
        out[head, here] = kernel(q_i, k[head // group], v[head // group], scale, visible)

    _run(work, [(head, first) for head in range(q.shape[0]) for first in range(0, n_q, rows)], q.device)
    return out.reshape(*lead, n_q, -1)


def _run(work, tasks, device):
    threads = min(torch.get_num_threads(), len(tasks)) if device.type == "cpu" else 1
    if threads == 1:
        for task in tasks:
            work(task)
        return
    # Each thread computes alone: rows are plenty, and one-threaded operations wait for nobody.
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    before = torch.get_num_threads()
    try:
        for _ in pool.map(work, tasks):
            pass
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)
