"""Kernels against each other, against torch's and what is written in its operations, and against their contract."""

import math
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_lib import BF16, E4M3, FP16, FP32, FP64, Precision, Tiling, deviation, draw, kernels, round_to
from fa_lib.execution.paths import ROOT
from fa_lib.kernels import flash, golden, reference, refusal, rescales, tiled
from fa_lib.kernels.algorithm import Algorithm
from fa_lib.kernels.exponentials import dynamic_maximum
from fa_lib.kernels.gradients import gradients
from fa_lib.kernels.rows import products
from fa_lib.numerics import dots

EXACT = Precision.uniform(FP64)


@st.composite
def problems(draw_):
    """q, k, v with the options of a call: rectangular, GQA, causal, masked, any leading dimensions."""
    n_q, n_kv, d = (draw_(st.integers(1, top)) for top in (40, 70, 24))
    heads_kv, group = draw_(st.integers(1, 3)), draw_(st.integers(1, 3))
    lead = draw_(st.sampled_from([(), (2,), (2, 1)]))
    seed = draw_(st.integers(0, 2**16))
    q, k, v = draw(
        draw_(st.sampled_from(["uniform", "normal", "outliers"])),
        seed, (*lead, heads_kv * group, n_q, d), (*lead, heads_kv, n_kv, d),
    )  # fmt: skip
    noise = torch.Generator().manual_seed(seed)
    mask = {
        "none": None,
        "boolean": torch.rand(heads_kv * group, n_q, n_kv, generator=noise) < 0.7,
        "keys": torch.rand(1, n_kv, generator=noise) < 0.7,
        "added": torch.randn(n_q, n_kv, generator=noise, dtype=torch.float64),
    }[draw_(st.sampled_from(["none", "boolean", "keys", "added"]))]
    sides = st.one_of(st.none(), st.integers(0, 40))
    call = {"causal": draw_(st.booleans()), "mask": mask, "scale": draw_(st.sampled_from([None, 0.3]))}
    call["window"] = draw_(st.one_of(st.none(), st.tuples(sides, sides)))
    call["softcap"] = draw_(st.sampled_from([None, None, 1.5]))
    if draw_(st.booleans()):
        call |= {"keep": torch.rand(n_q, n_kv, generator=noise) < 0.8, "dropout_p": 0.2}
    if draw_(st.booleans()):
        heads = q.shape[-3]
        call["sinks"] = torch.randn(heads, generator=noise, dtype=torch.float64) * draw_(st.sampled_from([1, 40]))
    return q, k, v, call


def plain(q, k, v, call):
    """Attention as anybody would write it, for torch's autograd."""
    group = q.shape[-3] // k.shape[-3]
    k, v = (x.repeat_interleave(group, -3) for x in (k, v))
    S = (q @ k.mT) * (call.get("scale") or 1 / math.sqrt(q.shape[-1]))
    if call.get("softcap"):
        S = call["softcap"] * torch.tanh(S / call["softcap"])
    if call.get("mask") is not None and call["mask"].dtype != torch.bool:
        S = S + call["mask"]
    seen = seen_keys(q, k, call)
    S = S.masked_fill(~seen, -1e300)
    if call.get("sinks") is not None:  # a key whose value is 0
        S = torch.cat([S, call["sinks"][:, None, None].expand(*S.shape[:-1], 1)], -1)
    P = torch.softmax(S, -1)[..., : k.shape[-2]] * seen.any(-1, keepdim=True)
    return (P * call["keep"] / (1 - call["dropout_p"]) if call.get("dropout_p") else P) @ v


def seen_keys(q, k, call):
    """Boolean (n_q, n_kv) or wider: what a row may see."""
    n_q, n_kv = q.shape[-2], k.shape[-2]
    seen = torch.ones(n_q, n_kv, dtype=torch.bool)
    if call.get("causal"):
        seen = seen.tril(n_kv - n_q)
    left, right = call.get("window") or (None, None)
    if left is not None:
        seen = seen.triu(n_kv - n_q - left)
    if right is not None:
        seen = seen.tril(n_kv - n_q + right)
    if call.get("mask") is not None and call["mask"].dtype == torch.bool:
        seen = seen & call["mask"]
    return seen


