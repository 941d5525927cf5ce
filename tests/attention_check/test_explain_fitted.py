"""`fa-lib explain` fits numbers: causes of public reports that are on no list, and none where there is none."""

import math
import random
import re
from dataclasses import replace

import pytest
import torch

import fa_lib
from attention_check.conventions.conventions import keys_of, what
from attention_check.conventions.low_bits import OF_P, in_blocks
from attention_check.explain.verdict import Verdict
from attention_check.measure.closeness import closeness
from attention_check.testing import assert_attention_close
from benchmarks.reports import drawn
from fa_lib import kernels
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import E4M3, Format
from tests.attention_check.test_explain_causes import turned

pytestmark = pytest.mark.slow  # half a minute

FP32 = drawn(1, 2, 64, 64, dtype=torch.float32, seed=11)
BF16 = drawn(1, 4, 256, 64, seed=12)
VIEWED = [x.reshape(1, 256, 4, 64).transpose(1, 2) for x in BF16]  # (batch, heads, ...) taken for (batch, rows, ...)
STEEP = [3 * BF16[0], 3 * BF16[1], BF16[2]]  # whose scores a softcap of 15 bends
DECODED = [x[:, :, :n] for x, n in zip(drawn(1, 8, 80, 128, seed=30), (1, 64, 64))]
BATCH = drawn(2, 2, 32, 64, dtype=torch.float32, seed=8)
BIAS = 2 * drawn(1, 4, 256, 256, seed=84)[0]
HOLE = torch.ones(256, dtype=torch.bool)
HOLE[20:64] = False
DISTANCE = torch.arange(256)[:, None] - torch.arange(256)


def attention(tensors, **options):
    q, k, v = tensors
    return kernels.golden(q, k, v, inputs=Format.of(q.dtype), **options).to(q.dtype)


def capped(bend, tensors):
    """Attention whose scores are bent in another way, causal."""
    q, k, v = (x.double() for x in tensors)
    S = bend(q @ k.mT / 8).masked_fill(DISTANCE < 0, -math.inf)
    return (torch.softmax(S, -1) @ v).to(tensors[0].dtype)


def with_keys_of_zeros(count, tensors):
    q, k, v = tensors
    more = torch.zeros_like(k[:, :, :count])
    return attention((q, torch.cat([k, more], 2), torch.cat([v, more], 2)))


def normed(x):
    return torch.nn.functional.normalize(x.double(), dim=-1).to(x.dtype)


def near(x):
    return pytest.approx(x, rel=5e-3)


