"""A query that matches one key gets the value of that key: no key is lost, wherever it lies in a tile."""

from dataclasses import dataclass

import torch

from attention_check.measure.relations.subject import Found, KernelUnderTest, cases, difference, not_asked
from attention_check.measure.relations.values import weights

LOUD = 32.0  # times the key: a score of that many times sqrt(head_dim)


@dataclass(frozen=True)
class Recall:
    """Numbers of queries and keys; whether the mask is causal, so that a query matches its own key, the last it sees.
    257 keys are one more than a multiple of any tile, 255 one fewer."""

    n_q: int
    n_kv: int
    causal: bool = False


RECALLS = {
    "257 keys": Recall(257, 257), "255 keys": Recall(255, 255), "one query of 257 keys": Recall(1, 257),
    "causal, 257 keys": Recall(257, 257, True), "causal, 300 queries of 301 keys": Recall(300, 301, True),
}  # fmt: skip


@cases(*RECALLS)
def every_key(subject: KernelUnderTest, case: str) -> Found:
    """Keys are signs, +1 and -1 by chance, and a query is LOUD times one of them: its score is LOUD sqrt(head_dim), and
    that of any other key much less. With d = 64, no two of 301 keys agree in more than some 52 signs, so that the next
    score is 96 less, and its weight is 0 in every format. The output is the matching key's V, to `weights` of one key,
    and what weight the others have by these scores. Without a mask every key has a query."""
    recall = RECALLS[case]
    if recall.n_q != recall.n_kv and (subject.able.top_left or (subject.able.causal and not recall.causal)):
        raise not_asked("masks causally: a query sees other keys")
    q, k, v = subject.draw(recall.n_q, recall.n_kv)
    v, k = subject.rounded(1 + v.double().abs()), torch.where(k > 0, 1, -1).to(k.dtype)
    own = torch.arange(recall.n_q, device=q.device) + recall.n_kv - recall.n_q
    causal = recall.causal or subject.able.causal
    match = own if causal or recall.n_q == 1 else own.flip(0)
    q = k[:, :, match] * LOUD
    S = q.double() @ k.double().mT * subject.head_dim**-0.5  # (batch, heads, n_q, n_kv)
    S = S.masked_fill(torch.arange(recall.n_kv, device=q.device) > own[:, None], -torch.inf) if causal else S
    others = 1 - torch.softmax(S, -1).gather(-1, match.expand(*S.shape[:2], -1)[..., None]).min().item()
    o = subject(q, k, v, **(dict(causal=True) if recall.causal else {}))
    limit = weights(subject, 1) + others * v.double().abs().max().item()
    return difference(o.double() / v[:, :, match].double(), 1.0, limit)
