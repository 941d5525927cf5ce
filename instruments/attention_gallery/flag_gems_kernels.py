"""FlagGems' scaled_dot_product_attention in Triton: `flag_gems_sdpa`."""

from collections.abc import Callable
from functools import cache
from itertools import product
from types import ModuleType
from typing import Any

import torch

from attention_gallery.adapters import HALF, accepts
from attention_gallery.catalogue import pinned
from attention_gallery.source_modules import module

FLAG_GEMS = pinned("flag-gems", "5.0.2")
WIDTHS = (32, 64, 128, 256)  # head_dim; 16, which it has too, is too narrow for the first configuration


@accepts(HALF, "FlagGems' attention here", top_left="FlagGems")
def flag_gems_sdpa(q, k, v, causal=False, scale=None):
    """Call flag_gems.ops.attention.scaled_dot_product_attention. Its gradients are those of a causal call whatever
    `causal` is: the kernel has no such argument (attention.py, line 959). It reads dO without a mask (line 428), which
    is a Fault where n_q is no multiple of the block.

    Of its configurations to tune the first runs, which has blocks of 128 queries and 32 keys.

    Raises:
        NotImplementedError: head_dim none of WIDTHS.
    """
    if q.shape[3] not in WIDTHS:
        raise NotImplementedError(f"FlagGems' attention has head_dim {WIDTHS} here; got {q.shape[3]}")
    fn, tensors = _attention().scaled_dot_product_attention, [x.contiguous() for x in (q, k, v)]
    return fn(*tensors, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1])


@cache
def _attention() -> ModuleType:
    """Import attention.py, once. FlagGems' runtime asks the machine for its vendor when it is imported; what stands
    in for it says what its files say for an A100: runtime/backend/_nvidia/tune_configs.yaml, lines 1 to 44."""
    from triton import autotune  # pyright: ignore[reportMissingImports]

    tuned = {"attention": _forward(), "attention_bwd": _backward()}
    runtime = {"get_tuned_config": tuned.__getitem__, "torch_device_fn": torch.cuda}
    utils = {"libentry": lambda: _as_it_is, "libtuner": autotune}
    flash = dict.fromkeys(("mha_fwd", "mha_varlan_fwd", "mha_varlan_fwd_opt"))
    stubs = {
        "flag_gems.runtime": runtime, "flag_gems.config": {"use_c_extension": False}, "flag_gems.utils": utils,
        "flag_gems.ops.flash_api": flash, "flag_gems.ops.flash_kernel": {"keep": _kept},
    }  # fmt: skip
    return module(FLAG_GEMS, "flag_gems.ops.attention", stubs)


def _forward() -> list[Any]:
    """Return the forward kernel's configurations."""
    from triton import Config  # pyright: ignore[reportMissingImports]

    every = product((32, 64, 128), (32, 64, 128), (True, False), (4, 8), (2, 3, 4))
    return [
        Config({"BLOCK_M": m, "BLOCK_N": n, "PRE_LOAD_V": early}, num_warps=warps, num_stages=stages)
        for m, n, early, warps, stages in every
    ]


def _backward() -> list[Any]:
    """Return the backward kernel's configurations."""
    from triton import Config  # pyright: ignore[reportMissingImports]

    names = ("BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2")
    every = product(((32, 128, 128, 32), (64, 128, 64, 64), (64, 128, 64, 32)), (4, 8), (2, 3, 4))
    return [Config(dict(zip(names, sizes)), num_warps=warps, num_stages=stages) for sizes, warps, stages in every]


def _kept(config: Any, must_keep: Any = None) -> bool:
    """Say whether a configuration is tried, as flash_kernel.py, line 257, does."""
    blocks = (config.kwargs["BLOCK_M"], config.kwargs["BLOCK_N"], config.num_warps)
    return blocks in ((128, 32, 4), (128, 128, 8)) or bool(must_keep and config in must_keep)


def _as_it_is(fn: Callable) -> Callable:
    """Stand in for libentry, which stores compiled kernels."""
    return fn