CAPPED = dict(causal=True, softcap=15.0)
CAUSES = {  # a report or a kind of fault -> q, k, v; o; what is believed; the dialect
    **{f"scale {times}": (FP32, attention(FP32, scale=times / 8), {}, dict(scale=near(times)))
       for times in (1.05, 1.59, 4.0, 0.5)},
    "scale, BF16, causal": (
        BF16, attention(BF16, scale=1.59 / 8, causal=True), dict(causal=True), dict(scale=near(1.59))),
    "head_dim 96 with the scale of 128": (
        [x[..., :96] for x in drawn(1, 4, 64, 128)], attention([x[..., :96] for x in drawn(1, 4, 64, 128)],
                                                             scale=128**-0.5), {}, dict(scale=near((96 / 128) ** 0.5))),
    "flashinfer 4979: k_scale and v_scale": (
        FP32, 2 * attention(FP32, scale=4 / 8), {}, dict(scale=near(4), factor=near(2))),
    "tt-metal 55337: the mask scaled too": (
        BF16, attention(BF16, mask=BIAS / 8), dict(mask=BIAS), dict(mask=near(1 / 8))),
    "diffusers 14114: a mask's count taken as a length": (
        BF16, attention(BF16, mask=torch.arange(256)[None] < HOLE.sum()), dict(mask=HOLE[None]),
        dict(mask="ignored", keys=(0, int(HOLE.sum())))),
    "vllm-ascend 15503: keys to 100 of 200": (
        BF16, attention(BF16, mask=torch.arange(256)[None] < 100), dict(mask=torch.arange(256)[None] < 200),
        dict(keys=(0, 100))),
    "jax 39576: no limit to the right": (
        BF16, attention(BF16, mask=DISTANCE <= 64), dict(window=(64, 0)), dict(window=(64, None))),
    "pegainfer 291: a page of zeros too many": (
        DECODED, with_keys_of_zeros(16, DECODED), {}, dict(sink=near(math.log(16)))),
    "a boolean mask added": (
        BF16, attention(BF16, mask=HOLE[None].float()), dict(mask=HOLE[None]), dict(mask="added")),
    "powers of 2 and of e": (BF16, attention(BF16, scale=1 / 8 / math.log(2)), {}, dict(scale="log2_e")),
    "keys of the token before": (
        BF16, attention((BF16[0], BF16[1].roll(1, 2), BF16[2]), causal=True), dict(causal=True),
        dict(roles="k_one_later")),
    "q, k and v viewed, not transposed": (
        BF16, attention(VIEWED), {}, dict(layout="inputs_reshaped")),
    "o viewed as well": (
        BF16, attention(VIEWED).transpose(1, 2).reshape(1, 4, 256, 64), {}, dict(layout="all_reshaped")),
    "q and k normalised": (BF16, attention([*map(normed, BF16[:2]), BF16[2]]), {}, dict(roles="qk_l2")),
    "with another scale": (
        BF16, attention([*map(normed, BF16[:2]), BF16[2]], scale=10.0), {}, dict(roles="qk_rms", scale=near(1.25))),
    "k normalised to 1 a feature": (
        [3 * x for x in BF16], attention([3 * BF16[0], 8 * normed(BF16[1]), 3 * BF16[2]]), {}, dict(roles="k_rms")),
    "a softcap that nobody believes in": (STEEP, attention(STEEP, softcap=15.0), {}, dict(softcap=near(15))),
    "tanh(x / c), not times c": (
        STEEP, capped(lambda S: torch.tanh(S / 15), STEEP), CAPPED, dict(scale=near(1 / 15), softcap=near(1))),
    "c tanh(x)": (STEEP, capped(lambda S: 15 * torch.tanh(S), STEEP), CAPPED, dict(scale=near(15))),
    "scores clipped": (STEEP, capped(lambda S: S.clamp(-15, 15), STEEP), CAPPED, dict(softcap="clipped")),
    "another softcap": (STEEP, attention(STEEP, softcap=7.5, causal=True), CAPPED, dict(softcap=near(7.5))),
}  # fmt: skip


@pytest.mark.parametrize("name", CAUSES)
def test_a_number_that_is_on_no_list_is_found(name):
    (q, k, v), o, options, dialect = CAUSES[name]
    found = fa_lib.explain(q, k, v, o, **options)
    assert found.dialect == dialect and found.verdict == Verdict.BUG, f"{found}"
    (row,) = closeness(o, q, k, v, options)
    assert row["same"] and row["key"] == keys_of(found.dialect) and row["times"] > 1
    with pytest.raises(AssertionError, match=re.escape(what(found.dialect))):  # the same words
        assert_attention_close(o, q, k, v, precision=q.dtype, **options)


@pytest.mark.parametrize("wrong", [dict(scale=0.2), dict(window=(20, 20))])
def test_a_cause_in_some_heads_is_named_with_them_and_noise_is_not(wrong):
    q, k, v = drawn(1, 8, 128, 64)
    o, other = (kernels.as_shipped(q, k, v, **options) for options in ({}, wrong))
    found = fa_lib.explain(q, k, v, torch.cat([o[:, :2], other[:, 2:4], o[:, 4:]], 1))
    assert found.where.heads == ((2, 3),) and found.inside[-1].dialect.keys() == wrong.keys(), f"{found}"
    found = fa_lib.explain(q, k, v, torch.cat([o[:, :2], o[:, 2:4] + 0.1 * q[:, 2:4], o[:, 4:]], 1))
    assert found.where.heads == ((2, 3),) and found.inside is None, f"{found}"
    found = fa_lib.explain(*(x.transpose(0, 1) for x in (q, k, v, torch.cat([o[:, :7], other[:, 7:]], 1))))
    assert found.where.entries == ((7, 7),) and found.inside[-1].dialect.keys() == wrong.keys(), f"{found}"


