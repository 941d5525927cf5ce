"""Attention kernels that other projects ship, each behind f(q, k, v, causal=False, scale=None) on torch tensors.

`attention_gallery.catalogue` names them, ENTRIES on a CPU, ON_CUDA on a GPU, MODELLED on a CPU in a GPU's arithmetic:
`kernels.get("attention_gallery:mlx_sdpa")`. q (batch, heads, n_q, head_dim), k and v (batch, kv_heads, n_kv, head_dim)
and o (batch, heads, n_q, head_dim) are in one dtype, causal is aligned bottom-right, scale None is 1 / sqrt(head_dim);
what a kernel lacks, a dtype, a head_dim, gradients, is refused: it raises NotImplementedError. Their libraries are no
requirement of fa_lib: requirements.txt pins those of CPU kernels, and each is imported when its kernel is called.
"""


def __getattr__(name):
    """Find the kernel of a key of ENTRIES or ON_CUDA.

    Raises:
        AttributeError: there is no such key.
        ImportError: the kernel cannot run here; it says why.
    """
    from attention_gallery.catalogue import CATALOGUES  # with torch, which `fa-lib --help` does not need

    matches = [entries[name] for entries in CATALOGUES.values() if name in entries]
    if not matches:
        accepted = ", ".join(dict.fromkeys(key for entries in CATALOGUES.values() for key in entries))
        raise AttributeError(f"attention_gallery has no kernel {name!r}; accepted are {accepted}")
    return next((entry for entry in matches if not entry.problem), matches[0]).kernel()