def bound(q, k, v, call, block_kv):
    """How far two float64 evaluations of attention may be apart, from u = 2**-53.

    An entry of S is off by (d + 3) u scale sum |q k| at most, from its dot product, the scaling, a softcap and the
    mask. In exp(S - m) that, the subtraction and exp itself make a relative error of twice that and |S - m| u + 2u. It
    enters O through the numerator and the row sum; the sums over n keys add 2 n u, the rescales 6 u a tile.
    """
    scale = call.get("scale") or 1 / math.sqrt(q.shape[-1])
    group = q.shape[-3] // k.shape[-3]
    largest = scale * (q.abs() @ k.abs().repeat_interleave(group, -3).mT).max()
    if call.get("mask") is not None and call["mask"].dtype != torch.bool:
        largest = largest + call["mask"].abs().max()
    if call.get("sinks") is not None:
        largest = torch.maximum(largest, call["sinks"].abs().max())
    tiles = math.ceil(k.shape[-2] / block_kv)
    relative = 2 * (2 * (q.shape[-1] + 3) * largest + 2 * largest + 2) + 2 * k.shape[-2] + 6 * tiles
    kept = 1 / (1 - call.get("dropout_p", 0))
    return 2 * kept * relative.item() * FP64.unit_roundoff * v.abs().max().item()


HOW = [  # how `tiled` goes over the tiles; None: the golden value
    None, dict(name="fa1"), dict(), dict(name="fa4"), dict(name="fa4", threshold=0),
    dict(name="fa4", threshold=30, p_exponent_offset=-3), dict(p_exponent_offset=5), dict(scale_in_exponent=True),
    dict(scale_in_exponent=True, splits=3, reverse=True), dict(splits=3), dict(splits=100), dict(reverse=True),
    dict(name="fa1", splits=2, reverse=True), dict(maximum=dynamic_maximum(2.0)), dict(reciprocal=True),
    dict(name="fa4", splits=4, reverse=True, p_exponent_offset=2),
]  # fmt: skip


@pytest.mark.parametrize("how", HOW, ids=lambda how: " ".join(how) if how else str(how))
@settings(max_examples=20, deadline=None)
@given(problems(), st.integers(1, 80), st.integers(1, 50))
def test_in_fp64_every_algorithm_is_attention_as_anybody_would_write_it(how, problem, block_kv, block_q):
    """Its output within the bound that is derived, its gradients in what autograd gives."""
    q, k, v, call = problem
    kernel = partial(golden, inputs=FP64)
    if how is not None:
        tiling = Tiling(block_q, block_kv)
        kernel = partial(tiled, tiling=tiling, precision=EXACT, algorithm=Algorithm(**how))
    if how and how.get("scale_in_exponent"):  # it takes no softcap and no added mask
        mask = call["mask"] if call["mask"] is not None and call["mask"].dtype == torch.bool else None
        call = call | dict(softcap=None, mask=mask)
    tensors = [x.requires_grad_() for x in (q, k, v, *([call["sinks"]] if "sinks" in call else []))]
    ours, theirs = kernel(q, k, v, **call), plain(q, k, v, call)
    assert ours.shape == (*q.shape[:-1], v.shape[-1])
    assert (ours - theirs).abs().max() <= bound(q, k, v, call, block_kv if how is not None else k.shape[-2])
    dO = draw("normal", 1, q.shape)[0]
    # sums of at most 70 * 40 * 3 terms, through an exponential of |S| up to some hundreds
    size = 1 + q.abs().max() * k.abs().max() * v.abs().max() * dO.abs().max() * q.shape[-1]
    for a, b in zip(*(torch.autograd.grad(o, tensors, dO) for o in (ours, theirs))):
        assert (a - b).abs().max() <= 1e4 * size * FP64.unit_roundoff * max(1, b.abs().max())


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(problems(), st.integers(1, 80), st.sampled_from(["fa1", "fa2"]), st.integers(1, 50), st.integers(1, 9))
def test_b_r_is_inert_bit_for_bit(problem, block_kv, algorithm, block_q, rows):
    """Neither the B_r that is asked for nor the rows really worked on at once can change a bit in 16-bit formats."""
    q, k, v, call = problem
    for p in (Precision.uniform(BF16), Precision.kernel(FP16)):
        one = tiled(q, k, v, tiling=Tiling(1, block_kv), precision=p, algorithm=algorithm, rows=1, **call)
        other = tiled(q, k, v, tiling=Tiling(block_q, block_kv), precision=p, algorithm=algorithm, rows=rows, **call)
        assert torch.equal(one, other)