def in_parts():
    """Name -> q, k, v, an output that is wrong in places or of other keys, options, and what has to be said of it."""
    q, k, v = drawn(3, 4, 256, 64, seed=21)
    lengths, keys = torch.tensor([256, 180, 97]), torch.arange(256)
    mask = (keys < lengths[:, None])[:, None, None]  # (3, 1, 1, 256)
    right, causal = attention((q, k, v)), attention((q, k, v), causal=True)
    of_mask = attention((q, k, v), mask=mask)
    yield "padding", of_mask * mask[:, :, 0, :, None], dict(mask=mask), "CONVENTION: o is attention, and 0 in rows of"
    yield "rows of 0", right * (keys < 200)[:, None], {}, "o is attention, but 0 in rows 200 to 255"
    block = causal.clone()
    seen = DISTANCE >= 0
    seen[60:200, 60:200] = True
    said = (
        "There (entry 0, heads 0 to 3) it is attention without the causal mask: rows see later keys, of keys 0 to 199"
    )
    yield "block", attention((q, k, v), mask=seen), dict(causal=True), said
    long = attention((q, k, v), mask=(keys < lengths[:, None] + torch.tensor([[0], [3], [2]]))[:, None, None])
    said = "There (entry 1, heads 0 to 3) it is attention without the mask, of keys 0 to 182 alone"
    for hidden in (mask, torch.zeros(mask.shape).masked_fill(~mask, -1e9)):
        yield "stale keys", long[:, :, -1:], dict(mask=hidden), said
    paged_k, paged_v = k.clone(), v.clone()
    paged_k[2, :, 64:128], paged_v[2, :, 64:128] = k[0, :, 128:192], v[0, :, 128:192]
    said = "in place of keys 64 to 127 of entry 2 it reads keys 128 to 191 of entry 0"
    yield "page", attention((q, paged_k, paged_v), causal=True), dict(causal=True), said
    block[1] = attention((q, k, v), causal=True, scale=0.2)[1]
    yield "an entry", block, dict(causal=True), "There (entry 1, heads 0 to 3) it is attention with 1.6 times its scale"
    sinks = torch.tensor([2.0, 3.5, 4.0, 5.0])
    yield "twice", attention((q, k, v), sinks=sinks + math.log(2)), dict(sinks=sinks), "sinks count 2 times"
    yield "others", attention((q, k, v), sinks=sinks.flip(0)), dict(sinks=sinks), "have the sinks of heads 3, 2, 1, 0"
    P = torch.softmax((q.double() @ k.double().mT / 8).masked_fill(DISTANCE < 0, -math.inf), -1)
    kept = torch.rand(P.shape, generator=torch.Generator().manual_seed(1)) > 0.1
    yield "dropout", (P * kept / 0.9 @ v.double()).to(q.dtype), dict(causal=True), "with dropout left on, of about 10%"
    roped = attention((q, turned(k, keys), v), causal=True)
    yield "RoPE", roped, dict(causal=True), "with RoPE on k once more (base 10,000"
    cached = torch.cat([turned(k, keys)[:, :, :192], k[:, :, 192:]], 2)
    said = "for keys 0 to 191 alone"
    yield "RoPE of a cache", attention((q, cached, v), causal=True), dict(causal=True), said
    yield "mask and causal", causal, dict(mask=seen), "BUG: o is attention with a causal mask."
    yield "denied", causal, dict(causal=False), "BUG: o is attention with a causal mask."
    yield "four times", attention((q, k, v), sinks=sinks + math.log(4)), dict(sinks=sinks), "sinks count 4 times"
    S = q.double() @ k.double().mT / 8
    L = torch.stack([part.logsumexp(-1) for part in S.split([192, 64], -1)], -1)  # of unequal parts
    shares = torch.softmax(L / math.log(2), -1).repeat_interleave(torch.tensor([192, 64]), -1)
    parts = torch.cat([part.softmax(-1) for part in S.split([192, 64], -1)], -1)
    said = "merged as if their log-sum-exp to base 2 were a natural one"
    yield "base e", (shares * parts @ v.double()).to(q.dtype), {}, said
    bias = torch.randn(4, 256, 256, generator=torch.Generator().manual_seed(3)).to(q.dtype)
    of_heads = attention((q, k, v), mask=torch.tensor([1.3, 0.8, 1.5, 0.7])[:, None, None] * bias)
    yield "each head", of_heads, dict(mask=bias), "There (entry 0, head 0) it is attention with 1.3 times its mask"
    both = torch.softmax(2 * torch.tanh((S + bias.double()) / 2), -1) @ v.double()
    yield "softcap", both.to(q.dtype), dict(mask=bias, softcap=2.0), "with the softcap of scores and the mask's numbers"
    further = turned(q, torch.full((256,), 37))
    said = "with q turned by RoPE 37 positions too far (base 10,000, features i and i + d/2 together)"
    yield "RoPE's positions", attention((further, k, v), causal=True), dict(causal=True), said
    rows = torch.arange(256)[:, None]
    image = (DISTANCE >= 0) | (rows >= 30) & (rows < 150) & (keys >= 30) & (keys < 150)  # which all sees itself
    said = "row 149 should see keys 86 to 149, and sees 30 to 149"
    window = attention((q, k, v), mask=image & ((DISTANCE <= 63) | (rows < 150) & (keys >= 30)))
    yield "a block that the window does not limit", window, dict(causal=True, window=(63, 0)), said
    lost = attention((q, k, v), mask=(DISTANCE >= 0) & ~((rows >= 100) & (keys >= 91) & (keys < 96)))
    yield "some keys", lost, dict(causal=True), "Entry 2, row 255 should see keys 0 to 255, and sees all but 91 to 95."


