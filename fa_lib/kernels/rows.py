"""What the emulated kernels share: rows of Q worked off by threads, and how results are stored.

A row of Q never meets another one, so a kernel is written for a few rows of one head, and `by_rows` applies it.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from fa_lib.kernels.options import Keys, Queries, ResolvedOptions, Scores
from fa_lib.kernels.precision import Precision
from fa_lib.numerics.dots import DOUBLE_DOUBLE, EXACT, Dot
from fa_lib.numerics.formats import FP16, Format, round_to

CHUNK = {"cpu": 1 << 17, "cuda": 1 << 24}  # elements of one tile of S: near a core's L2, or enough for a GPU
FEWEST, LARGEST = 64, 1 << 27  # rows at once: products of fewer are slow; elements of Q Kᵀ that are kept


def flat(x: Float[Tensor, "*lead n d"], precision: Precision) -> Float64[Tensor, "heads n d"]:
    """Flatten the leading dimensions of x (..., n, d), and round it to `precision.inputs`: float64 (heads, n, d)."""
    values = x.detach().double().reshape(-1, *x.shape[-2:]).contiguous()
    return values if x.dtype == precision.inputs.dtype else precision.inputs(values)  # then it is on the grid already


def by_rows(
    kernel: Callable,
    tensors: tuple[Tensor, Tensor, Tensor],
    precision: Precision,
    options: ResolvedOptions,
    *,
    features: int,
    width: int,
    rows: int | None = None,
    q_k: Tensor | None = None,
    beside: tuple[Tensor, ...] = (),
    several: bool = False,
) -> Float64[Tensor, "*lead n_q features"]:
    """Apply `kernel(q_i, k, v, scores, *beside_i)` to every few rows of every head, on torch's number of threads.

    Args:
        kernel: takes q_i (rows, head_dim), k (n_kv, head_dim), v (n_kv, features), float64 and rounded to
            `precision.inputs`, the Scores of these rows, and the same rows of `beside`; returns (rows, features).
        tensors: Q, K and V of the call.
        precision: its Precision.
        options: its ResolvedOptions.
        features: of the result.
        width: number of keys that the kernel works on at once; it decides how many rows fit the cache.
        rows: number of rows to work on at once; None is as many as fit the cache.
        q_k: `products` of the call, or None.
        beside: more tensors (heads, n_q, ...); the kernel gets their rows too.
        several: whether the kernel takes several heads at once, (heads, rows, ...) for (rows, ...), and k and v so
            too, unless these heads share them.

    Returns:
        float64 tensor (*lead, n_q, features).
    """
    q, k, v = (flat(x, precision) for x in tensors)
    out = q.new_empty(q.shape[0], options.n_q, features)
    step = rows or rows_at_once(q, width, options)

    most = 1  # heads at once: as many as have `step` rows, all of which share their keys or have their own
    if several and len(q) > 1 and not stochastic(precision):
        masked = options.mask is not None or options.keep is not None
        most = max(1, (rows_at_once(q, options.n_kv, options) if masked else step) // options.n_q)
    alike = len(q) if options.group == 1 else options.group

    def work(task):
        heads, first = task
        span = slice(first, min(first + step, options.n_q))
        kv = heads if options.group == 1 else heads.start // options.group
        if heads.stop - heads.start == 1:
            heads, kv = heads.start, heads.start // options.group
        scores = options.rows(heads, span, precision.products, q_k)
        out[heads, span] = kernel(q[heads, span], k[kv], v[kv], scores, *(x[heads, span] for x in beside))

    groups = (range(first, first + alike) for first in range(0, len(q), alike))
    heads = [slice(i, min(i + most, group.stop)) for group in groups for i in group[::most]]
    run([(some, first) for some in heads for first in range(0, options.n_q, step)], work, q.device)
    return out.reshape(*options.lead, options.n_q, features)


def stochastic(precision: Precision) -> bool:
    """Return whether a format draws how it rounds, by the tensor that it is given: then work is cut in one way."""
    return any(getattr(precision, step).mode == "stochastic" for step in precision.steps())


def products(q: Queries, k: Keys, inputs: Format, dot: Dot) -> Float64[Tensor, "heads n_q n_kv"] | None:
    """Multiply Q Kᵀ of q and k rounded to inputs, neither scaled nor rounded: once for all kernels that take it as q_k.

    None where it would change a result or take too much memory: of more than LARGEST elements; with another Dot than
    EXACT and DOUBLE_DOUBLE; with EXACT of inputs of more than 11 significant bits, whose sums float64 rounds in an
    order that depends on the shapes.
    """
    same_bits = dot == DOUBLE_DOUBLE or dot == EXACT and inputs.precision <= FP16.precision
    if not same_bits or q[..., 0].numel() * k.shape[-2] > LARGEST:
        return None
    q, k = inputs(q.double()).flatten(0, -3), inputs(k.double()).flatten(0, -3)
    return dot.scores(q.unflatten(0, (len(k), -1)), k[:, None]).flatten(0, 1)


def rows_at_once(q: Tensor, width: int, options: ResolvedOptions) -> int:
    """Compute how many rows of q (heads, n_q, head_dim) to work on at once: as many as have a tile of S, `width` keys
    wide, that fits the cache; at least FEWEST."""
    return max(FEWEST, CHUNK.get(q.device.type, CHUNK["cuda"]) // max(min(width, options.n_kv), q.shape[-1]))


def tiles(k: Tensor, v: Tensor, block_kv: int, scores: Scores) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Cut K (n_kv, head_dim) and V (n_kv, d_v) into tiles of block_kv keys, and yield those that a row of `scores`
    sees: (j, the tile's first key; K_j (B_c, head_dim); V_j (B_c, d_v))."""
    for j in range(0, k.shape[-2], block_kv):
        stop = min(j + block_kv, k.shape[-2])
        if scores.sees(j, stop):
            yield j, k[..., j:stop, :], v[..., j:stop, :]


def run(tasks: list, work: Callable, device: torch.device) -> None:
    """Call work(task) for every task, on as many threads as torch uses."""
    threads = min(torch.get_num_threads(), len(tasks)) if device.type == "cpu" else 1
    if threads == 1:
        for task in tasks:
            work(task)
        return
    # Each thread computes alone: rows are plenty, and one-threaded operations wait for nobody.
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    before = torch.get_num_threads()
    try:
        list(pool.map(work, tasks))
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)


def rounding(precision: Precision) -> Precision:
    """Return `precision`; a ValueError where it is no Precision."""
    if not hasattr(precision, "probs"):
        accepted = f"a Precision, such as Precision.kernel({precision!r})"
        raise ValueError(f"precision: got {precision!r}; accepted is {accepted}")
    return precision


def dropped(p: Precision, scores: Scores, P: Tensor, j: int) -> Tensor:
    """Apply dropout to P (rows, B_c) of the keys from j on, and round it to `p.probs`, as it enters the matrix product.
    P is on the grid of `p.exponent`, and is overwritten."""
    return P if scores.keeps_all and p.probs == p.exponent else p.probs.round_(scores.drop(P, j))


def nonzero(x: Tensor) -> Tensor:
    """Replace 0 by 1 in a divisor x, of any shape. So a row that sees no key, whose sum l is 0, becomes 0 / 1 = 0."""
    return torch.where(x == 0, 1.0, x)


def stored(o: Float[Tensor, "*shape"], dtype: torch.dtype) -> Float[Tensor, "*shape"]:
    """Convert o, of any shape, to the dtype that a kernel returns: float64 is rounded straight to it."""
    return o.contiguous() if o.dtype == dtype else round_to(o, str(dtype)).to(dtype)