@settings(max_examples=60, deadline=None)
@given(problems(), st.sampled_from([BF16, FP16, E4M3]))
def test_one_tile_is_baseline_with_the_division_last(problem, fmt):
    """With one tile both algorithms do Baseline's operations, each rounded, with O and not P divided by the row sum."""
    q, k, v, call = problem
    call = {"scale": call["scale"]}
    how = dict(tiling=Tiling(64, 70), precision=Precision.uniform(fmt)) | call
    fa1, fa2 = (tiled(q, k, v, algorithm=algorithm, **how) for algorithm in ("fa1", "fa2"))
    group = q.shape[-3] // k.shape[-3]
    q, k, v = fmt(q), fmt(k).repeat_interleave(group, -3), fmt(v).repeat_interleave(group, -3)
    S = fmt((q @ k.mT) * (call["scale"] or 1 / math.sqrt(q.shape[-1])))
    P = fmt(torch.exp(fmt(S - S.amax(-1, keepdim=True))))
    O = fmt(fmt(P @ v) / fmt(P.sum(-1, keepdim=True)))
    assert torch.equal(fa1, fa2) and torch.equal(fa2, O)


@settings(max_examples=40, deadline=None)
@given(problems(), st.integers(1, 80))
def test_output_lies_on_the_output_formats_grid(problem, block_kv):
    q, k, v, call = problem
    p = replace(Precision.kernel(BF16), output=E4M3)
    for o in (tiled(q, k, v, tiling=Tiling(8, block_kv), precision=p, **call), reference(q, k, v, precision=p, **call)):
        assert torch.equal(o, round_to(o, E4M3)) and o.isfinite().all()


@pytest.mark.parametrize("algorithm", ["fa1", "fa2"])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"mask": torch.ones(8, 8, dtype=torch.bool)}], ids=str)
def test_nan_and_overflow_are_never_dropped(options, algorithm):
    call = dict(tiling=Tiling(4, 2), precision=Precision.uniform(FP16), algorithm=algorithm, **options)
    q, k, v = draw("normal", 0, (8, 4))
    broken = k.clone()
    broken[1, 0] = math.nan
    ours, baseline = tiled(q, broken, v, **call), reference(q, broken, v, precision=call["precision"], **options)
    assert torch.equal(ours.isnan(), baseline.isnan()) and ours.isnan().any(-1).sum() == 8 - ("causal" in options)
    far = torch.full_like(q, 6e4)  # every score overflows to -inf in FP16, and softmax of that is NaN, as in torch
    assert tiled(far, -far, v, **call).isnan().all()
    assert reference(far, -far, v, precision=call["precision"], **options).isnan().all()


def test_dtype_of_q_is_kept_and_stored_straight():
    q, k, v = (x.to(torch.bfloat16) for x in draw("normal", 1, (1, 1, 16, 8)))
    wide = tiled(*(x.double() for x in (q, k, v)), tiling=Tiling(8, 8), precision=Precision.kernel(FP32))
    o = tiled(q, k, v, tiling=Tiling(8, 8), precision=Precision.kernel(FP32))
    assert o.dtype == torch.bfloat16 and torch.equal(o.double(), round_to(wide, BF16))
    assert golden(q, k, v, inputs=BF16).dtype == torch.float64


def test_golden_inputs_before_or_after_rounding():
    q, k, v = draw("normal", 2, (1, 1, 32, 16))
    after = golden(*(round_to(x, BF16) for x in (q, k, v)), inputs=FP64)
    assert torch.equal(golden(q, k, v, inputs=BF16), after)
    assert not torch.equal(golden(q, k, v, inputs=FP64), after)
    held = [round_to(x, BF16).bfloat16() for x in (q, k, v)]
    assert torch.equal(golden(*held, inputs=BF16), after)  # what is on the grid is not rounded again
    assert not torch.equal(golden(held[0], k, held[2], inputs=BF16), golden(held[0], k, held[2], inputs=FP64))