def test_keys_of_another_entry_or_head_are_named():
    found = fa_lib.explain(*BATCH, attention([BATCH[0], *(x.flip(0) for x in BATCH[1:])]))
    assert "in place of keys 0 to 31 of entry 0 it reads keys 0 to 31 of entry 1; in place" in f"{found}", f"{found}"
    found = fa_lib.explain(*BF16, attention([BF16[0], *(x[:, [0, 1, 0, 3]] for x in BF16[1:])]))
    said = "There (head 2) it is attention, but in place of keys 0 to 255 it reads keys 0 to 255 of head 0 of k"
    assert found.where.heads == ((2, 2),) and said in f"{found}", f"{found}"


def test_int8_in_blocks_is_precision():
    q, k, v = drawn(1, 4, 256, 64, dtype=torch.float16, seed=21)
    low = [torch.stack([in_blocks(head, 64) for head in x[0]])[None]
           for x in (q.double(), k.double() - k.double().mean(2, keepdim=True))]  # fmt: skip
    found = fa_lib.explain(q, k, v, (torch.softmax(low[0] @ low[1].mT / 8, -1) @ v.double()).to(q.dtype))
    said = "q and k in INT8, K less its mean over keys, in blocks of 64 queries and 64 keys"
    assert found.verdict == Verdict.PRECISION and said in f"{found}", f"{found}"


def test_what_is_wrong_in_places_or_of_other_keys_is_named():
    for name, o, options, said in in_parts():
        q, k, v = drawn(3, 4, 256, 64, seed=21)
        found = fa_lib.explain(q[:, :, -o.shape[2] :], k, v, o, **options)
        assert said in f"{found}", f"{name}: {found}"


def test_what_looks_alike_is_not_named():
    q, k, v = drawn(3, 4, 256, 64, seed=21)
    keys = torch.arange(256)
    mask = (keys < torch.tensor([256, 180, 97])[:, None])[:, None, None]  # (3, 1, 1, 256)
    o = attention((q, k, v), causal=True)
    both = mask & (DISTANCE >= 0)
    padded = attention((q, k, v), mask=both) * mask[:, :, 0, :, None]
    assert fa_lib.explain(q, k, v, padded, mask=both).zero == "padding"
    short = q[:, :, -100:]
    top_left = attention((short, k, v), mask=mask & (keys <= torch.arange(100)[:, None]))
    assert fa_lib.explain(short, k, v, top_left, mask=mask, causal=True).verdict == Verdict.CONVENTION
    sink = k.clone()
    sink[:, :, 0] = 3 * q.mean(2)
    garbage = attention((q, sink, v), causal=True)
    garbage[1, :, 5:60] = v[0, :, 5:60]
    found = fa_lib.explain(q, sink, v, garbage, causal=True)
    assert not found.moved and found.inside is None, f"{found}"
    stale = k.clone()
    stale[:, :, 200:] = math.nan
    noise = attention((q, k, v), mask=(keys < 150)[None]) + 0.3 * drawn(3, 4, 256, 64, seed=5)[0]
    one = noise[:, :, :1].contiguous(), dict(mask=(keys < 150)[None])
    assert not fa_lib.explain(q[:, :, :1], stale, v, one[0], **one[1]).has_cause
    heads = o.clone()
    heads[2, [0, 3]] = attention((q, k, v), causal=True, scale=0.2)[2, [0, 3]]
    assert "There (entry 2, heads 0, 3) it is" in f"{fa_lib.explain(q, k, v, heads, causal=True)}"


