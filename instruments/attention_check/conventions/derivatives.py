"""The gradients of attention in a dialect, and the log-sum-exp, of the query heads that share a head of k and v."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attention_check.conventions.attention import Dialect, Rows, attend, weights
from attention_check.conventions.reading import FLAT, LAYOUTS, CapturedCall, Unfit, as_read
from fa_lib.numerics.formats import FP32

GRADIENTS = {"dq": "q", "dk": "k", "dv": "v"}  # -> what each one is of
SCORES = 2**22  # that are held at a time


@dataclass(frozen=True)
class Group:
    """All rows of the query heads that share a head of k and v, in a dialect.

    Attributes:
        rows: of one entry and the heads. kv_head: its index. dO: (1, heads, n_q, d_v), float64.
    """

    rows: Rows
    kv_head: int
    dO: Tensor

    @classmethod
    def of(cls, call: CapturedCall, dialect: Dialect, entry: int, kv_head: int) -> "Group":
        """
        Raises:
            Unfit: the shapes make no call, or the dialect has no gradients of one group of heads.
        """
        _refuse_unlike(dialect)
        q, k = (as_read(getattr(call, name), name, dialect.layout) for name in "qk")
        group = q.shape[1] // k.shape[1]
        interleaved = dialect.heads == "interleaved"
        heads = torch.arange(group) * k.shape[1] + kv_head if interleaved else torch.arange(group) + kv_head * group
        rows = call.rows(dialect, places=(torch.tensor([entry]), heads, torch.arange(q.shape[2])))
        dO = turned(call, dialect, "dO", "o")
        if dO.shape != (*q.shape[:3], rows.v.shape[-1]):
            raise Unfit(f"dO has the shape {tuple(dO.shape)}, where that of o is due")
        return cls(rows, kv_head, dO[entry][heads][None].double().cpu())


def _refuse_unlike(dialect: Dialect) -> None:
    """Raise Unfit where gradients are not of one group of heads, or not of the tensors as they are named."""
    if dialect.roles or dialect.softmax.startswith("over_") or dialect.heads not in ("", "interleaved"):
        raise Unfit("not computed where tensors are exchanged, heads reversed, or the softmax is not over keys")
    if dialect.layout not in ("", *LAYOUTS) and not dialect.layout.startswith(FLAT):
        raise Unfit("not computed where a tensor was read with wrong strides")


def turned(call: CapturedCall, dialect: Dialect, name: str, like: str) -> Tensor:
    """One of the other tensors as (batch, heads, sequence, ...), read as the tensor that it is `like`: "q", "k", "v" or
    "o"."""
    return as_read(call.others[name], like, dialect.layout)


def gradients(rows: Rows, dO: Tensor, fn: Callable[[Rows], Tensor] = attend) -> dict[str, Tensor]:
    """The gradients of query heads that share a head of k and v. dk and dv are summed over these heads.

    Args:
        dO: (1, heads, n_q, d_v), float64. fn: Rows -> their output, that is differentiated.

    Returns:
        dq (heads, n_q, head_dim), dk (n_kv, head_dim), dv (n_kv, d_v), float64.
    """
    k, v = (x[:, :1].detach().requires_grad_() for x in (rows.k, rows.v))  # (1, 1, n_kv, d)
    dk, dv, parts = torch.zeros_like(k), torch.zeros_like(v), []
    heads, n_kv = rows.q.shape[1], k.shape[2]
    for at in torch.arange(rows.q.shape[2]).split(max(SCORES // (heads * n_kv), 1)):
        q = rows.q[:, :, at].detach().requires_grad_()
        own = replace(
            rows, q=q, k=k.expand(-1, heads, -1, -1), v=v.expand(-1, heads, -1, -1), products=q @ k.mT,
            bias=rows.bias[:, :, at], o=rows.o[:, :, at],
        )  # fmt: skip
        of_q, of_k, of_v = torch.autograd.grad(fn(own), (q, k, v), dO[:, :, at], allow_unused=True)
        parts.append(torch.zeros_like(q) if of_q is None else of_q)
        dk += 0 if of_k is None else of_k
        dv += 0 if of_v is None else of_v
    return dict(dq=torch.cat(parts, 2)[0], dk=dk[0, 0], dv=dv[0, 0])


def fp32_errors(rows: Rows, dO: Tensor) -> dict[str, Tensor]:
    """The error to expect of each gradient, in its shape, where P and dP are computed in FP32: scores are sums of
    rounded products, the exponential may be a fast one, and dP - delta may cancel. Errors of terms are independent.

    Args:
        dO: (1, heads, n_q, d_v), float64.
    """
    u, P, scale = FP32.unit_roundoff, weights(rows)[0], abs(rows.scale)  # P: (heads, n_q, n_kv)
    q, k, v, grad = rows.q[0], rows.k[0], rows.v[0], dO[0]
    off = P * u * (16 + 4 * scale * (q.abs() @ k.abs().mT))
    deltas = (grad * (P @ v)).abs().sum(-1, keepdim=True)  # (heads, n_q, 1)
    of_scores = (off * (grad.abs() @ v.abs().mT + deltas)).square()
    errors = dict(
        dq=scale * (of_scores @ k.square()).sqrt(),
        dk=scale * (of_scores.mT @ q.square()).sum(0).sqrt(),
        dv=(off.square().mT @ grad.square()).sum(0).sqrt(),
    )
    return {name: x.nan_to_num(0.0) for name, x in errors.items()}
