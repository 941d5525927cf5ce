"""`explain` names what is wrong with the weights of whole tiles of keys: row sums, rescales, merges, pages."""

import math

import pytest
import torch

from attention_check.conventions.solved_weights import Rule
from attention_check.explain.verdict import Verdict
from fa_lib import explain, kernels
from fa_lib.numerics.formats import Format

N, D = 256, 64


def problem(seed=0, hidden=0.0):
    """q, k, v in BF16, and their scores, float64 (2, 3, N, N); some of them hidden."""
    random = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, 3, N, D, generator=random).bfloat16() for _ in range(3))
    S = 2 * q.double() @ k.double().mT / D**0.5
    mask = torch.rand(2, 1, N, N, generator=random) >= hidden
    return 2 * q, k, v, S.masked_fill(~mask, -math.inf), mask


def merged(S, v, factors, size):
    """The sum over tiles of size keys of exp(S - m) V times factors (rows, tiles), over the right row sum."""
    P = torch.exp(S - S.amax(-1, keepdim=True))
    parts = enumerate(zip(P.split(size, -1), v.double().split(size, 2)))
    O = sum(p @ v_j * factors[..., at, None] for at, (p, v_j) in parts)
    return (O / P.sum(-1, keepdim=True)).bfloat16()


def tiles(S, size):
    """The maximum up to each tile, and each tile's log-sum-exp, (batch, heads, rows, tiles)."""
    parts = S.split(size, -1)
    m = torch.stack([part.amax(-1) for part in parts], -1).cummax(-1).values
    return m, torch.stack([part.logsumexp(-1) for part in parts], -1)


def not_rescaled(S, v):
    m, _ = tiles(S, 64)
    return merged(S, v, torch.exp(m[..., -1:] - m), 64)


def row_sum_not_rescaled(S, v):
    m, L = tiles(S, 64)
    wrong, right = torch.exp(L - m).sum(-1), torch.exp(L - m[..., -1:]).sum(-1)
    return merged(S, v, (right / wrong)[..., None].expand_as(m), 64)


def merged_alike(S, v, base=0.0):
    """Of two halves; base: the share of each log-sum-exp that counts."""
    _, L = tiles(S, 128)
    return merged(S, v, torch.softmax(base * L, -1) / torch.softmax(L, -1), 128)


def part_missing(S, v):
    hidden = S.clone()
    hidden[..., 128:192, 64:128] = -math.inf
    return (hidden.softmax(-1) @ v.double()).bfloat16()


def counted_twice(S, v):
    S = S.clone()
    S[..., 128:192] += math.log(2)
    return (S.softmax(-1) @ v.double()).bfloat16()


def page_twice(S, v):
    S, v = S.clone(), v.clone()
    S[..., 96:112], v[:, :, 96:112] = S[..., 32:48], v[:, :, 32:48]
    return (S.softmax(-1) @ v.double()).bfloat16()


@pytest.mark.parametrize(
    "kernel, rule, size",
    [
        (not_rescaled, Rule.MAXIMUM, 64),
        (row_sum_not_rescaled, Rule.ROW_SUM, N),
        (merged_alike, Rule.EQUAL, 128),
        (lambda S, v: merged_alike(S, v, math.log(2)), Rule.BASE_2, 128),
        (lambda S, v: merged_alike(S, v, 1 / math.log(2)), Rule.BASE_E, 128),
        (part_missing, Rule.MISSING, 64),
        (counted_twice, Rule.COUNTED, 64),
    ],
)
def test_the_rule_that_tiles_follow_is_named(kernel, rule, size):
    q, k, v, S, _ = problem()
    found = explain(q, k, v, kernel(S, v))
    assert (found.verdict, found.tiles.rule, found.tiles.size) == ("bug", rule, size)
    if rule == Rule.MISSING:
        assert found.tiles.tiles[0][:2] == (64, 127) and found.where.rows[0][0] >= 128 and found.where.rows[0][1] < 192


