"""Packed sequences: the rows of all of them in one tensor, and where each begins."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from attention_check.probe.named_tensors import STARTS
from fa_lib.kernels.options import within

LARGEST = 2**30  # scores of a head


def kept_apart(
    q: Tensor, k: Tensor, starts: Mapping[str, Tensor], options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The options of a call of all sequences at once, in which none sees another; and masks, by choices of
    `Dialect.mask`, of calls that take each sequence's keys where its queries are, or as many as queries: none where
    queries and keys have the same places.

    Args:
        q, k: (rows of all sequences, heads, head_dim). starts: of `named_tensors.STARTS`: (sequences + 1,), whole
            numbers from 0 to the rows of q, and of k; those of keys may be missing where they are q's.
        options: of each sequence. A causal mask and a window stay options where every sequence has as many queries as
            keys; else they are in the mask, each sequence aligned bottom-right.

    Raises:
        ValueError: the starts are not accepted, or there is a mask already.
    """
    if q.ndim != 3 or k.ndim != 3:
        raise ValueError(f"q: got shape {tuple(q.shape)}; accepted with cu_seqlens is (rows, heads, head_dim)")
    if "cu_seqlens" not in starts:
        raise ValueError("cu_seqlens: it is missing beside cu_seqlens_k; accepted are both, or cu_seqlens alone")
    n_q, n_kv = len(q), len(k)
    if options.get("mask") is not None:
        raise ValueError("mask: got it with packed sequences; accepted is one of mask and cu_seqlens")
    if n_q * n_kv > LARGEST:
        raise ValueError(f"cu_seqlens: got {n_q:,} queries and {n_kv:,} keys; accepted are {LARGEST:,} scores a head")
    of_q, of_k = STARTS
    ends = {"q": _whole(of_q, starts[of_q], n_q), "k": _whole(of_k, starts.get(of_k, starts[of_q]), n_kv)}
    if len(ends["q"]) != len(ends["k"]):
        raise ValueError(f"cu_seqlens_k: got {len(ends['k']) - 1} sequences; accepted are q's {len(ends['q']) - 1}")
    options, same = dict(options), ends["q"] == ends["k"]
    left, right = (None, None) if same else options.pop("window", None) or (None, None)
    if not same and options.pop("causal", False):
        right = 0 if right is None else min(right, 0)

    def visible(firsts, counts=()):
        """bool (n_q, n_kv), of sequences whose keys begin at `firsts`; as many as queries, where no `counts` are."""
        found = torch.zeros(n_q, n_kv, dtype=torch.bool)
        for i, (first, end) in enumerate(pairwise(ends["q"])):
            part = found[first:end, firsts[i] :]
            seen = within(end - first, counts[i] if counts else end - first, left, right, found.device)
            seen = seen[:, : part.shape[1]]
            part[:, : seen.shape[1]] |= seen
        return found

    mask = visible(ends["k"], [end - first for first, end in pairwise(ends["k"])])
    masks = {} if same else {"starts_of_q": visible(ends["q"]), "lengths_of_q": visible(ends["k"])}
    return options | dict(mask=mask), masks


def _whole(name, starts, rows):
    ends = [int(x) for x in starts.reshape(-1).tolist()]
    if ends[:1] != [0] or ends[-1] != rows or sorted(ends) != ends:
        accepted = f"rising numbers from 0 to {rows}, the rows of all sequences"
        raise ValueError(f"{name}: got {ends[:6]}{' ...' if len(ends) > 6 else ''}; accepted are {accepted}")
    return ends
