"""The causes that the gallery names for kernels on a CPU and for cuDNN: one changed step has the kernel's answers."""

import json

import numpy as np
import pytest
import torch

import attention_gallery as gallery
from attention_check.measure.relations.masks import MORE_QUERIES, with_hidden_rows
from attention_check.measure.relations.subject import KernelUnderTest
from attention_gallery import finds
from fa_lib.execution.paths import ROOT
from fa_lib.kernels import golden
from fa_lib.numerics.formats import BF16, FP16, FP32

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