@pytest.mark.parametrize(("fmt", "dot"), [(BF16, dots.EXACT), (FP16, dots.EXACT), (FP64, dots.DOUBLE_DOUBLE)])
def test_a_product_that_was_made_before_changes_no_bit(fmt, dot):
    q, k, v = draw("normal", 0, (2, 4, 97, 64), (2, 2, 203, 64))
    q_k = products(q, k, fmt, dot)
    assert q_k.shape == (8, 97, 203)
    assert products(q, k, FP32, dots.EXACT) is products(q, k, fmt, dots.SEQUENTIAL(FP32)) is None
    options = dict(causal=True, softcap=3.0)
    materialized, of_tiles = (replace(of(fmt), products=dot) for of in (Precision.materialized, Precision.uniform))
    uniform = dict(tiling=Tiling(32, 48), precision=of_tiles)
    calls = [(reference, dict(precision=materialized)), (tiled, uniform)]
    for kernel, how in [*calls, (golden, dict(inputs=fmt))] if dot == dots.EXACT else calls:
        assert kernel(q, k, v, q_k=q_k, **how, **options).equal(kernel(q, k, v, **how, **options))
    assert rescales(q, k, q_k=q_k, **uniform).equal(rescales(q, k, **uniform))


def test_rescales_counts_what_raises_the_maximum():
    keys = torch.tensor([[1.0], [3.0], [2.0], [2.5], [4.0], [0.0], [5.0]], dtype=torch.float64)
    q = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    count = rescales(q, keys, tiling=Tiling(1, 2), precision=EXACT, scale=1.0)
    assert count.tolist() == [2, 1]  # maxima of the tiles: 3, 2.5, 4, 5 and -1, -2, 0, -5
    assert rescales(q, keys, tiling=Tiling(1, 7), precision=EXACT).tolist() == [0, 0]


WIDE = {"flash": flash, "unfused": kernels.unfused, "stepwise": partial(kernels.stepwise, block_kv=8)}


@pytest.mark.parametrize("name", WIDE)
@pytest.mark.parametrize("fmt", [FP32, FP64], ids=str)
def test_in_wide_formats_kernels_of_torchs_operations_are_attention(name, fmt):
    """Their sums round at each addition and ours once, so what they are held to is the bound for the former."""
    q, k, v = (round_to(x, fmt) for x in draw("normal", 3, (2, 4, 97, 32), (2, 2, 130, 32)))
    noise = torch.Generator().manual_seed(0)
    seen, added = torch.rand(97, 130, generator=noise) < 0.6, torch.randn(97, 130, generator=noise).to(fmt.dtype)
    calls = [{}, dict(scale=0.3)]
    if name != "stepwise":
        calls += [dict(causal=True), dict(mask=seen), dict(mask=added), dict(mask=added, causal=True)]
    for options in calls:
        o = WIDE[name](*(x.to(fmt.dtype) for x in (q, k, v)), **options)
        limit = bound(q, k, v, options, 8) * fmt.unit_roundoff / FP64.unit_roundoff
        assert (o - golden(q, k, v, inputs=FP64, **options)).abs().max() <= limit, options
    one = [x[0, 0].to(fmt.dtype) for x in (q, k, v)]  # of two dimensions
    assert (WIDE[name](*one) - golden(*one, inputs=FP64)).abs().max() <= limit


def test_a_processor_with_amx_told_to_run_other_code(monkeypatch):
    """torch's words on such a processor under ATEN_CPU_CAPABILITY=avx2, from a function that stands for its own."""
    assert refusal(fmt=BF16) == refusal(fmt=FP32) == ""

    def refuses(q, *_, **__):
        raise RuntimeError("pack_vnni2 is only supported when avx512 is supported")

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", refuses)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    words = r"\bAVX2 .*\bAMX\b.*; unset ATEN_CPU_CAPABILITY"
    with pytest.raises(RuntimeError, match=words):
        flash(*draw("normal", 0, (1, 1, 128, 32)))
    assert re.search(words, refusal(fmt=BF16))
    assert "needs a CUDA device" in refusal("flash_attn")


def test_what_flash_cannot_run_it_refuses():
    q, k, v = (x.to(torch.float8_e4m3fn) for x in draw("normal", 5, (1, 1, 8, 16)))
    with pytest.raises(RuntimeError, match="FLASH_ATTENTION cannot run.*dtype"):
        flash(q, k, v)
    with pytest.raises(ValueError, match="backend: got 'cudnn'; accepted are torch"):
        flash(q, k, v, backend="cudnn")
    for options, message in (
        (dict(softcap=1.0), r"^softcap: got 1\.0; .*'torch' has none"),
        (dict(dropout_p=0.1), r"^dropout_p: got 0\.1; .*'torch' has none"),
        (dict(mask=torch.ones(8, 8, dtype=torch.bool), backend="flash_attn"), r"^mask: .*'flash_attn' has none"),
    ):
        with pytest.raises(ValueError, match=message):
            flash(q, k, v, **options)
    for backend in ("flash_attn", "torch:FA3", "torch:FA4"):
        with pytest.raises(RuntimeError, match=r"needs a CUDA device, .*\bcpu\b"):
            flash(q, k, v, backend=backend)


