"""The emulations of shipped kernels against exact arithmetic, without the kernels; torch's gradients; the causes
that the gallery names for kernels on a CPU and for cuDNN; the gallery's words."""

import importlib.util
import json
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import attention_gallery as gallery
from attention_check.checks.relations.masks import MORE_QUERIES, with_hidden_rows
from attention_check.checks.relations.subject import KernelUnderTest
from attention_gallery import finds
from attention_gallery.commands import pages
from fa_lib.execution.paths import ROOT
from fa_lib.kernels import golden
from fa_lib.kernels.inputs import draw
from fa_lib.numerics.formats import BF16, FP16, FP32, FP64

REPRODUCTIONS = {"find_ggml": "xllamacpp", "find_ringattention": "ringattention", "find_pallas_decode": "jax",
                 "find_openvino": "openvino", "find_torch_backward": "torch"}  # fmt: skip


@pytest.mark.parametrize("parts", [1, 3])
def test_without_low_precision_the_emulations_are_attention(parts):
    q, k, v = finds.draw_in_format("normal", 0, FP32, 5, 192, 2)
    exact = golden(q, k, v, inputs=FP32)
    for o in (finds.key_by_key(q, k, v, accumulator=FP64, parts=parts), finds.in_parts(q, k, v, FP32, parts, block=16)):
        assert (o - exact).abs().max() < 64 * FP32.unit_roundoff * v.abs().max()


def test_in_parts_rounds_what_is_not_divided_yet():
    q, k, v = torch.zeros(1, 1, 8), torch.zeros(1, 768, 8), torch.full((1, 768, 8), 1.0)
    v[:, 0] = 2.0  # the sum of a part is 257 and 256 * 2: BF16 makes 256 of 257
    assert set(finds.in_parts(q, k, v, BF16, 3).flatten().tolist()) == {1.0}
    assert set(finds.in_parts(q, k, v, FP32, 3).flatten().tolist()) == {FP32(torch.tensor(769 / 768).double()).item()}
    assert finds.in_parts(q, k, 300 * v, FP16, 1).isinf().all()


def test_up_where_odd_is_nearest_only_where_the_kept_bit_is_one():
    x = 1 + torch.arange(1024, dtype=torch.float64) / 1024  # 3 bits more than BF16 holds
    kept, lost = (x * 128).floor().long() % 2, (x * 1024).long() % 8
    o = finds.up_where_odd(x)
    assert torch.equal(o[kept == 1], BF16(x)[kept == 1] + 0 * o[kept == 1])
    assert torch.equal(o[kept == 0], (x * 128).floor()[kept == 0] / 128)
    assert ((o != BF16(x)) == ((kept == 0) & (lost > 4))).all() and torch.equal(finds.up_where_odd(-x), -o)
    q, k, v = (BF16(each.double()) for each in finds.draw_in_format("normal", 0, BF16, 5, 64, 2))
    exact = golden(q.bfloat16(), k.bfloat16(), v.bfloat16(), inputs=BF16)  # values that BF16 holds are not converted
    assert (finds.in_bf16(q, k, v) - exact).abs().max() < 3 * BF16.unit_roundoff * v.abs().max()
    q, k, v = finds.draw_in_format("uniform", 0, FP16, 16, 512, 2)
    exact = golden(q, k, v, inputs=FP16)
    ours, nearest = ((finds.in_bf16(q, k, v, into) / exact - 1).mean() for into in (finds.up_where_odd, BF16))
    assert ours < -5e-4 and abs(nearest) < abs(ours) / 5  # cut off, the output is too small


