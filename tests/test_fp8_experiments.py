"""The experiments of notebook 17, each against the same written out, or a closed form."""

import math

import pytest
import torch

from fa_lib import BF16, E4M3, Precision, Tiling, draw, kernels
from fa_lib.experiments.fp8_probs import CASTS, KINDS, LOST, SINK_KEYS, lost_share, row_mass, sink_cast
from fa_lib.experiments.sink_gradients import sink_gradient
from fa_lib.kernels.quantization_schemes import Scheme


def cast(x):
    """To E4M3 by torch."""
    return x.float().to(torch.float8_e4m3fn).double()


def tile_by_tile(S, v, m, raised=1.0, reverse=False, block=64):
    """Flash in float64 but for P, which is cast to E4M3: O, and how many P are 0."""
    l, O, zeros = torch.exp(m - m) * raised * (m > -torch.inf), torch.zeros(S.shape[0], v.shape[1]).double(), 0
    pairs = list(zip(S.split(block, 1), v.split(block)))
    for S_j, v_j in pairs[::-1] if reverse else pairs:
        new = torch.maximum(m, S_j.amax(1, keepdim=True))
        P, a = torch.exp(S_j - new) * raised, torch.exp(m - new)
        zeros += int((cast(P) == 0).sum())
        m, l, O = new, torch.nan_to_num(a * l) + P.sum(1, keepdim=True), a * O + cast(P) @ v_j
    return O / l, zeros


@pytest.mark.parametrize("kind", KINDS)
def test_beside_a_sink_as_much_is_lost_as_written_out(kind):
    n, rows, d = 256, 16, 32
    q, k, v = (x[0, 0] for x in draw("normal", 3, (1, 1, rows, d), (1, 1, n, d)))
    S = q / q.norm(dim=-1, keepdim=True) @ k.T
    if kind == "keys":
        S[:, :SINK_KEYS] += 6
    m = torch.full((rows, 1), 6.0 if kind == "logit" else -torch.inf).double()
    weights = torch.softmax(torch.cat([S, m], 1), 1)[:, :-1]
    found = {row["cast"]: row for row in sink_cast(6, kind, 3, n=n, rows=rows, head_dim=d, block_kv=64)}
    for name, (reverse, offset) in CASTS.items():
        O, zeros = tile_by_tile(S, v, m, 2.0**offset, reverse)
        mse = (O - weights @ v).square().mean().item()
        assert found[name]["lost"] == zeros / (rows * (n - KINDS[kind]))
        assert found[name]["mse"] == pytest.approx(mse, rel=1e-2)  # FP32 moves a P across a midpoint now and then
    assert found["forward"]["lost"] > 0.1 > 0.001 > found["forward_256"]["lost"]


@pytest.mark.parametrize("scale, cast", [(1, "forward"), (256, "forward_256")])
def test_a_learned_sink_takes_the_share_of_the_closed_form(scale, cast):
    at = LOST + math.log(scale)
    assert lost_share(at, scale, 0) == 0.5 and lost_share(at - 1, scale) == 0.5 and lost_share(at - 1, scale, 0) < 0.2
    for strength in (at - 1, at, at + 1):
        rows = {row["cast"]: row["lost"] for row in sink_cast(strength, "logit", 0, n=1024, rows=16)}
        of = lost_share(strength, scale, 0)
        assert abs(rows[cast] - of) < 4 * math.sqrt(of * (1 - of) / 1024)  # rows share the keys: as if there were one


def test_where_v_is_1_the_output_is_what_the_cast_leaves_of_the_weights():
    n, rows, d = 512, 32, 64
    q, k, _ = draw("normal", 5, (1, 1, rows, d), (1, 1, n, d))
    q, k = (Scheme(E4M3).apply(BF16(x))[0, 0] for x in (2 * q, k))
    O, _ = tile_by_tile(q @ k.T / d**0.5, torch.ones(n, 1).double(), torch.full((rows, 1), -torch.inf).double())
    found = {row["kernel"]: row for row in row_mass(2, n, 5, rows=rows, head_dim=d)}
    assert abs(found["fp8_eager"]["smallest"] - O.min().item()) <= 2**-8  # stored in BF16
    assert abs(found["fp8_eager"]["mean"] - O.mean().item()) <= 2**-8
    assert abs(found["fp8_eager"]["short"] - (O < 0.99).double().mean().item()) <= 2 / rows
    assert found["bf16"]["smallest"] == 1 > found["fp8_raised"]["smallest"] > found["fp8_eager"]["smallest"]


def test_a_sinks_gradient_is_autograds_and_its_errors_are_as_said():
    n, heads, d = 64, 4, 32
    rows = {row["rounded"]: row for row in sink_gradient(2, n=n, heads=heads, head_dim=d)}
    q, k, v = (BF16(x) for x in draw("normal", 2, (1, heads, n, d)))
    dO = BF16(draw("normal", 2 + 1_000_000, q.shape)[0])
    sinks = torch.zeros(heads).double().requires_grad_()
    S = torch.cat([q @ k.mT * d**-0.5, sinks[None, :, None, None].expand(1, heads, n, 1)], -1)
    P = torch.softmax(S, -1)
    (exact,) = torch.autograd.grad(P[..., :-1] @ v, sinks, dO)
    o = kernels.tiled(q, k, v, tiling=Tiling(64, 64), precision=Precision.kernel(BF16), sinks=sinks.detach())
    terms = (-P[..., -1:] * o * dO).detach()
    ours = BF16(BF16(terms).sum((0, 2, 3))), BF16(terms.sum((0, 2, 3)))
    for name, value in zip(("terms", "sum"), ours):
        error = ((value - exact).square().mean() / exact.square().mean()).sqrt().item()
        assert rows[name]["golden"] == pytest.approx(error, rel=1e-6)
