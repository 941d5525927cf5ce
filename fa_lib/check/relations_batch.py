"""Relations between a call and the same work cut or ordered otherwise: batches, heads, rows, order of keys, strides."""

import torch

from fa_lib.check.subject import Found, Subject, apart, cases, unasked


@cases("batch", "position in the batch", "heads", "chunks of queries", "one query")
def batch_invariance(subject: Subject, case: str) -> Found:
    """A row of Q meets no other row, batch or head, so that a kernel which adds in one order whatever the shapes gives
    it the same bits alone and among others. One that chooses its splits or tiles by the shape of the call differs, by
    rounding: both answers are within the rule, so at most 2 `allowed` apart."""
    q, k, v = subject.draw()
    whole, limit = subject(q, k, v), 2 * subject.allowed(q, k, v)
    if case == "batch":
        return apart(subject(q[1:2], k[1:2], v[1:2]), whole[1:2], limit)
    if case == "position in the batch":
        turned = subject(*(x.roll(1, 0) for x in (q, k, v)))
        return apart(turned.roll(-1, 0), whole, limit)
    if case == "heads":
        alone = [subject(*(x[:, h : h + 1].contiguous() for x in (q, k, v))) for h in range(q.shape[1])]
        return apart(torch.cat(alone, 1), whole, limit)
    if subject.able.causal and subject.able.top_left:
        raise unasked("masks causally, aligned top-left: fewer queries are other queries")
    step = 1 if case == "one query" else 64
    starts = [subject.n - step] if subject.able.causal else range(0, subject.n, 64)  # bottom-right: the last see all
    chunks = [subject(q[:, :, i : i + step].contiguous(), k, v) for i in starts]
    theirs = [whole[:, :, i : i + step] for i in starts]
    return apart(torch.cat(chunks, 2), torch.cat(theirs, 2), limit)