def test_a_page_that_is_read_twice_is_named():
    q, k, v, S, _ = problem()
    found = explain(q, k, v, page_twice(S, v))
    assert "in place of keys 96 to 111 of entry 0 it reads keys 32 to 47 of entry 0" in f"{found}"
    assert [(each.entry, each.first, each.of_entry, each.of_first) for each in found.moved] == [
        (0, 96, 0, 32), (1, 96, 1, 32)]  # fmt: skip


def test_a_mask_after_the_softmax_is_named():
    q, k, v, _, mask = problem(hidden=0.3)
    S = q.double() @ k.double().mT / D**0.5
    found = explain(q, k, v, ((S.softmax(-1) * mask) @ v.double()).bfloat16(), mask=mask)
    assert found.tiles.rule == Rule.BEFORE_MASK and "are hidden count in the row sum" in str(found)


def test_weights_of_tiles_are_not_named_where_the_keys_own_are_wrong():
    """Noise in the scores, scores in fewer bits where one key has most of the weight, and noise in the output."""
    q, k, v, S, _ = problem()
    noise = torch.Generator().manual_seed(1)
    for scores, times in ((S + 0.1 * torch.randn(S.shape, generator=noise), 1), ((9 * S).bfloat16().double(), 9)):
        o = (scores.softmax(-1) @ v.double()).bfloat16()
        assert explain(q * times, k, v, o).tiles is None
    o = (S.softmax(-1) @ v.double()) * (1 + 0.05 * torch.randn(v.shape, generator=noise))
    assert explain(q, k, v, o.bfloat16()).tiles is None


def test_scores_of_fp16_inputs_that_are_rounded_to_bf16_are_named():
    q, k, v = (x.half() for x in problem()[:3])
    q = 4 * q
    S = (q.double() @ k.double().mT / D**0.5).bfloat16().double()
    found = explain(q, k, v, (S.softmax(-1) @ v.double()).half())
    assert (found.verdict, found.arithmetic.key, found.arithmetic.fmt) == ("precision", "scores", "BF16")


def test_values_of_other_keys_bits_of_another_format_and_an_overflow_are_named():
    q, k, v = (torch.randn(1, 2, 160, 64, generator=torch.Generator().manual_seed(seed)).half() for seed in range(3))
    order = torch.arange(160).unflatten(0, (-1, 16))[[0, 1, 2, 5, 4, 3, 6, 7, 8, 9]].flatten()
    found = f"{explain(q, k, v, kernels.as_shipped(q, k, v[:, :, order]))}"
    assert "in place of the values of keys 48 to 63 it reads those of keys 80 to 95; in place of the values" in found
    right = kernels.as_shipped(q, k, v)
    as_bf16 = right.view(torch.bfloat16)
    assert "its bits are those of FP16" in f"{explain(q.bfloat16(), k.bfloat16(), v.bfloat16(), as_bf16)}"
    late = right.clone().flatten(0, 2)
    late[200:] = k.flatten(0, 2)[200:]
    assert "all rows from head 1, row 40 on" in f"{explain(q, k, v, late.view_as(right))}"
    large = q.clone()
    large[:, 1, :40, 0], k[..., 0] = 300.0, 300.0
    right = kernels.as_shipped(large, k, v)
    right[:, 1, :40] = math.nan
    found = f"{explain(large, k, v, right)}"
    assert "In each of them, and in no other, q kᵀ before the scale is beyond 65,504" in found


def test_a_row_sum_that_is_off_is_no_rounding_though_each_value_is_as_near_as_plain_attentions():
    q, k, v = (
        torch.randn(1, 2, 128, 64, generator=torch.Generator().manual_seed(seed)).bfloat16() for seed in (5, 6, 7)
    )
    right = kernels.golden(q, k, v, inputs=Format.of("BF16"))
    plain, off = kernels.baseline(q, k, v), (1.005 * right).bfloat16()
    assert explain(q, k, v, plain).verdict == Verdict.ROUNDING
    assert explain(q, k, v, off).verdict != Verdict.ROUNDING
    sinks = torch.zeros(2)
    assert explain(q, k, v, right.bfloat16(), sinks=sinks).dialect == dict(sinks="ignored")
