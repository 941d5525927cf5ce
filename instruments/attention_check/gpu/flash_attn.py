"""FlashAttention-2's own CUDA kernels, on a CPU in a GPU's arithmetic: flash-attn 2.8.3's flash_attn_func without
dropout, forward and backward, as flash_api.cpp calls them."""

from dataclasses import dataclass, replace
from math import ceil, e, log2, nan

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor

from attention_check.gpu.flash_attn_kernels import (
    TYPES,
    WIDTHS,
    Case,
    Kernels,
    backward_kernels,
    combined_rows,
    combining_kernels,
    forward_kernels,
    split_kernels,
)
from ptx_machine.device import GPU
from ptx_machine.memory import NANS

MOST_SPLITS = 128


@dataclass(frozen=True)
class Options:
    """The options of a call.

    Attributes:
        causal: aligned bottom-right. softcap: 0 is none. scale: None is 1 / sqrt(d).
        window: keys to the left and to the right that a query sees; -1: all; with causal only the left side counts.
    """

    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    scale: float | None = None

    def among(self, n_q: int, n_kv: int) -> "Options":
        """Return the options as flash_api.cpp takes them for so many queries and keys: one query sees all keys, a side
        that covers all keys has no limit, and a causal call with a limit on the left is a window."""
        causal = self.causal and n_q > 1
        left, right = (-1 if side >= n_kv or side < 0 else side for side in self.window)
        return replace(self, causal=causal and left < 0, window=(left, 0 if causal else right))

    @property
    def local(self) -> bool:
        """Whether there is a window, and the call is not causal."""
        return not self.causal and self.window != (-1, -1)


PLAIN = Options()