@pytest.mark.parametrize("n, queries, least", [(64, 2048, 0.9), (1024, 1024, 0.98)])
def test_torch_keeps_the_sums_of_its_gradients_in_bf16(n, queries, least):
    """Blocks of 256 rows and of 512 keys: its gradients are those of an emulation that rounds after each block, and not
    those of sums in FP32."""
    rows = pd.DataFrame(finds.torch_backward(n=n, queries=queries, distribution="normal", seed=0))
    rows = rows.set_index(["tensor", "who"])
    for tensor in ("dq", "dk", "dv"):
        kernel, emulated, changed = (rows.loc[(tensor, who)] for who in ("kernel", "emulated", "changed"))
        assert emulated.alike > 0.98 and emulated.same > least and (kernel.alike, kernel.same) == (pytest.approx(1), 1)
        assert kernel.relative == pytest.approx(emulated.relative, rel=0.02)
        if tensor != "dq":
            assert changed.same < 0.7
        if tensor != "dq" and queries == 2048:  # of eight blocks
            assert changed.alike < 0.6 and kernel.relative > 1.5 * changed.relative


def test_torchs_dq_has_the_error_of_a_delta_from_the_stored_o():
    """On uniform inputs dP and delta nearly cancel: FP64 everywhere, with delta from an O in BF16, has dQ's error."""
    q, k, v = (x.double() for x in finds.draw_in_format("uniform", 0, BF16, 1024, 1024, 1))
    dO = BF16(draw("normal", 1000, q.shape)[0])
    x = [each.bfloat16().requires_grad_() for each in (q, k, v)]
    (kernel,) = torch.autograd.grad(scaled_dot_product_attention(*x), x[:1], dO.bfloat16())
    P, dP = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1), dO @ v.mT  # (batch, heads, n, n)

    def dq(o):
        return P * (dP - (dO * o).sum(-1, keepdim=True)) @ k * q.shape[-1] ** -0.5

    errors = [(each.double() - dq(P @ v)).flatten() for each in (kernel, dq(BF16(P @ v)))]
    assert errors[0].norm() == pytest.approx(errors[1].norm().item(), rel=0.1)
    assert errors[0].norm() > 0.1 * dq(P @ v).norm() and torch.corrcoef(torch.stack(errors))[0, 1] > 0.9


def test_the_site_has_a_page_for_each_kernel_that_ran_with_its_findings(tmp_path):
    pages.write(tmp_path)
    tables = pd.concat([pages.committed("verdicts"), pages.committed("modelled")])
    ran = {*tables.key[tables.verdict != "cannot_run"]}
    written = {path.stem: path.read_text() for path in tmp_path.glob("*.md")}
    assert written.keys() == ran == {*pages.judgements()}
    assert all(text.count("\n- ") >= 2 for text in written.values())


def test_the_sites_table_has_every_kernel_of_every_device():
    shown = re.findall(r"^\| [^|]*: (\w+) \|", pages.judged(), re.MULTILINE)
    on_gpu = pd.read_csv(RECORDED.parent / "data" / "results" / "14_gallery.csv").key
    assert shown == [*pages.committed("verdicts").key, *pages.committed("modelled").key, *on_gpu]


def test_the_numbers_of_a_find_are_means_by_call():
    who = [("kernel", 54.0, 1), ("emulated", 54.1, 0.9996), ("changed", 0.1, 0)]
    columns = ["n", "who", "times_max", "alike"]
    rows = pd.DataFrame([(n, *each) for n in (64, 128) for each in who], columns=columns).assign(relative=0.1)
    assert "| 128 | 54 | 54 | 0.1 | 1.0e-01 | 0.9996 |" in pages.numbers_of(rows, ["n"])
    for find in finds.FINDS:
        assert f"<!-- the site inserts: numbers {find} -->" in (ROOT / f"docs/gallery/find_{find}.md").read_text()
        assert pages.numbers(find).count("\n") > 4


@pytest.mark.slow
@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_a_reproduction_prints_what_its_page_says(name):
    """The numbers' last digit may depend on the processor: each is within a fifth."""
    if importlib.util.find_spec(REPRODUCTIONS[name]) is None:
        pytest.skip(f"{REPRODUCTIONS[name]} is not installed: `make gallery` installs it")
    text = (ROOT / "docs" / "gallery" / f"{name}.md").read_text()
    script, printed = (re.search(f"```{kind}\n(.*?)```", text, re.S)[1] for kind in ("python", "text"))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    number = r"\d\.\de-\d\d"
    assert re.sub(number, "", done.stdout) == re.sub(number, "", printed)
    pairs = list(zip(re.findall(number, done.stdout), re.findall(number, printed)))
    assert pairs and all(abs(float(here) / float(there) - 1) < 0.2 for here, there in pairs)


