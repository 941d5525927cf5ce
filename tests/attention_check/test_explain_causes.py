"""`explain` names causes that were taken from public reports: each a right kernel with one fault, and the sentence."""

import math

import pytest
import torch

import fa_lib
from attention_check.explain.verdict import Verdict

B, H, N, D = 4, 4, 96, 64


def drawn(*shape, seed=0, dtype=torch.bfloat16):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def attend(q, k, v, mask=None):
    """Attention in float64, rounded once, of (batch, heads, n, d); heads may share those of k and v."""
    k, v = (x.double().repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    S = q.double() @ k.mT * q.shape[-1] ** -0.5
    S = S if mask is None else S.masked_fill(~mask, -math.inf)
    return (S.softmax(-1).nan_to_num(0.0) @ v).to(q.dtype)


Q, K, V = (drawn(B, H, N, D, seed=seed) for seed in range(3))
CAUSAL = torch.ones(N, N, dtype=torch.bool).tril()
RIGHT = attend(Q, K, V, CAUSAL)
AT_ONE_ENTRY = torch.cat([RIGHT[3:], torch.zeros_like(RIGHT[1:])])
PADDING = (torch.rand(B, 1, 1, N, generator=torch.Generator().manual_seed(3)) < 0.7).contiguous()
INTERLEAVED = torch.stack([Q, K, V], 2).flatten(1, 2).chunk(3, 1)
SCALED, EMPTY = (torch.ones(N, 1).bfloat16() for _ in range(2))
SCALED[:40], EMPTY[:90] = 4.0, 0.0
HALF = torch.tensor([0.0] * 32 + [1.0] * 32).bfloat16()


def moved(o):  # blocks of rows, viewed with heads and rows in each other's place
    return o.transpose(1, 2).reshape(B, 4, N // 4, H, D).transpose(2, 3).reshape(B, N, H, D).transpose(1, 2)


def in_bits_of_bf16():
    q, k, v = (x.half() for x in (Q, K, V))
    return dict(q=q, k=k, v=v, o=attend(*(x.view(torch.bfloat16) for x in (q, k, v))).view(torch.float16))


def capped_by_exponentials():
    q, k, v = 48 * Q, 4 * K, V
    x = (q.double() @ k.double().mT / 8 / 2).float()
    S = (2 * (torch.exp(x) - torch.exp(-x)) / (torch.exp(x) + torch.exp(-x))).masked_fill(~CAUSAL, -math.inf)
    return dict(q=q, k=k, v=v, o=(S.softmax(-1) @ v.float()).bfloat16(), causal=True, softcap=2.0)


def vanishing():  # scores about -125 in two heads, from which nothing is subtracted
    q, k = Q.clone(), K.clone()
    q[:, :2, :, 0], k[:, :2, :, 0] = 40.0, -25.0
    o = attend(q, k, V)
    o[:, :2] = 0
    return dict(q=q, k=k, v=V, o=o)


def in_steps(x, dim):
    low, high = x.float().amin(dim, keepdim=True), x.float().amax(dim, keepdim=True)
    return ((x.float() - low) / (high - low) * 15).round() / 15 * (high - low) + low


def packed():
    q, k, v, o = (x[0].transpose(0, 1) for x in (Q, K, V, RIGHT))
    return dict(q=q, k=k, v=v, o=o, cu_seqlens=torch.tensor([0, 40, N]).int(), causal=True)


def turned(x, positions):  # RoPE
    angles = positions[:, None] * 1e4 ** (-torch.arange(0, D, 2).double() / D)
    a, b = x.double().chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1).bfloat16()


def second_chunk_too_far():
    at = torch.arange(N)
    wrong = at + 48 * (at >= 48)
    o = attend(turned(Q, wrong), turned(K, wrong), V, CAUSAL)
    return dict(q=turned(Q, at), k=turned(K, at), v=V, o=o, causal=True)


def lost_strides():  # of k and v
    memory = torch.cat([Q, K, V], 1).transpose(1, 2).flatten()
    return (memory[at * D :][: Q.numel()].view(B, N, H, D).transpose(1, 2) for at in (H, 2 * H))


def capped_by_itself():
    S = (2 * Q).double() @ (2 * K).double().mT / 8
    return S * (S / 4).tanh()


def massive():  # one feature of k is 1,500, and some rows' scores are far below 0
    q, k, v = drawn(1, 7, N, 128), drawn(1, 1, N, 128, seed=1), drawn(1, 1, N, 128, seed=2)
    k[..., 17] += 1500
    q[:, 3, 20::2, 17] -= 60
    o = attend(q, k, v, CAUSAL)
    o[:, 3, 20::2] = 0
    return dict(q=q, k=k, v=v, o=o, causal=True)


def begun_late():
    sinks, seen = torch.arange(4.0), CAUSAL & (torch.arange(N) >= 40)
    o = fa_lib.kernels.golden(Q[:, :, 40:], K, V, mask=seen[40:], sinks=sinks, inputs="BF16").bfloat16()
    return dict(q=Q[:, :, 40:], k=K, v=V, o=o, causal=True, sinks=sinks)


def of_hidden_nan():  # 0 times NaN, where the mask hides keys of one entry
    v, mask = V.clone(), torch.ones(B, 1, 1, N, dtype=torch.bool)
    mask[1, ..., 80:] = False
    v[1, :, 80:] = math.nan
    return dict(q=Q, k=K, v=v, mask=mask, o=attend(Q, K, v))


of_all, of_q, of_kv = dict(q=Q, k=K, v=V), Q[:, :, -32:], dict(k=K[:, :2], v=V[:, :2])
shifted = (torch.arange(N)[None] <= torch.arange(32)[:, None] + 64) & (torch.arange(N)[None] > 16)
TRIANGLES = (torch.arange(N)[None] % 24) <= (torch.arange(N)[:, None] % 24)
AT_FOUR = (torch.arange(N)[:, None] // 4 + 1) * 4
LENGTHS = (torch.arange(N) < torch.tensor([60, 96, 77, 40])[:, None])[:, None, None].expand(-1, 1, N, -1)
BIAS, SINKS, WIDE = drawn(1, H, N, N, dtype=torch.float32), torch.arange(4.0), drawn(2, B, H, N, 192, seed=4)
WEIGHTS = (Q.double() @ K.double().mT / 8).masked_fill(~CAUSAL, -math.inf).softmax(-1)
LAST = LENGTHS & (LENGTHS.cumsum(-1) == LENGTHS.sum(-1, keepdim=True))
mask_of_heads = PADDING[:2].transpose(0, 1).repeat_interleave(2, 1)
CASES = {  # what is wrong -> the call, and what is said
    "v is no longer contiguous": (of_all | dict(o=attend(Q, K, V.transpose(1, 2).reshape(V.shape))),
        "attention of v read as if contiguous, where memory is (batch, sequence, heads, head_dim)."),
    "heads of q, k and v lie in turn": (of_all | dict(o=attend(*INTERLEAVED)), "one tensor, which is split in thirds."),
    "bits of FP16 are read as BF16": (in_bits_of_bf16(), "of q, k and v read as BF16, but its bits are those of BF16"),
    "rows are in other places": (of_all | dict(o=moved(RIGHT), causal=True), "At entry 0, head 0, row 1 it has what is "
        "due at entry 0, head 0, row 4."),
    "all entries are written to the first": (of_all | dict(o=AT_ONE_ENTRY, causal=True), "At entry 0, head 0, "
        "row 0 it has what is due at entry 3, head 0, row 0."),
    "half of the features are used": (of_all | dict(o=attend(Q * (1 - HALF), K, V) * (1 - HALF)), "scores of the first "
        "half of the features alone, but 0 in features 32 to 63"),
    "the mask is of heads of k": (dict(q=Q[:2], k=K[:2, :2], v=V[:2, :2], mask=PADDING[:2],
        o=attend(Q[:2], K[:2, :2], V[:2, :2], mask_of_heads)), "whose heads read the masks of entries 0, 0, 1, 1."),
    "packed sequences see each other": (packed(), "attention whose sequences see each other, as without cu_seqlens."),
    "k and v are twice as large": (of_all | dict(o=attend(Q, 2 * K, 2 * V)), "k and v that are 2 times as large: bytes "
        "of E4M3FNUZ that are read as E4M3 have 2."),
    "all rows see the first row's window": (dict(q=of_q, **of_kv, causal=True, window=(47, 0),
        o=attend(of_q, **of_kv, mask=shifted)), "attention without the window, of keys 17 to 95 alone."),
    "RoPE counts a chunk's start twice": (second_chunk_too_far(), "q turned by RoPE 48 positions too far (base 10,000, "
        "features i and i + d/2 together), for keys 0 to 47 alone."),
    "cached keys are without their scales": (of_all | dict(o=attend(Q, SCALED * K, SCALED * V, CAUSAL), causal=True),
        "attention with 4 times its scale, with 3.999 times its values, for keys 0 to 39 alone."),
    "the cache is empty": (dict(q=Q[:, :, 95:], k=K, v=V, o=attend(Q[:, :, 95:], EMPTY * K, EMPTY * V)),
        "attention with keys and values of 0, for keys 0 to 89 alone."),
    "tanh overflows": (capped_by_exponentials(), "the size of a score over the softcap is beyond 88.7"),
    "exponentials vanish": (vanishing(), "All their scores are below -103: exp(score) is 0 in FP32"),
    "the causal border is that of four rows": (of_all | dict(o=attend(Q, K, V, torch.arange(N)[None] < AT_FOUR),
        causal=True), "with a causal mask for whole tiles of 4 keys"),
    "the causal mask is inverted": (of_all | dict(o=attend(Q, K, V, ~CAUSAL), causal=True), "it shows the later keys "
        "alone."),
    "padding of queries and keys is seen": (of_all | dict(o=attend(Q, K, V), mask=LENGTHS), "without the mask."),
    "views of one tensor lost their strides": (of_all | dict(o=attend(Q, *lost_strides())),
        "attention of k and v, views of one packed tensor, read as if contiguous."),
    "the cap is the score": (dict(q=2 * Q, k=2 * K, v=V, softcap=4.0, o=(capped_by_itself().softmax(-1)
        @ V.double()).bfloat16()), "with scores times the tanh, where the softcap should be."),
    "past blocks of a ring are triangles": (of_all | dict(o=attend(Q, K, V, CAUSAL & TRIANGLES), causal=True),
        "with the causal mask inside each of 4 blocks of keys, past ones too"),
    "a mask is of -10": (dict(q=2 * Q, k=2 * K, v=V, causal=True, o=((Q.double() @ K.double().mT / 2 - 10 * ~CAUSAL)
        .softmax(-1) @ V.double()).bfloat16()), "with -10 added to the scores of keys that should be hidden."),
    "rows of large scores are 0": (massive(), "0 in head 3 (6% of the rows), which see keys"),
    "the loop begins at a later key": (begun_late(), "attention of keys 40 to 95 alone."),
    "scores are swallowed": (of_all | dict(o=attend(0 * Q, K, V, CAUSAL), causal=True), "equal weights for all keys"),
    "heads read each other's mask": (of_all | dict(o=(torch.softmax(Q.double() @ K.double().mT / 8 + BIAS.flip(1), -1)
        @ V.double()).bfloat16(), mask=BIAS), "whose heads read the masks of heads 3, 2, 1, 0."),
    "lengths are one too few": (of_all | dict(o=attend(Q, K, V, LENGTHS & ~LAST), mask=LENGTHS),
        "without the last key that the mask shows."),
    "a second softmax": (of_all | dict(o=(WEIGHTS.softmax(-1) @ V.double()).bfloat16(), causal=True),
        "with a second softmax, of the weights."),
    "powers of 2 of sinks": (of_all | dict(o=fa_lib.kernels.golden(Q, K, V, sinks=SINKS * math.log(2), inputs="BF16")
        .bfloat16(), sinks=SINKS), "with powers of 2 of the sinks in place of e."),
    "RoPE's features come first in k": (dict(q=WIDE[0], k=WIDE[1], v=V, o=attend(WIDE[0], WIDE[1].roll(64, -1), V)),
        "with the last 64 features of k before the others."),
    "hidden values are NaN": (of_hidden_nan(), "0 times NaN is NaN."),
    "the cache has 4 bits": (of_all | dict(o=attend(Q, in_steps(K, 2), in_steps(V, 3))), "k and v in INT4 from least "
        "to largest, k by feature and v by key"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_cause_is_named(name):
    call, said = CASES[name]
    found = fa_lib.explain(**call)
    assert found.verdict == (Verdict.PRECISION if "INT4" in said else Verdict.BUG) and said in f"{found}", f"{found}"


def test_a_log_sum_exp_of_rows_without_keys_and_in_two_bases():
    S = (Q.double() @ K.double().mT / 8).masked_fill(~CAUSAL, -math.inf)
    m, lse = S.amax(-1), S.logsumexp(-1)
    found = fa_lib.explain(Q, K, V, RIGHT, causal=True, lse=m + (lse - m) / math.log(2))
    assert "lse is right, had it the natural logarithm of the sum of exp(score - largest)" in f"{found}"
    smoothed = (S - (Q.double() @ K.double().mT / 8).mean(-1, keepdim=True)).logsumexp(-1)
    turned = lse.transpose(0, 1).reshape(lse.shape)
    for wrong, said in ((lse * math.log(2), "times ln 2"), (smoothed, "k less its mean over keys"),
                        (turned, "its axes have another order")):  # fmt: skip
        assert said in f"{fa_lib.explain(Q, K, V, RIGHT, causal=True, lse=wrong)}"
    seen = CAUSAL & (torch.arange(N) >= 8)
    lse = S.masked_fill(~seen, -math.inf).logsumexp(-1)
    for value, verdict in ((-math.inf, Verdict.ROUNDING), (0.0, Verdict.CONVENTION)):
        lse = lse.masked_fill(lse.abs() == math.inf, value)
        (found,) = fa_lib.explain(Q, K, V, attend(Q, K, V, seen), mask=seen, lse=lse).others
        assert found.verdict == verdict


def test_the_scale_of_a_padded_head_is_a_convention():
    q, k = (torch.cat([x, torch.zeros_like(x)], -1) for x in (Q, K))
    found = fa_lib.explain(q, k, V, attend(Q, K, V))
    assert found.verdict == Verdict.CONVENTION and found.dialect == dict(scale="unpadded")


def test_nan_of_hidden_keys_is_told_from_an_overflow():
    v = V.clone()
    v[:, :, -1] = math.nan
    o = torch.where(CAUSAL[:, -1:], math.nan, attend(Q, K, V, CAUSAL))
    o[:, :, 7] = math.nan
    assert "k or v is not finite at keys that these rows do not see" in f"{fa_lib.explain(Q, K, v, o, causal=True)}"


def test_gradients_of_ones_and_of_a_call_that_hides_nothing():
    q, k, v = (x[:1].double().requires_grad_() for x in (Q, K, V))
    for mask, dO, said in ((CAUSAL, torch.ones_like(Q[:1]), "for a dO of ones"), (None, 2 * Q[:1], "see later keys")):
        S = (q @ k.mT / 8).masked_fill(torch.zeros(N, N) > 0 if mask is None else ~mask, -math.inf)
        dq, dk, dv = (x.bfloat16() for x in torch.autograd.grad(S.softmax(-1) @ v, (q, k, v), dO.double()))
        found = fa_lib.explain(Q[:1], K[:1], V[:1], RIGHT[:1], causal=True, dO=2 * Q[:1], dq=dq, dk=dk, dv=dv)
        assert all(said in line for line in f"{found}".splitlines() if line.startswith("BUG: d")), f"{found}"
        assert f"{found}".count(said) == 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_plain_attention_on_large_scores_is_rounding(dtype):
    q, k, v = (5 * drawn(1, 4, 64, 128, seed=seed, dtype=dtype) for seed in range(3))
    found = fa_lib.explain(q, k, v, torch.softmax((q @ k.mT) * 128**-0.5, -1) @ v)
    assert found.verdict == Verdict.ROUNDING and found.times_bound > 30
    found = fa_lib.explain(q, k, v, torch.softmax((q @ k.mT) * 1.05 * 128**-0.5, -1) @ v)
    assert found.verdict != Verdict.ROUNDING
