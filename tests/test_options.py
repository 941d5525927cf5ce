"""What newer kernels do differently, each option held to an oracle that is not ours; and sinks, logits that join the
softmax's sum. In FP64 test_kernels.py compares all of them with attention written out."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from test_kernels import plain

from fa_lib import BF16, FP32, FP64, Precision, Tiling, deviation, draw, kernels
from fa_lib.kernels.algorithm import Algorithm
from fa_lib.kernels.exponentials import dynamic_maximum
from fa_lib.kernels.inputs import DISTRIBUTIONS
from fa_lib.kernels.options import finite
from fa_lib.kernels.polynomials import polynomial_exp
from fa_lib.kernels.quantization_schemes import rotated
from fa_lib.numerics.formats import stochastic

EXACT = Precision.uniform(FP64)
TILING = Tiling(16, 16)


def test_fa4_with_threshold_0_is_fa2_and_with_offset_in_fp32_too():
    q, k, v = draw("normal", 0, (1, 2, 200, 32))
    p = Precision.kernel(BF16)
    fa2 = kernels.tiled(q, k, v, tiling=TILING, precision=p)
    for how in (Algorithm("fa4", threshold=0), Algorithm(p_exponent_offset=6)):  # a power of two is exact
        assert torch.equal(kernels.tiled(q, k, v, tiling=TILING, precision=p, algorithm=how), fa2)
    fa4 = kernels.tiled(q, k, v, tiling=TILING, precision=p, algorithm="fa4")
    assert not torch.equal(fa4, fa2)
    golden = kernels.golden(q, k, v, inputs=BF16)
    assert deviation(fa4, golden).rmse < 1.2 * deviation(fa2, golden).rmse  # where P was 1 it now is rounded


def test_fa4_never_rescales_below_its_threshold():
    """With scores that rise by less than the threshold, m stays that of the first tile: P above 1 is handed to P V."""
    largest = []
    q = torch.ones(1, 1, 1, 1).double()
    k = torch.arange(0, 6).double().reshape(1, 1, 6, 1)  # rises by 1 at every tile of one key: 5 < 8 ln 2
    options = dict(tiling=Tiling(1, 1), precision=EXACT, scale=1.0)
    exp = lambda x: largest.append(x.max().item()) or torch.exp(x)  # noqa: E731
    kernels.tiled(q, k, k, algorithm=Algorithm("fa4", exp=exp), **options)
    assert largest == [0, 1, 2, 3, 4, 5]
    largest.clear()
    kernels.tiled(q, k, k, algorithm=Algorithm("fa4", exp, threshold=2), **options)  # 2 ln 2 = 1.39: every second tile
    assert largest == [0, 1, 0, 1, 0, 1]


def test_a_scale_in_the_exponent_refuses_what_comes_between_scale_and_exponential():
    q, k, v = draw("normal", 2, (1, 1, 5, 16))
    given = dict(tiling=TILING, precision=EXACT, algorithm=Algorithm(scale_in_exponent=True))
    for options in (dict(softcap=5.0), dict(mask=torch.zeros(5, 5))):
        with pytest.raises(ValueError, match=r"^algorithm: got scale_in_exponent=True .*softcap.*mask"):
            kernels.tiled(q, k, v, **given, **options)
    with pytest.raises(ValueError, match=r"^scale_in_exponent: got True"):
        Algorithm("fa1", scale_in_exponent=True)


@pytest.mark.parametrize("degree, relative", [(3, 8.77e-5), (4, 3.05e-6), (5, 1.44e-7)])
def test_the_polynomial_has_the_published_error_and_is_exact_at_the_maximum(degree, relative):
    """Of arXiv 2603.05451, which evaluates it in FP32 at a fraction given: so here, for 2**x with x >= -1."""
    f = FP32(torch.linspace(0, 1, 20001, dtype=torch.float64)[:-1])
    error = (polynomial_exp(degree)(f * math.log(2)) / torch.exp2(f) - 1).abs().max().item()
    assert error == pytest.approx(relative, rel=0.02 if degree < 5 else 1)  # at 5 FP32 itself is as coarse
    assert polynomial_exp(degree)(torch.zeros(1).double()) == 1
    assert polynomial_exp(degree)(torch.tensor([-math.inf, -300.0]).double()).max() < 1e-38


def test_rotation_is_scipys_hadamard_and_leaves_the_scores():
    q, k, _ = draw("outliers", 0, (2, 40, 64))
    ours_q, ours_k = rotated(q, k, seed=3)
    signs = np.random.default_rng(3).choice([-1.0, 1.0], 64)
    theirs = (q.numpy() * signs) @ scipy.linalg.hadamard(64) / 8
    np.testing.assert_allclose(ours_q.numpy(), theirs, atol=1e-12)
    torch.testing.assert_close(ours_q @ ours_k.mT, q @ k.mT, atol=1e-11, rtol=0)
    assert ours_q.abs().max() < 0.5 * q.abs().max()  # an outlier is spread over its row
    with pytest.raises(ValueError, match=r"head_dim 48; .*power of two"):
        rotated(torch.zeros(1, 48).double(), torch.zeros(1, 48).double(), 0)


def test_stochastic_formats_round_up_as_often_as_they_should_whoever_works():
    fmt = stochastic(BF16, seed=5)
    x = torch.full((200_000,), 1 + 2**-9, dtype=torch.float64)  # a quarter of the way to the next value
    rounded = fmt(x)
    assert set(rounded.unique().tolist()) == {1.0, 1 + 2**-7}
    share = (rounded > 1).double().mean().item()
    assert abs(share - 0.25) < 5 * math.sqrt(0.25 * 0.75 / len(x))
    assert torch.equal(fmt(x), rounded) and not torch.equal(stochastic(BF16, seed=6)(x), rounded)
    q, k, v = draw("normal", 0, (1, 4, 300, 32))
    p = Precision.uniform(fmt)
    threads = torch.get_num_threads()
    results = []
    for count in (1, 2):
        torch.set_num_threads(count)
        results.append(kernels.tiled(q, k, v, tiling=TILING, precision=p))
    torch.set_num_threads(threads)
    assert torch.equal(*results)


def test_the_dynamic_maximum_as_printed():
    S = torch.tensor([[1.0, 2.0, 2.0], [1.0, 2.0, 0.0], [-3.0, -3.0, -4.0], [0.0, 0.0, -1.0]]).double()
    assert dynamic_maximum(2.0)(S).flatten().tolist() == [4, 2, 0, 0]
    q = torch.ones(1, 1, 1, 1).double()
    k = torch.tensor([60.0, 60.0, 1.0]).double().reshape(1, 1, 3, 1)
    options = dict(tiling=Tiling(1, 4), precision=Precision.kernel(BF16), scale=1.0)
    golden = kernels.golden(q, k, k, inputs=BF16, scale=1.0)
    algorithms = (Algorithm(maximum=dynamic_maximum(beta)) for beta in (2.0, 8.0))
    near, lost = (kernels.tiled(q, k, k, algorithm=each, **options) for each in algorithms)
    assert abs(near / golden - 1).item() < 0.01 and lost.item() == 0  # beta = 8: exp(-420) is 0


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_trouble_is_what_it_says(name):
    q, k, v = draw(name, 0, (1, 2, 64, 32))
    assert all(torch.equal(x, x.float().double()) for x in (q, k, v))  # FP32's grid
    S = q @ k.mT / 32**0.5
    P = torch.softmax(S, -1)
    if name == "sink":
        assert (S.argmax(-1) == 0).all() and P[..., 0].median() > 0.5
    elif name == "repeated maxima":
        assert (S.amax(-1, keepdim=True) == S).sum(-1).ge(8).double().mean() > 0.95
    elif name == "one-signed V":
        assert (v >= 0).all() and (k < 0).any()
    elif name == "peaked":
        assert P.amax(-1).median() > 0.8
    elif name == "flat":
        assert P.amax(-1).max() < 3 / 64
    elif name == "off by one":
        assert k.shape[-2] == v.shape[-2] == 65


@pytest.mark.parametrize(
    "given, message",
    [
        (dict(threshold=3), r"^threshold: got 3 with 'fa2'; .*\bfa4\b"),
        (dict(name="fa4", threshold=-1), "threshold: got -1 with 'fa4'"),
        (dict(name="fa1", p_exponent_offset=2), r"^p_exponent_offset: got 2 with 'fa1'; "),
        (dict(p_exponent_offset=0.5), "p_exponent_offset: got 0.5"),
        (dict(splits=0), r"^splits: got 0; .* from 1\b"),
        (dict(name="fa3"), "algorithm: got 'fa3'; accepted are fa1, fa2, fa4"),
    ],
)
def test_bad_options_are_refused(given, message):
    q, k, v = draw("normal", 0, (1, 4, 8))
    with pytest.raises(ValueError, match=message):
        kernels.tiled(q, k, v, tiling=TILING, precision=EXACT, algorithm=Algorithm(**given))


def test_finite_is_no_nan_and_no_infinity_wherever_it_stands():
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        assert finite(torch.zeros(0, 4, dtype=dtype)) and finite(torch.arange(-50, 50).to(dtype))
        for bad in (math.nan, math.inf, -math.inf):
            for at in (0, 37, 99):
                x = torch.arange(-50, 50).to(dtype)
                x[at] = bad
                assert not finite(x)


def test_the_gradient_is_of_the_sinks_alone_where_only_they_ask_for_one():
    q, k, v = draw("normal", 3, (2, 4, 21, 8), (2, 2, 50, 8))
    sinks, dO = torch.tensor([-2.0, 0.5, 3.0, 40.0]).double().requires_grad_(), draw("normal", 4, q.shape)[0]
    outputs = kernels.golden(q, k, v, inputs=FP64, sinks=sinks), plain(q, k, v, dict(sinks=sinks))
    ours, theirs = (torch.autograd.grad(o, sinks, dO)[0] for o in outputs)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("how", [dict(), dict(name="fa1"), dict(splits=2)], ids=str)
def test_rounded_a_sink_costs_no_more_than_a_key(how):
    """As shipped, in BF16, with a sink of half of the mass."""
    q, k, v = (BF16(x) for x in draw("normal", 0, (1, 4, 64, 32), (1, 4, 256, 32)))
    sinks = torch.full((4,), 6.0, dtype=torch.float64)
    golden = kernels.golden(q, k, v, inputs=BF16, sinks=sinks)
    given = dict(tiling=TILING, precision=Precision.kernel(BF16), algorithm=Algorithm(**how))
    ours = kernels.tiled(q, k, v, sinks=sinks, **given)
    baseline = kernels.reference(q, k, v, sinks=sinks, precision=Precision.materialized(BF16))
    assert deviation(ours, golden, BF16).max <= 2 * deviation(baseline, golden, BF16).max
    without = kernels.golden(q, k, v, inputs=BF16)
    assert 0.3 < (golden.square().mean() / without.square().mean()).sqrt() < 0.7


def test_rescales_begin_at_the_sink():
    q, k, _ = draw("normal", 0, (1, 1, 40, 8), (1, 1, 64, 8))
    given = dict(tiling=TILING, precision=EXACT)
    assert kernels.rescales(q, k, sinks=torch.tensor([100.0]), **given).max() == 0
    low = kernels.rescales(q, k, sinks=torch.tensor([-100.0]), **given)
    assert torch.equal(low, kernels.rescales(q, k, **given) + 1)  # the first tile raises the maximum above the sink


@pytest.mark.parametrize("sinks", [torch.zeros(3), torch.zeros(2, 1), torch.zeros(2, dtype=torch.long), 1.0], ids=str)
def test_other_sinks_are_refused(sinks):
    q, k, v = draw("normal", 0, (1, 2, 4, 8))
    with pytest.raises(ValueError, match=r"^sinks: got .*; .* of shape \(2,\)"):
        kernels.golden(q, k, v, inputs=FP32, sinks=sinks)
    with pytest.raises(ValueError, match=r"^sinks: got a tensor; .*'torch' has none"):
        kernels.flash(q, k, v, sinks=torch.zeros(2))
