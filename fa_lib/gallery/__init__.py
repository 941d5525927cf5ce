"""Attention kernels that other projects ship, each behind f(q, k, v, causal=False, scale=None) on torch CPU tensors.

`fa_lib.gallery.catalogue.ENTRIES` names them; `kernels.get("fa_lib.gallery:ggml_decode")` is one of them. Tensors are
(batch, heads, n, head_dim), causal is aligned bottom-right, and what a kernel lacks raises NotImplementedError. Their
libraries are no requirement of fa_lib: requirements.txt pins them, and each is imported when its kernel is called.
"""

from fa_lib.gallery.catalogue import ENTRIES


def __getattr__(name):
    """The kernel of a key of ENTRIES.

    Raises:
        ImportError: it cannot run here, and why.
    """
    if name not in ENTRIES:
        raise AttributeError(f"fa_lib.gallery has no kernel {name!r}; accepted are {', '.join(ENTRIES)}")
    return ENTRIES[name].kernel()
