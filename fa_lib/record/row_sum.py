"""In which order a kernel adds up the row sum l, read from the log-sum-exp it returns for crafted scores.

A row of scores has 0 at key i, about log(0.9 * 2^-24) at keys j and k, and far less elsewhere. In FP32 each of the two
small terms is lost when it is added to 1, but both together make 1 + 2^-23: so l says whether j and k were added to
one another before either met i. K is one-hot, so a row of Q is a row of scores.
"""

import math

import numpy as np
import torch

SMALL = math.log(0.9) - 24 * math.log(2)
BOTH = math.log(1.8) - 24 * math.log(2)  # one term in place of the two: 1 + 2^-23 in any order
FAR = -1000.0  # exp is 0 in FP32, and any 16-bit format has it


def flash_cpu(q, k, v):
    """Log-sum-exp of torch's flash kernel on CPU with scale 1; q, k, v (1, 1, n, d); returns (1, 1, n)."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, scale=1.0)[1]


def flash_cuda(q, k, v):
    """The same of torch's FlashAttention-2 on CUDA; FP16 or BF16, d at most 256."""
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, scale=1.0)[1]


def row_sum_pairs(logsumexp, n_kv, dtype, device, first=0):
    """Which two keys' terms are added to one another before either meets key `first`.

    Args:
        logsumexp: function (q, k, v) -> log-sum-exp of q k^T per row; q (1, 1, rows, n_kv), k, v (1, 1, n_kv, n_kv).
        n_kv: keys, and head_dim, so that K can be one-hot.
        dtype, device: of q, k, v.
        first: the key i with score 0.

    Returns:
        bool (n_kv, n_kv), symmetric: True on the diagonal, False in row and column `first`.

    Raises:
        RuntimeError: the log-sum-exp does not tell l = 1 from l = 1 + 2^-23, or the kernel's exponential of the two
            small scores is not such that one is lost and two are kept: then the probe shows nothing.
    """
    others = [key for key in range(n_kv) if key != first]
    j, k = np.array([(j, k) for j in others for k in others if j < k]).T
    at, rows = torch.arange(len(j)), len(j)
    q = torch.full((rows + 3, n_kv), FAR, dtype=torch.float64)
    q[:, first] = 0.0
    q[at, torch.from_numpy(j)] = q[at, torch.from_numpy(k)] = SMALL
    q[rows + 1, others[0]], q[rows + 2, others[0]] = SMALL, BOTH  # after a row of key `first` alone
    eye = torch.eye(n_kv, dtype=dtype, device=device)[None, None]
    lse = logsumexp(q.to(device, dtype)[None, None], eye, eye).double().cpu().numpy().ravel()[: rows + 3]
    alone, one, both = lse[rows:]
    if one != alone or both == alone:
        raise RuntimeError(f"log-sum-exp: got {alone}, {one}, {both} for l = 1, 1 + 0.9 * 2^-24, 1 + 2^-23")
    together = np.eye(n_kv, dtype=bool)
    together[first, first] = False
    together[j, k] = together[k, j] = lse[:rows] > (alone + both) / 2
    return together


def row_sum_groups(pairs):
    """Groups of keys that are added up among themselves before they meet the key that `pairs` was made for.

    Args:
        pairs: what `row_sum_pairs` returns.

    Returns:
        Lists of keys, by their first key; a key that meets it alone is a list of one. None where "before" is no
        equivalence, which no tree of additions can give.
    """
    groups = sorted({tuple(np.flatnonzero(row).tolist()) for row in pairs if row.any()})
    if sum(map(len, groups)) != pairs.any(axis=1).sum():
        return None
    return [list(group) for group in groups]
