"""Attention kernels that other projects ship, each behind f(q, k, v, causal=False, scale=None) on torch tensors.

`fa_lib.gallery.catalogue` names them, ENTRIES on a CPU and ON_CUDA on a GPU: `kernels.get("fa_lib.gallery:mlx_sdpa")`.
Tensors are (batch, heads, n, head_dim), causal is aligned bottom-right, and what a kernel lacks raises
NotImplementedError. Their libraries are no requirement of fa_lib: requirements.txt pins those of CPU kernels, and each
is imported when its kernel is called.
"""

from fa_lib.gallery.catalogue import CATALOGUES


def __getattr__(name):
    """The kernel of a key of ENTRIES or ON_CUDA.

    Raises:
        ImportError: it cannot run here, and why.
    """
    found = [entries[name] for entries in CATALOGUES.values() if name in entries]
    if not found:
        accepted = ", ".join(dict.fromkeys(key for entries in CATALOGUES.values() for key in entries))
        raise AttributeError(f"fa_lib.gallery has no kernel {name!r}; accepted are {accepted}")
    return next((entry for entry in found if not entry.problem), found[0]).kernel()