RECORDED = ROOT / "data" / "recorded" / "NVIDIA_H100_80GB_HBM3" / "gallery"


def hidden_rows(fmt):
    """Q of the rows that see no key, K and V, of the relation that finds them."""
    q, k, v, blind, _ = with_hidden_rows(KernelUnderTest(lambda *tensors: tensors[0], fmt), MORE_QUERIES, 40)
    return q[:, :, blind], k, v


@pytest.mark.parametrize("key, fmt", [("torch_cudnn", BF16), ("jax_cudnn", FP16)])
def test_cudnn_answers_a_row_without_keys_as_if_it_had_no_mask(key, fmt):
    """Both add a finite number to every score of that row, which softmax does not see: -65504 and, in FP16, -32768."""
    findings = json.loads((RECORDED / f"{key}.json").read_text())["findings"]
    (found,) = (each for each in findings if each["what"] == "relation" and each["severity"] == "fails")
    assert (found["where"]["relation"], found["where"]["fmt"]) == ("hidden_row", fmt.name)
    without_mask = golden(*hidden_rows(fmt), inputs=fmt).abs().max().item()
    assert found["number"] == pytest.approx(without_mask, rel=2 * fmt.unit_roundoff)


def test_splash_averages_v_over_the_first_tile_in_a_row_without_keys():
    pytest.importorskip("jax")
    for n in (200, 256):
        q, k, v, blind, _ = with_hidden_rows(KernelUnderTest(gallery.pallas_splash, BF16, n=n), MORE_QUERIES, 40)
        o = gallery.pallas_splash(q, k, v, causal=True)[:, :, blind].double()
        first, whole = ((v.double()[:, :, :m].mean(2, keepdim=True) - o).abs().max() for m in (128, n))
        assert first < 2 * BF16.unit_roundoff * o.abs().max() and whole > 0.1


def test_flash_attention_jax_counts_keys_twice_beyond_its_tile():
    flash = pytest.importorskip("flash_attention_jax")
    q, k, v = finds.draw_in_format("uniform", 0, FP32, 1024, 1500, 1)

    def attention(*tensors):
        return torch.tensor(np.asarray(flash.flash_attention(*(x.numpy() for x in tensors), np.ones((1, 1500), bool))))

    P = (q.double() @ k.double().mT / 8).softmax(-1)
    P[..., 1500 - 1024 : 1024] *= 2  # the second slice of 1,024 keys begins at key 476
    twice = P / P.sum(-1, keepdim=True) @ v.double()
    o = attention(q, k, v)
    assert (o - twice).abs().max() < 1e-6 and (o - golden(q, k, v, inputs=FP32)).abs().max() > 1e-3
    assert attention(k, k, v).shape[2] == 2048  # rows of Q, of which there are 1,500


@pytest.mark.parametrize("shape", [[1, 1024, 1, 64], [-1, -1, -1, 64]])
def test_openvino_converts_by_its_formula_where_shapes_are_dynamic(shape):
    """One key: the output is V, converted. With static shapes the same model rounds to nearest."""
    openvino = pytest.importorskip("openvino")
    from openvino import opset13

    inputs = [opset13.parameter(shape, openvino.Type.f16) for _ in range(3)]
    model = openvino.Model([opset13.scaled_dot_product_attention(*inputs, causal=False)], inputs)
    compiled = openvino.Core().compile_model(model, "CPU")
    if compiled.get_property("INFERENCE_PRECISION_HINT") != openvino.Type.bf16:
        pytest.skip("OpenVINO computes in FP32 on this processor, which has no instructions for BF16")
    v = (1 + np.arange(1 << 16) / (1 << 16)).astype(np.float16).reshape(1, 1024, 1, 64)
    due = (finds.up_where_odd if shape[0] < 0 else BF16)(torch.from_numpy(v).double())
    assert torch.equal(torch.tensor(compiled([v, v, v])[0]).double(), due)
