"""FlashAttention-4's CuTe kernels, for Hopper (wgmma) and Blackwell (tcgen05), on a CPU in a GPU's arithmetic.

q, k, v and o are (batch, heads, n, head_dim) in BF16 or FP16; heads of K and V may be fewer. Line numbers are those of
flash-attn-4 4.0.0b36, in flash_attn/cute.
"""

import math
from dataclasses import dataclass
from math import nan

import torch
from torch import Tensor

from attention_gallery.adapters import only_dtypes, softmax_scale, swapped, without_gradients
from attention_gallery.flash_attn_4_kernels import Chosen, compiled
from ptx_machine.arguments import Structure
from ptx_machine.device import GPU
from ptx_machine.tensor_maps import tensor_map

HEAD_DIMS = (64, 128)  # of those that it accepts
LOG2_E = 1.44269504  # softmax_utils: the scale is multiplied by it in FP32
CACHE_BYTES = 50 << 20  # of the second-level cache, that LPT scheduling reckons with: tile_scheduler.py, line 503
SHAPE = {f"{i}": (4 * i, 4) for i in range(4)}
DIVISOR = {"divisor": (0, 4), "factor": (4, 4), "a": (8, 1), "b": (9, 1)}


def fa4_hopper(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None, *, gpu: str | GPU = "H100"
) -> Tensor:
    """Call flash_attn_func on an H100, or another GPU: as `fa4`."""
    return fa4(q, k, v, causal, scale, gpu=gpu)


def fa4_blackwell(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None, *, gpu: str | GPU = "B200"
) -> Tensor:
    """Call flash_attn_func on a B200, or another GPU: as `fa4`."""
    return fa4(q, k, v, causal, scale, gpu=gpu)


def fa4(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None, *, gpu: str | GPU) -> Tensor:
    """Call flash_attn.cute.flash_attn_func with its defaults.

    Raises:
        NotImplementedError: an input requires a gradient, another dtype or head_dim, a GPU that is neither Hopper nor
            Blackwell, or a call for which the project chooses a kernel that is not modelled.
    """
    without_gradients(q, k, v, "the backward kernels of FlashAttention-4 are not modelled")
    only_dtypes(q, (torch.bfloat16, torch.float16), "FlashAttention-4")
    if q.shape[-1] not in HEAD_DIMS:
        raise NotImplementedError(f"of FlashAttention-4, head_dim {HEAD_DIMS} are modelled; {q.shape[-1]} came")
    gpu = GPU.of(gpu)
    q, k, v = (swapped(x).contiguous() for x in (q, k, v))  # (batch, n, heads, head_dim)
    chosen = compiled(q, k, causal, gpu)
    o = torch.full_like(q, nan)
    call = _Call(q, k, v, o, chosen, gpu)
    chosen.kernel(call.grid, chosen.block, gpu.shared_bytes, *call.arguments(softmax_scale(q, scale)))
    return swapped(o)


@dataclass(frozen=True)
class _Call:
    """What the project's host code computes for a launch.

    Attributes:
        q, k, v, o: (batch, n, heads, head_dim).
        chosen: the kernel. gpu: where it runs.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    chosen: Chosen
    gpu: GPU

    @property
    def group(self) -> int:
        """Heads of Q whose rows a tile holds together."""
        return self.q.shape[2] // self.k.shape[2] if self.chosen.pack_gqa else 1

    @property
    def tiles(self) -> tuple[int, int, int]:
        """The number of tiles of Q, of heads (of K and V, where rows of several are together), of the batch."""
        batch, n, heads, _ = self.q.shape
        return -(-n * self.group // self.chosen.tile), heads // self.group, batch

    @property
    def grid(self) -> tuple[int, ...]:
        """The grid: tile_scheduler.py, lines 314, 399 and 578."""
        blocks, heads, batch = self.tiles
        if self.chosen.scheduler == "SingleTileScheduler":
            return blocks, heads, batch
        total = blocks * heads * batch
        return (min(self.gpu.processors, total) if self.chosen.scheduler.startswith("StaticPersistent") else total,)

    def arguments(self, scale: float) -> list:
        """The kernel's arguments: four shapes, four tensor maps, the scale, two layouts that are constant, and what the
        scheduler needs."""
        parameters = self.chosen.kernel.entry.parameters
        log2_scale = float(torch.tensor(scale, dtype=torch.float32) * torch.tensor(LOG2_E, dtype=torch.float32))
        first = [*map(self._shape, (self.q, self.k, self.v, self.o)), *self._maps(), log2_scale]
        layouts = [Structure({}, each.size) for each in parameters[len(first) : len(first) + 2]]
        scheduling = self._scheduling()
        rest = parameters[len(first) + 2 + len(scheduling) :]  # divisors that only packed rows with masks use
        return [*first, *layouts, *scheduling, *(Structure({}, each.size) if each.type is None else 0 for each in rest)]

    def _shape(self, x: Tensor) -> Structure:
        """A tensor's shape (n, head_dim, heads, batch); the kernels read n alone."""
        batch, n, heads, d = x.shape
        return Structure(SHAPE, 16, dict(zip("0123", (n, d, heads, batch))))

    def _maps(self) -> list[Structure]:
        """Tensor maps of Q, K, V and O."""
        maps = []
        for x, drawn in zip((self.q, self.k, self.v, self.o), self.chosen.maps):
            batch, n, heads, d = x.shape
            packed = self.group > 1 and x.shape == self.q.shape
            if not packed:
                seen = x.permute(0, 2, 1, 3)
            elif len(drawn["box"]) == 4:
                seen = x
            else:
                seen = x.view(batch, n, heads // self.group, self.group, d).permute(0, 2, 1, 3, 4)
            maps.append(tensor_map(seen, drawn["box"][::-1], drawn["width"]))
        return maps

    def _scheduling(self) -> list:
        """The scheduler's parameters, in the order of its fields: tile_scheduler.py, lines 224, 354 and 460."""
        blocks, heads, batch = self.tiles
        total, name = blocks * heads * batch, self.chosen.scheduler
        if name == "SingleTileScheduler":
            return [blocks, heads, batch, *_divisor(1)]
        if name == "StaticPersistentTileScheduler":
            return [*_divisor(blocks), *_divisor(heads), total, 1]
        n_kv, d = self.k.shape[1], self.q.shape[-1]
        size = n_kv * 2 * d * self.q.element_size()
        near = 1 if size > CACHE_BYTES else 1 << int(math.log2(CACHE_BYTES // size))
        quotient, rest = divmod(heads * batch, near)
        splits = [1] if self.gpu.capability == 100 else []
        divisors = [*_divisor(heads), *_divisor(near), *_divisor(near * blocks), *_divisor(max(rest, 1))]
        return [total, *splits, blocks, heads, batch, near, *divisors, quotient, *_divisor(1)]


def _divisor(number: int) -> list:
    """A number to divide by: with the factor and the shifts by which CUTLASS divides (fast_math.h), and alone."""
    bits = (number - 1).bit_length()
    factor = (1 << 32) * ((1 << bits) - number) // number + 1
    values = dict(divisor=number, factor=factor, a=min(bits, 1), b=max(bits - 1, 0))
    return [Structure(DIVISOR, 12, values), number]