def test_a_kernel_in_eight_bits_is_held_to_its_own_bound_and_short_calls_are_asked_for():
    """FlyDSL 1020: P in e4m3 as it is loses small weights; times 2^8 it does not."""
    k, v, _ = drawn(1, 2, 2048, 64, seed=1)
    k[:, :, 0] = 1.25  # a common direction, and a key that has it
    q, k, v = (x.to(torch.float8_e4m3fn).bfloat16() for x in (1 + drawn(1, 2, 64, 64)[0] / 2, k, v))
    for key, due in (("E4M3", Verdict.ROUNDING), ("", Verdict.PRECISION)):
        precision = replace(Precision.kernel(q.dtype), probs=OF_P.get(key, E4M3))
        o = kernels.tiled(q, k, v, tiling=Tiling(64, 64), precision=precision)
        found = fa_lib.explain(q, k, v, o)
        assert found.verdict == due and found.fmt == (key or "BF16"), f"{found}"
        assert found.arithmetic is None if key else found.arithmetic.key == "probs"
    q, k, v = drawn(1, 2, 128, 64)
    o = kernels.as_shipped(q, E4M3(k.double()).to(k.dtype), v)
    assert fa_lib.explain(q, k, v, o).arithmetic.fmt == "E4M3 without a scale"
    assert "at most 32 keys" in f"{fa_lib.explain(q, k, v, kernels.as_shipped(q, k, v.flip(2)))}"


@pytest.mark.parametrize("seed", range(12))
def test_no_right_output_or_gradient_is_called_wrong(seed):
    """Many builds: tiles, algorithms, formats, options. 436 outputs and 600 calls with gradients were tried once."""
    pick = random.Random(seed)
    dtype, n = pick.choice([torch.bfloat16, torch.float16]), pick.choice([1, 33, 128])
    q, dO, _ = drawn(1, 4, n, 64, dtype=dtype, seed=seed)
    k, v, _ = drawn(1, 2, n + pick.choice([0, 70]), 64, dtype=dtype, seed=seed + 99)
    options = pick.choice([{}, dict(causal=True), dict(softcap=20.0), dict(window=(9, 0)), dict(scale=0.3)])
    build = dict(tiling=Tiling(pick.choice([16, 64]), pick.choice([16, 48, 128])), precision=Precision.kernel(dtype))
    x = [each.requires_grad_() for each in (q, k, v)]
    o = kernels.tiled(*x, algorithm=pick.choice(["fa1", "fa2", "fa4"]), **build, **options)
    others = dict(zip(("dq", "dk", "dv"), (each.to(dtype) for each in torch.autograd.grad(o, x, dO.to(o.dtype)))))
    found = fa_lib.explain(*(each.detach() for each in x), o.detach().to(dtype), dO=dO, **others, **options)
    assert found.is_rounding and all(each.times <= 1 for each in found.others), f"{found}"


def noisy(kind, seed):
    """q, k, v and an output that no dialect makes."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    queries, keys = 1 if kind == "decoding" else 32, 8 if seed == 3 else 40
    q, k, v = (normal(1, 2, n, 64).half() for n in (queries, keys, keys))
    S = q.double() @ k.double().mT / 8
    o = torch.softmax(S + (0.3 if kind in ("scores", "decoding") else 0) * normal(*S.shape), -1) @ v.double()
    if kind == "output":
        o += 0.1 * normal(*o.shape)
    if kind == "garbage of one key":
        q, k, v = (x[:, :, :1, :16] for x in (q, k, v))
        o = o[:, :, :1, :16]
    if kind.startswith("garbage"):
        o = 10.0 ** (seed % 4 - 1) * normal(*o.shape)
    return q, k, v, o.half()


@pytest.mark.parametrize("kind", ["scores", "decoding", "output", "garbage", "garbage of one key"])
def test_noise_and_garbage_have_no_cause(kind):
    for seed in range(4):
        q, k, v, o = noisy(kind, seed)
        found = fa_lib.explain(q, k, v, o)
        named = found.dialect or found.arithmetic or found.dropout or found.where and found.where.is_known
        assert found.verdict != Verdict.ROUNDING and not named, f"{found}"
        with pytest.raises(AssertionError, match="no mistake and no rounding|of this size"):
            assert_attention_close(o, q, k, v, precision="FP16")


def test_what_does_not_hold_is_called_the_nearest():
    """FP8 keys and values whose scales are forgotten: near to a scale and a factor, and not within BF16's rounding."""
    q, k, v = BF16
    low = [(x.float() / c).to(torch.float8_e4m3fn).bfloat16() for x, c in ((k, 0.25), (v, 0.5))]
    found = fa_lib.explain(q, k, v, attention((q, *low)))
    nearest = re.search(r"nearest that was tried is (\S+) times attention with (\S+) times its scale", f"{found}")
    assert nearest and [float(x) for x in nearest.groups()] == pytest.approx([2, 4], rel=0.02)
    assert found.dialect == {} and "does not hold" in f"{found}"
