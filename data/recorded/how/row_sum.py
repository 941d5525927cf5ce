"""In which order a kernel adds up the row sum l, read from its log-sum-exp or its output for crafted scores.

A row of scores has 0 at key i, about log(0.9 * 2^-24) at keys j and k, and far less elsewhere. In FP32 each of the two
small terms is lost when it is added to 1, but both together make 1 + 2^-23: so l says whether j and k were added to
one another before either met i. K is one-hot, so a row of Q is a row of scores.
"""

import math

import numpy as np
import torch

SMALL = math.log(0.9) - 24 * math.log(2)
BOTH = math.log(1.8) - 24 * math.log(2)  # one term in place of the two: 1 + 2^-23 in any order
HELPER = -30.5  # exp is 0.9985 * 2^-44, in BF16 2^-44, and nothing beside 1 in FP32
FAR = -1000.0  # exp is 0 in FP32, and any 16-bit format has it


def flash_cpu(q, k, v):
    """Compute the log-sum-exp (1, 1, n) of torch's flash kernel on CPU with scale 1; q, k, v: (1, 1, n, d)."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, scale=1.0)[1]


def flash_cuda(q, k, v):
    """Compute the log-sum-exp (1, 1, n) of torch's FlashAttention-2 on CUDA with scale 1; q, k, v: (1, 1, n, d) in FP16
    or BF16, d at most 256."""
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, scale=1.0)[1]


def output_cuda(q, k, v):
    """Compute the output (1, 1, n, d) of torch's FlashAttention-2 on CUDA with scale 1; q, k, v: (1, 1, n, d)."""
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, scale=1.0)[0]


def row_sum_pairs(logsumexp, n_kv, dtype, device, first=0):
    """Find out from the log-sum-exp which two keys' terms are added to one another before either meets key `first`.

    Args:
        logsumexp: function (q, k, v) -> log-sum-exp of q k^T per row; q (1, 1, rows, n_kv), k, v (1, 1, n_kv, n_kv).
        n_kv: keys, and head_dim, so that K can be one-hot.
        dtype, device: of q, k, v.
        first: the key i with score 0.

    Returns:
        bool (n_kv, n_kv), symmetric: True on the diagonal, False in row and column `first`.

    Raises:
        RuntimeError: the probe shows nothing: the kernel returns the same for l = 1 as for l = 1 + 2^-23, or something
            else for l = 1 than with one small term beside it.
    """
    eye = torch.eye(n_kv, dtype=dtype, device=device)[None, None]
    others = [key for key in range(n_kv) if key != first]
    scores = torch.full((n_kv,), FAR)
    scores[first] = 0.0
    return _pairs(lambda q: logsumexp(q.to(eye), eye, eye), scores, others)


def row_sum_pairs_of_output(attention, n_kv, device, first=0):
    """Find out the same as `row_sum_pairs` from a BF16 output, where the kernel's logarithm is too coarse near 1.

    V makes P V a tie of BF16 that is rounded up, so that the output drops if l exceeds 1. P is 1 at key `first`, where
    V has 1 + 2^-7, and a power of two so small that l does not feel it at the key next to it, where V makes half a
    unit in the last place of it. That key is left out: its row and column are False.

    Args:
        attention: function (q, k, v) -> output (1, 1, rows, n_kv) with scale 1; q (1, 1, rows, n_kv), k, v (1, 1, n_kv,
            n_kv), in BF16.
        n_kv, device, first: as of `row_sum_pairs`.

    Returns:
        bool (n_kv, n_kv), as of `row_sum_pairs`.

    Raises:
        RuntimeError: the probe shows nothing, as of `row_sum_pairs`.
    """
    helper = first ^ 1  # in the same tile
    scores = torch.full((n_kv,), FAR)
    scores[first], scores[helper] = 0.0, HELPER
    k = torch.eye(n_kv, dtype=torch.bfloat16, device=device)[None, None]
    v = torch.zeros_like(k)
    v[..., first, :], v[..., helper, :] = 1 + 2.0**-7, 2.0 ** (44 - 8)
    others = [key for key in range(n_kv) if key not in (first, helper)]
    return _pairs(lambda q: attention(q.to(k), k, v)[..., 0], scores, others)


def _pairs(read, scores, others):
    """Make the matrix of pairs among `others`. `read` gives one number per row of q (1, 1, rows, n_kv), larger or
    smaller where l is larger; `scores` (n_kv,) are those of a row without small terms."""
    n_kv = len(scores)
    j, k = np.array([(j, k) for j in others for k in others if j < k]).T
    rows = len(j)
    q = scores.repeat(rows + 3, 1)
    q[np.arange(rows), j] = q[np.arange(rows), k] = SMALL
    q[rows + 1, others[0]], q[rows + 2, others[0]] = SMALL, BOTH  # after a row without small terms
    seen = read(q[None, None]).double().cpu().numpy().ravel()[: rows + 3]
    none, one, both = seen[rows:]
    if one != none or both == none:
        raise RuntimeError(f"the kernel returned {none}, {one}, {both} for l = 1, 1 + 0.9 * 2^-24, 1 + 2^-23")
    together = np.zeros((n_kv, n_kv), bool)
    together[others, others] = True
    together[j, k] = together[k, j] = abs(seen[:rows] - none) > abs(both - none) / 2
    return together


def row_sum_groups(pairs):
    """Find the groups of keys that are added up among themselves before they meet key `first` of `row_sum_pairs`.

    Args:
        pairs: bool (n_kv, n_kv), of `row_sum_pairs`.

    Returns:
        lists of keys, ordered by their first key; a list of one for a key that meets key `first` by itself. None where
        the groups overlap, which no tree of additions can give.
    """
    groups = sorted({tuple(np.flatnonzero(row).tolist()) for row in pairs if row.any()})
    if sum(map(len, groups)) != pairs.any(axis=1).sum():
        return None
    return [list(group) for group in groups]
