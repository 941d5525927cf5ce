"""Softmax attention of flash-linear-attention in Triton: `parallel_attn`, with gradients."""

from functools import cache
from importlib.util import find_spec
from types import ModuleType

from torch import Tensor

from attention_gallery.adapters import HALF, accepts, swapped
from attention_gallery.catalogue import pinned
from attention_gallery.source_modules import module
from ptx_machine.sources import unpacked

FLA = pinned("fla-core", "0.6.0")


@accepts(HALF, "flash-linear-attention's parallel_attn here")
def fla_parallel(q, k, v, causal=False, scale=None):
    """Call fla.ops.attn.parallel_attn, which is causal. It has gradients.

    Raises:
        NotImplementedError: no causal mask with more than one query, n_q unlike n_kv, or head_dim over 256.
    """
    n_q, n_kv = q.shape[2], k.shape[2]
    if n_q != n_kv:
        raise NotImplementedError(f"parallel_attn takes one length for queries and keys; got {n_q} and {n_kv}")
    if not causal and n_q > 1:
        raise NotImplementedError("parallel_attn is causal")
    if q.shape[3] > 256:
        raise NotImplementedError(f"parallel_attn has head_dim up to 256; got {q.shape[3]}")
    parallel = _parallel()
    parallel.check_shared_mem.cache_clear()  # its answer is that of the GPU of the call before
    return swapped(parallel.parallel_attn(swapped(q), swapped(k), swapped(v), scale=scale))  # (batch, n, heads, d)


@cache
def _parallel() -> ModuleType:
    """Import parallel.py, once. It takes one function of einops, which need not be installed."""
    project = {"__version__": FLA.version, "__path__": [str(unpacked(FLA) / "fla")]}
    stubs = {"fla": project} if find_spec("einops") else {"fla": project, "einops": {"reduce": _sums_of_groups}}
    return module(FLA, "fla.ops.attn.parallel", stubs)


def _sums_of_groups(x: Tensor, pattern: str, *, g: int, reduction: str) -> Tensor:
    """Stand in for einops.reduce, which parallel.py calls to add up the gradients of the `g` heads of Q that share one
    of K; x: (batch, n, heads, head_dim)."""
    return x.unflatten(2, (-1, g)).sum(3)  # (batch, n, kv_heads, head_dim)