def test_registry(tmp_path, monkeypatch):
    kernels.register("halves", lambda q, k, v, *, causal=False, scale=None, mask=None: q / 2)
    assert "halves" in kernels.available() and not kernels.emulates(kernels.get("halves"))
    assert kernels.emulates(kernels.get("tiled"))
    for name, fn, message in (("tiled", print, "name"), ("", print, "name"), ("x", 3, "fn")):
        with pytest.raises(ValueError, match=f"{message}: got"):
            kernels.register(name, fn)
    with pytest.raises(ValueError, match="kernel: got 'nope'; accepted are reference"):
        kernels.get("nope")
    assert kernels.get("fa_lib.kernels:tiled") is tiled
    (tmp_path / "broken_file.py").write_text("def f(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name, message in (
        ("no_such_module:f", "'no_such_module:f'; it cannot be had: ModuleNotFoundError"),
        ("fa_lib:nothing", "has no attribute 'nothing'"), ("fa_lib:kernels", "a module; accepted is a function"),
        ("broken_file:f", "it cannot be had: .*SyntaxError"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            kernels.get(name)


BAD = [
    ("q", dict(q=(1, 2, 0, 8)), "q: got shape"),
    ("k", dict(k=(1, 2, 5, 9)), "v: got shape|k: got head_dim 9"),
    ("head_dim", dict(k=(1, 2, 5, 9), v=(1, 2, 5, 9)), "k: got head_dim 9; accepted is q's, 8"),
    ("heads", dict(q=(1, 3, 4, 8)), r"^k: got 2 heads; .*\bq's 3\b"),
    ("batch", dict(q=(2, 2, 4, 8)), "k: got shape"),
    ("v", dict(v=(1, 2, 6, 8)), "v: got shape"),
    ("empty keys", dict(k=(1, 2, 0, 8), v=(1, 2, 0, 8)), "k: got shape"),
    ("one dimension", dict(q=(8,)), "q: got torch.float64 of shape"),
]


@pytest.mark.parametrize("name, shapes, message", BAD, ids=[b[0] for b in BAD])
def test_shapes_that_do_not_fit_are_refused(name, shapes, message):
    shapes = dict(q=(1, 2, 4, 8), k=(1, 2, 5, 8), v=(1, 2, 5, 8)) | shapes
    tensors = [torch.zeros(shapes[x], dtype=torch.float64) for x in "qkv"]
    for call in (
        lambda: reference(*tensors, precision=EXACT),
        lambda: tiled(*tensors, tiling=Tiling(2, 2), precision=EXACT),
        lambda: flash(*tensors),
        lambda: golden(*tensors, inputs=FP64),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_other_bad_arguments_are_refused():
    q, k, v = draw("normal", 6, (1, 1, 4, 8))
    call = dict(tiling=Tiling(2, 2), precision=EXACT)
    for options, message in (
        (dict(mask=torch.ones(4, 5, dtype=torch.bool)), "mask: got shape"),
        (dict(mask=torch.ones(4, 4, dtype=torch.int64)), "mask: got torch.int64"),
        (dict(scale=math.inf), "scale: got inf"),
        (dict(softcap=-1.0), "softcap: got -1.0"),
        (dict(window=(1, -2)), r"window: got \(1, -2\)"),
        (dict(dropout_p=0.1), "dropout_p: got 0.1"),
        (dict(dropout_p=1.0, keep=torch.ones(4, 4, dtype=torch.bool)), "dropout_p: got 1.0"),
        (dict(dropout_p=0.1, keep=torch.ones(4, 4)), "keep: got torch.float32.*accepted is a boolean"),
    ):
        with pytest.raises(ValueError, match=message):
            tiled(q, k, v, **call | options)
    for tensors, message in (((q, k.float(), v), "k: got torch.float32"), ((q.long(), k, v), "q: got torch.int64")):
        with pytest.raises(ValueError, match=message):
            tiled(*tensors, **call)
    for sizes in ((0, 2), (2, 0)):
        with pytest.raises(ValueError, match="block_(q|kv): got"):
            Tiling(*sizes)


def test_golden_refuses_what_is_not_finite_unless_asked():
    q, k, v = draw("normal", 7, (1, 1, 4, 8))
    v[0, 0, 2, 3] = math.nan
    with pytest.raises(ValueError, match=r"^v: 1 values are NaN"):
        golden(q, k, v, inputs=FP64)
    found = deviation(golden(q, k, v, inputs=FP64, allow_nonfinite=True), torch.zeros(1, 1, 4, 8))
    assert found.nonfinite == 4 and math.isnan(found.max)


MEMORY = """
import resource
from fa_lib import BF16, Precision, Tiling, draw, kernels
call = dict(tiling=Tiling(128, 512), precision=Precision.kernel(BF16))
kernels.tiled(*draw("normal", 0, (1, 1, 1024, 64)), **call)
q, k, v = draw("normal", 0, (1, 1, 4096, 64))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
kernels.tiled(q, k, v, **call)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux only")
def test_memory_grows_with_the_tile_and_not_with_n_squared():
    """One S of N = 4096 in float64 would be 134 MB; the inputs, rounded, and the output are 2 MB each."""
    peak = subprocess.run([sys.executable, "-c", MEMORY], cwd=ROOT, capture_output=True, text=True, check=True)
    assert float(peak.stdout) < 60


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_gradients_for_a_given_dO_have_torchs_bits(dtype):
    q, k, v = (x.to(dtype).requires_grad_() for x in draw("normal", 0, (2, 2, 97, 64)))
    dO = draw("outliers", 1, q.shape)[0].to(dtype)
    dO[0, 0, 0], dO[0, 0, 1] = 0.0, -0.0
    o = flash(q * 40, k, v)
    theirs = torch.autograd.grad(o, (q, k, v), dO, retain_graph=True)
    with torch.no_grad():
        found = gradients(o, (q, k, v), dO)
    for ours, due in zip(found, theirs):
        assert ours.view(torch.uint8).equal(due.view(torch.uint8))


TILED = dict(fn=kernels.tiled, tiling=Tiling(300, 64), algorithm="fa1")
EMULATED = {
    "unfused": lambda fmt: dict(fn=kernels.reference, precision=Precision.materialized(fmt)),
    "stepwise": lambda fmt: TILED | dict(precision=Precision.uniform(fmt)),
}


def run(fn, tensors, dO, **options):
    tensors = [x.detach().requires_grad_() for x in tensors]
    o = fn(*tensors, **options)
    return o.detach(), *torch.autograd.grad(o, tensors, dO.to(o.dtype))


@pytest.mark.parametrize("name", EMULATED)
@pytest.mark.parametrize("fmt", [BF16, FP16], ids=str)
@pytest.mark.parametrize("distribution", ["uniform", "normal"])
def test_they_are_what_is_emulated(name, fmt, distribution):
    tensors = [x.to(fmt.dtype) for x in draw(distribution, seed=0, shape=(2, 300, 32))]
    dO = torch.randn(2, 300, 32, generator=torch.Generator().manual_seed(1)).to(fmt.dtype)
    emulated = EMULATED[name](fmt)
    theirs = run(emulated.pop("fn"), tensors, dO, **emulated)
    ours = run(kernels.get(name), tensors, dO)
    exact = run(kernels.golden, [x.double() for x in tensors], dO, inputs=FP64)
    for tensor, a, b, due in zip(("o", "dq", "dk", "dv"), ours, theirs, exact):
        if tensor == "o":  # in gradients, one delta rounded otherwise moves a whole row
            assert (a == b).double().mean() > 0.98
        # torch's gradient of a scaled product multiplies by the scale in a rounding of its own
        twice = name == "unfused" and tensor in ("dq", "dk")
        assert deviation(a, due).rmse < (1.15 if twice else 1.03) * deviation(b, due).rmse, tensor


@pytest.mark.slow
def test_the_gradients_of_stepwise_in_fp64_are_those_of_differences():
    q, k, v = (torch.randn(1, h, 19, 4).double().requires_grad_() for h in (4, 2, 2))
    torch.autograd.gradcheck(lambda *x: kernels.stepwise(*x, block_kv=8), (q, k, v))


def test_what_stepwise_lacks_is_named():
    q = torch.randn(1, 1, 4, 8)
    with pytest.raises(ValueError, match=r"^causal: got True; .*'stepwise' has none"):
        kernels.stepwise(q, q, q, causal=True)
    with pytest.raises(ValueError, match=r"^mask: got .*; .*'stepwise' has none"):
        kernels.stepwise(q, q, q, mask=torch.ones(4, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match="head_dim"):
        kernels.unfused(q, q[..., :4], q)
