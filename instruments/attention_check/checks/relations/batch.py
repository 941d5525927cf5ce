"""Relations between a call and the same work cut or ordered otherwise: batches, heads, rows, order of keys, strides."""

import torch

from attention_check.checks.relations.subject import Found, KernelUnderTest, cases, difference, not_asked


@cases("batch", "position in the batch", "heads", "chunks of queries", "one query")
def batch_invariance(subject: KernelUnderTest, case: str) -> Found:
    """A row of Q meets no other row, batch or head, so that a kernel which adds in one order whatever the shapes gives
    it the same bits alone and among others. One that chooses its splits or tiles by the shape of the call differs, by
    rounding: both answers are within the rule, so at most 2 `allowed` apart."""
    q, k, v = subject.draw()
    together, limit = subject(q, k, v), subject.apart(q, k, v)
    if case == "batch":
        return difference(subject(q[1:2], k[1:2], v[1:2]), together[1:2], limit)
    if case == "position in the batch":
        turned = subject(*(x.roll(1, 0) for x in (q, k, v)))
        return difference(turned.roll(-1, 0), together, limit)
    if case == "heads":
        singly = [subject(*(x[:, h : h + 1].contiguous() for x in (q, k, v))) for h in range(q.shape[1])]
        return difference(torch.cat(singly, 1), together, limit)
    if subject.able.causal and subject.able.top_left:
        raise not_asked("masks causally, aligned top-left: fewer queries are other queries")
    step = 1 if case == "one query" else 64
    starts = [subject.n - step] if subject.able.causal else range(0, subject.n, 64)  # bottom-right: the last see all
    chunks = [subject(q[:, :, i : i + step].contiguous(), k, v) for i in starts]
    theirs = [together[:, :, i : i + step] for i in starts]
    return difference(torch.cat(chunks, 2), torch.cat(theirs, 2), limit)


@cases(
    "heads and rows swapped", "only K swapped", "only V swapped", "cut from one tensor", "every second row",
    "expanded heads", "features far apart",
)  # fmt: skip
def strides(subject: KernelUnderTest, case: str) -> Found:
    """The same numbers, however they lie in memory, give the same bits. Limit: 2 `allowed`."""
    q, k, v = subject.draw()
    if case == "expanded heads":
        k, v = (x[:, :1].expand_as(x) for x in (k, v))
    laid = dict(zip("qkv", (q, k, v)))
    for name, x in laid.items():
        if case in ("heads and rows swapped", f"only {name.upper()} swapped"):
            laid[name] = x.transpose(1, 2).contiguous().transpose(1, 2)
        elif case == "every second row":
            laid[name] = x.repeat_interleave(2, -2)[..., ::2, :]
        elif case == "features far apart":
            laid[name] = x.mT.contiguous().mT
    if case == "cut from one tensor":
        laid = dict(zip("qkv", torch.cat((q, k, v), -1).chunk(3, -1)))
    plain = subject(*(x.contiguous() for x in (q, k, v)))
    return difference(subject(*laid.values()), plain, subject.apart(q, k, v))
