"""`fa-lib explain`: what an output is, from its tensors alone. Each case is a public report, or a defect like one."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa
from typer.testing import CliRunner

import fa_lib
from fa_lib import Precision, Tiling, kernels
from fa_lib.check.dialect.attention import Dialect, Reader, Unfit, attend
from fa_lib.check.dialect.conventions import CONVENTIONS
from fa_lib.check.dialect.evidence import Evidence
from fa_lib.check.explain.explain_words import lines
from fa_lib.check.explain.explanation import Verdict, explanation
from fa_lib.commands.cli import app
from fa_lib.numerics.formats import BF16, E4M3, FP16, TF32


def draw(*shape, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator).to(dtype) for _ in range(3)]


def turned(x):
    return x.transpose(1, 2)


Q, K, V = draw(1, 8, 256, 64)
FEW = draw(1, 8, 32, 64, seed=1)[0]
SHARED = draw(1, 2, 256, 64, seed=2)
WIDE = draw(1, 8, 256, 64, dtype=torch.float32)
HALF = [x.half() for x in WIDE]
BSHD = draw(2, 82, 8, 64, dtype=torch.float32)
BOOLEAN = torch.rand(256, 256, generator=torch.Generator().manual_seed(3)) > 0.5
ALIBI = -0.1 * (torch.arange(256)[None] - torch.arange(256)[:, None]).abs()[None, None].double()
CENTRED = V - V.mean(2, keepdim=True)
SINKS = torch.linspace(0, 4, 8)


def tf32(*tensors):
    return [TF32(x.double()).float() for x in tensors]


def fp8(x):
    """One scale a head."""
    scale = x.abs().amax((-1, -2), keepdim=True) / 448
    return E4M3((x / scale).double()).float() * scale


def in_place(o, at, values):
    o = o.clone()
    o[at] = values
    return o


def dim_0():
    q, k, v = (torch.randn(4, 4, n, 8, generator=torch.Generator().manual_seed(n)) for n in (2, 3, 4))
    k, v = k, v[:, :, :3]
    return q, k, v, torch.softmax(q @ k.mT / 8**0.5, 0) @ v


def dropped():
    torch.manual_seed(0)
    return sdpa(Q, K, V, dropout_p=0.2)


def fp16_carried():
    precision = replace(Precision.kernel(FP16), accumulator=FP16, row_sum=FP16)
    q, k, v = (x.half() for x in draw(1, 4, 64, 64, dtype=torch.float32))
    k, v = (torch.rand(1, 4, 4096, 64, generator=torch.Generator().manual_seed(i)).half() for i in (1, 2))
    return q, k, v, kernels.tiled(q, k, v, tiling=Tiling(64, 32), precision=precision)


CASES = {  # what was reported -> (q, k, v, o, what the caller believes), verdict, its dialect
    "less exact than eager, pytorch 151098": lambda: (*(x[:, :, :64] for x in WIDE), kernels.unfused(
        *(x[:, :, :64] for x in WIDE))),
    "outputs near 0, HipKittens 64": lambda: (Q, K, CENTRED, sdpa(Q, K, CENTRED)),
    "right in BF16": lambda: (Q, K, V, sdpa(Q, K, V)),
    "eager in BF16, pytorch 119188": lambda: (Q, K, V, kernels.unfused(Q, K, V)),
    "large inputs, attention-gym 131": lambda: tuple(10 * x for x in (Q, K, V)) + (sdpa(10 * Q, 10 * K, 10 * V),),
    "one query with a mask, pytorch 163588": lambda: (
        FEW[:, :1, :1], K[:, :1], V[:, :1], sdpa(FEW[:, :1, :1], K[:, :1], V[:, :1], attn_mask=BOOLEAN[:1]),
        dict(mask=BOOLEAN[:1])),
    "fuzzer's alarm, pytorch 179578": lambda: (*(x[:, :1] for x in WIDE), sdpa(*(x[:, :1] for x in WIDE))),
    "top-left, onnxruntime 29020": lambda: (FEW, K, V, sdpa(FEW, K, V, is_causal=True), dict(causal=True)),
    "bottom-right, mlx 2835": lambda: (
        *(x.half() for x in (FEW, K, V)), kernels.flash(*(x.half() for x in (FEW, K, V)), causal=True)),
    "other polarity, LLMs-from-scratch 1061": lambda: (Q, K, V, sdpa(Q, K, V, attn_mask=~BOOLEAN), dict(mask=BOOLEAN)),
    "layout, mlx 3585": lambda: (*BSHD, turned(sdpa(*map(turned, BSHD)))),
    "layout of the output": lambda: (Q, K, V, turned(sdpa(Q, K, V))),
    "layout, scale and a causal mask": lambda: (
        *BSHD, turned(sdpa(*map(turned, BSHD), scale=1 / 64, is_causal=True)), dict(scale=1 / 8)),
    "key heads interleaved": lambda: (Q, *SHARED[1:], sdpa(Q, *(x.repeat(1, 4, 1, 1) for x in SHARED[1:]))),
    "ALiBi that nobody told": lambda: (Q, K, V, kernels.golden(
        Q, K, V, inputs=BF16, mask=2.0 ** -torch.arange(1, 9).double()[:, None, None] * ALIBI[0] * 10).bfloat16()),
    "the future seen, transformers 48748": lambda: (Q, K, V, sdpa(Q, K, V), dict(causal=True)),
    "the mask ignored": lambda: (Q, K, V, sdpa(Q, K, V), dict(mask=BOOLEAN)),
    "softmax over the batch, pytorch 196468": dim_0,
    "sinks in one path, mlx 3452": lambda: (Q, K, V, sdpa(Q, K, V), dict(sinks=SINKS)),
    "softcap dropped": lambda: (Q, K, V, sdpa(Q, K, V), dict(softcap=1.0)),
    "another last stride, pytorch 187506": lambda: (Q, K, V, sdpa(Q, K.mT.reshape(K.shape), V)),
    "the strides of another tensor, FlagGems 5896": lambda: (Q, K, V, sdpa(Q, turned(K.reshape(1, 256, 8, 64)), V)),
    "a key lost at 1 mod 32, pytorch 191937": lambda: (
        Q, K[:, :, :225], V[:, :, :225], sdpa(Q, K[:, :, :224], V[:, :, :224])),
    "scale twice": lambda: (Q, K, V, sdpa(Q, K, V, scale=1 / 64), dict(scale=1 / 8)),
    "the last keys lost": lambda: (Q, K, V, sdpa(Q, K[:, :, :200], V[:, :, :200])),
    "no features, pytorch 184330": lambda: (Q[..., :0], K[..., :0], V, torch.zeros_like(V)),
    "bits multiplied, triton 11584": lambda: (
        Q, K, V, (Q.view(torch.int16).double() @ K.view(torch.int16).double().mT @ V.double()).bfloat16()),
    "a product that is none, openvino 38256": lambda: (
        Q, K, V, sdpa(Q, torch.cat([K[..., 1::2], K[..., 0::2]], -1), V)),
    "zeros pass, KernelBench 165": lambda: (Q, K, V, torch.zeros_like(V)),
    "times 1.25": lambda: (Q, K, V, sdpa(Q, K, V) * 1.25),
    "NaN though all see keys, pytorch 127055": lambda: (
        Q, K, V, in_place(sdpa(Q, K, V), (0, slice(None), slice(100, 110)), math.nan)),
    "NaN hidden, pytorch 141128": lambda: (in_place(Q, (0, 0, 5), math.nan), K, V, sdpa(Q, K, V)),
    "first rows causal": lambda: (
        Q, K, V, in_place(sdpa(Q, K, V), (0, slice(None), slice(32)), sdpa(Q, K, V, is_causal=True)[0, :, :32])),
    "one head of another tensor": lambda: (Q, K, V, in_place(sdpa(Q, K, V), (0, 3), 0.1 * Q[0, 2])),
    "dropout left on": lambda: (Q, K, V, dropped()),
    "no attention": lambda: (Q, K, V, 0.1 * Q.flip(2)),
    "TF32, triton 5895": lambda: (*WIDE, sdpa(*tf32(*WIDE))),
    "BF16 execution, openvino 35796": lambda: (*WIDE, sdpa(*(x.bfloat16() for x in WIDE)).float()),
    "a softcap of 40,000, openvino 35796": lambda: (
        *(x[..., :64, :] for x in WIDE), kernels.flash(*(x[..., :64, :].bfloat16() for x in WIDE)).float(),
        dict(softcap=40000.0)),
    "correlation says fine, tt-metal 51927": lambda: (*(x.bfloat16() for x in WIDE), sdpa(*map(fp8, WIDE)).bfloat16()),
    "FP16 carried, llama.cpp": fp16_carried,
}  # fmt: skip
RIGHT = ("right in BF16", "eager in BF16, pytorch 119188", "large inputs, attention-gym 131",
         "one query with a mask, pytorch 163588", "fuzzer's alarm, pytorch 179578",
         "less exact than eager, pytorch 151098", "outputs near 0, HipKittens 64")  # fmt: skip
DIALECTS = {
    "top-left, onnxruntime 29020": dict(causal="top_left"),
    "other polarity, LLMs-from-scratch 1061": dict(mask="inverted"), "layout, mlx 3585": dict(layout="all_bshd"),
    "layout of the output": dict(layout="o_bshd"), "key heads interleaved": dict(heads="interleaved"),
    "layout, scale and a causal mask": dict(layout="all_bshd", scale="one_over_d", causal="bottom_right"),
    "ALiBi that nobody told": dict(alibi="falling"),
    "the future seen, transformers 48748": dict(causal="none"), "the mask ignored": dict(mask="ignored"),
    "softmax over the batch, pytorch 196468": dict(softmax="over_batch"),
    "sinks in one path, mlx 3452": dict(sinks="ignored"), "softcap dropped": dict(softcap="ignored"),
    "bottom-right, mlx 2835": dict(causal="bottom_right"),
    "another last stride, pytorch 187506": dict(layout="k_column_major"),
    "the strides of another tensor, FlagGems 5896": dict(layout="k_reshaped"),
    "a key lost at 1 mod 32, pytorch 191937": dict(keys=(0, 224)),
    "scale twice": dict(scale="one_over_d"), "the last keys lost": dict(keys=(0, 200)),
}  # fmt: skip
CONVENTION = ("top-left", "bottom-right", "other polarity", "layout", "key heads", "ALiBi", "scale twice")
PRECISION = {
    "TF32, triton 5895": "TF32",
    "BF16 execution, openvino 35796": "BF16",
    "a softcap of 40,000, openvino 35796": "BF16",
    "correlation says fine, tt-metal 51927": "FP8_HEAD",
    "FP16 carried, llama.cpp": "FP16",
}


def evidence(name):
    q, k, v, o, *options = CASES[name]()
    return Evidence(q, k, v, o, *options)


@pytest.mark.parametrize("name", CASES)
def test_the_verdict_and_the_cause(name):
    found = explanation(evidence(name))
    if name in RIGHT:
        assert found.verdict == Verdict.ROUNDING and found.dialect == {}
    elif name in PRECISION:
        assert found.verdict == Verdict.PRECISION and found.arithmetic.fmt == PRECISION[name], found
    else:
        assert found.verdict == (Verdict.CONVENTION if name.startswith(CONVENTION) else Verdict.BUG), found
        if name in DIALECTS:
            assert found.dialect == DIALECTS[name]
    assert lines(found)[0].startswith(found.verdict.name)


def test_where_it_is_wrong():
    found = explanation(evidence("first rows causal"))
    assert found.where.rows == ((0, 31),) and found.where.heads == () and found.part == dict(causal="bottom_right")
    assert explanation(evidence("one head of another tensor")).where.heads == ((3, 3),)
    assert explanation(evidence("NaN though all see keys, pytorch 127055")).nan_rows > 0
    assert explanation(evidence("NaN hidden, pytorch 141128")).hidden_nan == 1
    assert explanation(evidence("dropout left on")).dropout == pytest.approx(0.2, abs=0.03)
    assert explanation(evidence("times 1.25")).dialect["factor"] == pytest.approx(1.25, rel=1e-3)


OPTIONS = [{}, dict(causal=True), dict(mask=BOOLEAN), dict(mask=ALIBI), dict(window=(20, 4)), dict(softcap=1.5),
           dict(sinks=SINKS), dict(causal=True, softcap=2.0, scale=0.3, sinks=SINKS)]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS)
def test_the_believed_dialect_is_the_golden_value(options):
    golden = kernels.golden(Q, K, V, inputs=BF16, **options)
    rows = Reader(Evidence(Q, K, V, golden.bfloat16(), options)).rows(Dialect())
    entries, heads, places = rows.places
    due = golden[entries][:, heads][:, :, places]
    assert torch.allclose(attend(rows), due, rtol=1e-12, atol=1e-13)
    again = kernels.golden(rows.q, rows.k, rows.v, inputs=BF16, **rows.options())  # as a call of its own
    assert torch.allclose(again, due, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("causal", [False, True])
def test_every_convention_is_another_output_or_does_not_fit(causal):
    options = dict(causal=causal, window=(20, 4), softcap=1.0, sinks=SINKS, scale=0.3)
    q, k, v = (x[:, :, :64] for x in (torch.cat([Q, FEW[..., :1].expand(1, 8, 32, 64)], 2), K, V))
    call = Evidence(q, k, v, q, options | dict(mask=BOOLEAN[:64, :64]))
    believed = attend(Reader(call).rows(Dialect()))
    for each in CONVENTIONS:
        if each.fits(call) and each.key not in ("heads_reversed", "layout_o_bshd", "layout_o_reshaped"):
            try:
                other = attend(Reader(call).rows(Dialect(**{each.aspect: each.choice})))
            except Unfit:
                continue
            assert other.shape != believed.shape or not torch.allclose(other, believed, rtol=1e-3), each.key


def run(*words):
    return CliRunner().invoke(app, ["explain", *map(str, words)])


def test_a_file_made_with_numpy_alone(tmp_path):
    """Two outputs of one call, in FP32, under the names of PyTorch."""
    path, (q, k, v) = tmp_path / "call.npz", WIDE
    wrong = sdpa(q, k, v)
    np.savez(path, query=q, key=k, value=v, attn_output=wrong, o_ref=sdpa(q, k, v, is_causal=True))
    done = run(path, "--causal", "--json", tmp_path / "found.json", "--exit-code")
    assert done.exit_code == 1, done.output
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["o"]["verdict"], found["o2"]["verdict"]) == ("bug", "rounding")
    assert found["o"]["dialect"] == dict(causal="none")
    assert "BUG: o " in done.output and "ROUNDING: o2 " in done.output and "o2 is nearer" in done.output


def test_it_is_called_in_python_too():
    found = fa_lib.explain(Q, K, V, sdpa(Q, K, V, is_causal=True))
    assert found.verdict == Verdict.CONVENTION and f"{found}".startswith("CONVENTION: o ")
    tensors = (turned(x)[0] for x in (Q, K, V, sdpa(Q, K, V)))  # (sequence, heads, head_dim)
    assert fa_lib.explain(*tensors, layout="bshd").verdict == Verdict.ROUNDING
    with pytest.raises(ValueError, match="^alibi: got True"):
        fa_lib.explain(Q, K, V, Q, alibi=True)


def test_what_no_file_may_lack(tmp_path):
    path = tmp_path / "call.npz"
    np.savez(path, q=WIDE[0], k=WIDE[1], v=WIDE[2])
    done = run(path)
    assert done.exit_code == 2 and "o: it is not in the file" in done.output
    np.savez(path, q=WIDE[0], k=WIDE[1], v=WIDE[2], o=WIDE[0][:, :, :7])
    assert run(path).exit_code == 2
