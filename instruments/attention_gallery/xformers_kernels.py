"""xformers' split-K kernels in Triton, from its wheel without its compiled library: `xformers_split_k_a100`."""

from functools import cache
from types import ModuleType

import torch

from attention_gallery.adapters import HALF, accepts, swapped
from attention_gallery.catalogue import pinned
from attention_gallery.source_modules import module
from ptx_machine.sources import unpacked

XFORMERS = pinned("xformers", "0.0.35")
WIDTHS = (16, 32, 64, 128, 256, 512)  # head_dim: FwOp.shape_not_supported_reasons
CPU = torch.device("cpu")  # where the mask's index tensors are: xformers would pin their memory for a GPU
MOST_CAUSAL_QUERIES = 16  # of a sequence: FwOp.not_supported_reasons


@accepts(HALF, "xformers' split-K kernel", no_gradients="xformers' split-K kernel has no gradients")
def xformers_split_k_a100(q, k, v, causal=False, scale=None):
    """Call xformers' triton_splitk.FwOp, which chooses the number of parts of the keys, and what adds them up.

    Heads that share K and V are expanded views, as xformers asks for; heads of several groups have 5 dimensions. With a
    causal mask the sequences are packed one behind another in one cache, as in decoding.

    Raises:
        NotImplementedError: head_dim is none of WIDTHS, or causal with more than 16 queries or with more queries than
            keys.
    """
    batch, heads, n_q, width = q.shape
    groups, n_kv = k.shape[1], k.shape[2]
    if width not in WIDTHS:
        raise NotImplementedError(f"xformers' split-K kernel has head_dim {WIDTHS}; got {width}")
    if causal and n_q > min(MOST_CAUSAL_QUERIES, n_kv):
        raise NotImplementedError(
            f"causal, xformers' split-K kernel has up to {MOST_CAUSAL_QUERIES} queries, and no more than keys; "
            f"got {n_q} queries and {n_kv} keys"
        )
    split, bias = _split_k(), None
    tensors = [swapped(x).contiguous() for x in (q, k, v)]  # (batch, n, heads, d)
    if groups < heads:  # (batch, n, groups, heads of a group, d)
        each = heads // groups
        own, *shared = tensors
        shared = [x.unsqueeze(3).expand(-1, -1, -1, each, -1) for x in shared]
        tensors = [own.unflatten(2, (groups, each)), *shared]
        if groups == 1:
            tensors = [x[:, :, 0] for x in tensors]
    if causal:
        masks = split.BlockDiagonalCausalWithOffsetPaddedKeysMask
        bias = masks.from_seqlens(q_seqlen=[n_q] * batch, kv_padding=n_kv, kv_seqlen=[n_kv] * batch, device=CPU)
        tensors = [x.flatten(0, 1)[None] for x in tensors]
    inputs = split.Inputs(*tensors, attn_bias=bias, scale=scale)
    inputs.validate_inputs()
    inputs.normalize_bmhk()
    o, _ = split.FwOp.apply(inputs, needs_gradient=False)
    return swapped(o.reshape(batch, n_q, heads, width))


@cache
def _split_k() -> ModuleType:
    """Import triton_splitk.py, once."""
    project = {"_is_triton_available": lambda: True, "__path__": [str(unpacked(XFORMERS) / "xformers")]}
    stubs = {"xformers": project, "xformers._cpp_lib": {"_built_with_cuda": True}}
    return module(XFORMERS, "xformers.ops.fmha.triton_splitk", stubs)