def forward(
    q: Float[Tensor, "batch heads n_q d"],
    k: Float[Tensor, "batch heads_kv n_kv d"],
    v: Float[Tensor, "batch heads_kv n_kv d"],
    options: Options = PLAIN,
    *,
    gpu: str | GPU = "A100",
    splits: int | None = None,
) -> tuple[Float[Tensor, "batch heads n_q d"], Float32[Tensor, "batch heads n_q"]]:
    """Compute attention.

    Args:
        q: (batch, heads, n_q, d), BF16 or FP16 on the CPU, d a multiple of 8 up to 256.
        k, v: (batch, heads_kv, n_kv, d); heads are a multiple of heads_kv.
        splits: number of parts of the keys that separate blocks work on, to be combined at the end; 1: no split. None:
            as many as flash_attn_func takes (`splits_of`).

    Returns:
        (O (batch, heads, n_q, d) in the inputs' type; the log-sum-exp of each row, FP32 (batch, heads, n_q)).

    Raises:
        ValueError: the kernel takes no such call.
    """
    gpu = GPU.of(gpu)
    q, k, v = _accepted(q, k, v)
    (batch, heads, n_q, d), (heads_kv, n_kv) = q.shape, k.shape[1:3]
    options = options.among(n_q, n_kv)
    if n_q == 1 and heads > heads_kv and options.window == (-1, -1):  # the heads that share keys are its queries
        shared_q = q.reshape(batch, heads_kv, heads // heads_kv, d)
        o, lse = _forward(shared_q, k, v, options, gpu, splits)
        return o.reshape(batch, heads, 1, d), lse.reshape(batch, heads, 1)
    return _forward(q, k, v, options, gpu, splits)


def _forward(q, k, v, options, gpu, splits):
    (batch, heads, n_q, d), n_kv = q.shape, k.shape[2]
    case = _case(q, k, options, gpu)
    splits = splits_of(batch * heads, n_q, n_kv, case.width, gpu) if splits is None else splits
    if not 1 <= splits <= MOST_SPLITS:
        raise ValueError(f"splits: got {splits}; accepted are 1 to {MOST_SPLITS}, or None")
    o = q.new_full((batch, n_q, heads, d), nan).transpose(1, 2)  # as flash-attn lays it out
    rows = combined_rows(case.width)  # the combining kernel writes whole blocks of them
    room = torch.full((-(-batch * heads * n_q // rows) * rows,), nan)
    values = _values(q, k, v, o, room, options)
    if splits == 1:
        kernels = forward_kernels(case)
        grid = -(-n_q // kernels.block_q), batch, heads
        _launch(kernels, "flash_fwd_kernel", grid, kernels.shared[0], values)
    else:
        kernels = split_kernels(case)
        values |= dict(
            num_splits=splits, softmax_lseaccum_ptr=torch.full((splits, batch, heads, n_q), nan),
            oaccum_ptr=torch.full((splits, batch, heads, n_q, values["d_rounded"]), nan),
        )  # fmt: skip
        grid = -(-n_q // kernels.block_q), splits, batch * heads
        _launch(kernels, "flash_fwd_splitkv_kernel", grid, kernels.shared[0], values)
        _launch(combining_kernels(case, splits), "combine_kernel", (room.numel() // rows,), 0, values)
    return o, room[: batch * heads * n_q].view(batch, heads, n_q)


def splits_of(heads: int, n_q: int, n_kv: int, head_dim: int, gpu: GPU) -> int:
    """Compute into how many parts flash_attn_func splits the keys: num_splits_heuristic of flash_api.cpp. heads: times
    the batch."""
    processors = 2 * gpu.processors
    tiles = -(-n_kv // (256 if head_dim <= 64 else 128 if head_dim <= 128 else 64))
    blocks = heads * -(-n_q // 64)
    if blocks >= np.float32(0.8) * np.float32(processors):
        return 1
    efficiency = {}
    for splits in range(1, min(MOST_SPLITS, processors, tiles) + 1):
        if splits == 1 or -(-tiles // splits) != -(-tiles // (splits - 1)):
            waves = np.float32(blocks * splits) / np.float32(processors)
            efficiency[splits] = waves / np.float32(ceil(waves))
    best = max(efficiency.values(), default=0.0)
    return next((splits for splits, share in efficiency.items() if share >= 0.85 * float(best)), 1)


def backward(
    dO: Float[Tensor, "batch heads n_q d"],
    inputs: tuple[Tensor, Tensor, Tensor],
    outputs: tuple[Tensor, Tensor],
    options: Options = PLAIN,
    *,
    gpu: str | GPU = "A100",
    seed: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients, with flash-attn's deterministic=False.

    Blocks of keys add their parts of dQ to one FP32 tensor, by atomic operations. On a GPU their order is random; here
    blocks come one after the other.

    Args:
        dO: (batch, heads, n_q, d).
        inputs, options, gpu: of `forward`; the first are (q, k, v). outputs: its (o, lse).
        seed: of the order of the blocks; None: the order of their numbers.

    Returns:
        (dQ, dK, dV), of q's, k's and v's shapes and type.

    Raises:
        ValueError: the kernel takes no such call.
    """
    gpu = GPU.of(gpu)
    (q, k, v), (o, lse) = _accepted(*inputs), outputs
    (batch, heads, n_q, d), (heads_kv, n_kv) = q.shape, k.shape[1:3]
    if dO.shape != q.shape or o.shape != q.shape or lse.shape != q.shape[:3] or lse.dtype != torch.float32:
        raise ValueError(
            f"dO, o, lse: got {tuple(dO.shape)}, {tuple(o.shape)}, {tuple(lse.shape)} in {lse.dtype}; accepted are q's "
            f"shape {tuple(q.shape)}, and {tuple(q.shape[:3])} in FP32"
        )
    options = options.among(n_q, n_kv)
    kernels = backward_kernels(_case(q, k, options, gpu))
    dO, o, lse = (x if x.stride(-1) == 1 else x.contiguous() for x in (dO.to(q.dtype), o, lse.contiguous()))
    dq = q.new_full((batch, n_q, heads, d), nan).transpose(1, 2)
    dk, dv = (q.new_full((batch, n_kv, heads, d), nan).transpose(1, 2) for _ in range(2))
    values = _values(q, k, v, o, lse, options)
    for name, x in dict(do=dO, dq=dq, dk=dk, dv=dv).items():
        values |= _strided(name, x)
    rounded = values["seqlen_q_rounded"]
    values |= dict(
        dq_accum_ptr=torch.full((batch, rounded, heads, values["d_rounded"]), nan),
        dsoftmax_sum=torch.full((batch, heads, rounded), nan),
    )
    rows = -(-n_q // kernels.block_q), batch, heads
    keys = -(-n_kv // kernels.block_kv), batch, heads
    _launch(kernels, "dot_do_o", rows, 0, values)
    _launch(kernels, "dq_dk_dv_loop", keys, kernels.shared[0], values, order=_shuffled(keys, seed))
    _launch(kernels, "convert_dq", rows, kernels.shared[1], values, 1)
    if heads != heads_kv:  # as at::sum_out: the heads that share keys
        dk, dv = (x.unflatten(1, (heads_kv, -1)).sum(2) for x in (dk, dv))
    return dq, dk, dv


def _shuffled(grid, seed):
    if seed is None:
        return None
    x, y, z = grid
    numbers = np.random.default_rng(seed).permutation(x * y * z).tolist()
    return [(i % x, i // x % y, i // (x * y)) for i in numbers]


def _launch(kernels: Kernels, name: str, grid, shared: int, values: dict, *more, order=None) -> None:
    # in a tile that is not full a kernel reads shared memory that nobody wrote; it hides what comes of it
    unwritten = None if kernels.even else NANS
    arguments = kernels.parameters(values), *more
    kernels.kernel(name)(grid, (kernels.threads,), shared, *arguments, blocks=order, unwritten=unwritten)


def _accepted(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if q.dtype not in TYPES or {k.dtype, v.dtype} != {q.dtype}:
        raise ValueError(f"q, k, v: got {q.dtype}, {k.dtype}, {v.dtype}; accepted is BF16 or FP16, the same for all")
    d = q.shape[-1]
    fits = k.shape == v.shape and q.ndim == k.ndim == 4 and k.shape[-1] == d and k.shape[0] == q.shape[0]
    if not fits or d % 8 or not 0 < d <= WIDTHS[-1] or 0 in (*q.shape, *k.shape) or q.shape[1] % k.shape[1]:
        got = ", ".join(str(tuple(x.shape)) for x in (q, k, v))
        raise ValueError(
            f"q, k, v: got {got}; accepted is (batch, heads, n, head_dim), head_dim a multiple of 8 up to {WIDTHS[-1]},"
            " heads a multiple of k's and v's"
        )
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    return q, k, v


def _strided(name: str, x: Tensor) -> dict:
    strides = dict(batch_stride=x.stride(0), head_stride=x.stride(1), row_stride=x.stride(2), ptr=x)
    return {f"{name}_{field}": value for field, value in strides.items()}


def _case(q: Tensor, k: Tensor, options: Options, gpu: GPU) -> Case:
    sizes = q.shape[2], k.shape[2]
    return Case(q.shape[-1], q.dtype, gpu, options.causal, options.local, options.softcap > 0, *sizes)


def _values(q, k, v, o, lse, options) -> dict:
    """set_params_fprop."""
    (batch, heads, n_q, d), (heads_kv, n_kv) = q.shape, k.shape[1:3]
    left, right = options.window
    left, right = (n_kv if left < 0 <= right else left), (n_kv if right < 0 <= left else right)
    multiple = 32 if d <= 128 else 64
    values = dict(
        h=heads, h_k=heads_kv, h_h_k_ratio=heads // heads_kv, softmax_lse_ptr=lse, b=batch, seqlen_q=n_q,
        seqlen_k=n_kv, d=d, seqlen_q_rounded=-(-n_q // 128) * 128, seqlen_k_rounded=-(-n_kv // 128) * 128,
        d_rounded=-(-d // multiple) * multiple, p_dropout=1.0, rp_dropout=1.0, window_size_left=left,
        window_size_right=right, is_bf16=q.dtype == torch.bfloat16, is_causal=options.causal, num_splits=1,
    )  # fmt: skip
    for name, x in zip("qkvo", (q, k, v, o)):
        values |= _strided(name, x)
    scale = float(np.float32(d**-0.5 if options.scale is None else options.scale))
    softcap = float(np.float32(options.softcap))
    after = softcap if softcap > 0 else scale  # what scores are multiplied by at last
    scales = dict(scale_softmax=after, scale_softmax_log2=after * log2(e), scale_softmax_rp_dropout=after)
    return values | scales | dict(softcap=scale / softcap if softcap > 0 else 0.0)
