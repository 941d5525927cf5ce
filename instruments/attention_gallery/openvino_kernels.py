"""OpenVINO's CPU plugin: its operation ScaledDotProductAttention, in a model of that one operation."""

from functools import cache

import numpy as np
import torch

from attention_gallery.adapters import accepts, bf16_bits, from_bf16_bits, in_4_dims, repeated, seen

NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
THREADS = 2


def computes_fp16_in_bf16() -> bool:
    """Return whether this processor has instructions for BF16 and none for FP16: a hint of FP16 then means BF16."""
    import openvino

    formats = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return "BF16" in formats and "FP16" not in formats


@cache
def _model(kind, precision, masked, scale, head_dims):
    """Compile the model. kind, precision: names of NAMES, of its tensors and of INFERENCE_PRECISION_HINT; head_dims: of
    q, k and v."""
    import openvino
    from openvino import opset13

    dtype = getattr(openvino.Type, kind)
    inputs = [opset13.parameter(openvino.PartialShape([-1, -1, -1, d]), dtype) for d in head_dims]
    if masked:
        inputs.append(opset13.parameter(openvino.PartialShape([-1] * 4), openvino.Type.boolean))
        mask = inputs[-1]
    else:  # scale is the fifth input, so that a mask has to be given: one 0 for all scores
        mask = opset13.convert(opset13.constant(np.zeros((1, 1), np.float32)), dtype)
    factor = opset13.convert(opset13.constant(np.array(scale, np.float32)), dtype)
    o = opset13.scaled_dot_product_attention(*inputs[:3], attention_mask=mask, scale=factor, causal=False)
    model = openvino.Model([opset13.result(o)], inputs, "attention")  # pyright: ignore
    config = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": THREADS}
    return openvino.Core().compile_model(model, "CPU", config)


def _openvino_tensor(x):
    """Copy a tensor into one of OpenVINO's; numpy has no BF16, so its bits go as FP16 and are labelled BF16."""
    import openvino

    if x.dtype == torch.bfloat16:
        return openvino.Tensor(bf16_bits(x).view(np.float16), openvino.Shape(list(x.shape)), openvino.Type.bf16)
    return openvino.Tensor(x.detach().contiguous().numpy())


def _kernel(kind):
    """Make a kernel that runs a model in `kind` of NAMES, "" for the inputs' format, with the inputs' format as
    INFERENCE_PRECISION_HINT."""

    @accepts("OpenVINO", (*NAMES,), added=False)
    def kernel(q, k, v, causal=False, scale=None, mask=None):
        return _call(q, k, v, seen(q, k, causal, mask), scale, kind)

    return kernel


def _call(q, k, v, mask, scale, kind):
    precision, (k, v) = NAMES[q.dtype], repeated(q, k, v)
    dims = (q.shape[3], k.shape[3], v.shape[3])
    model = _model(kind or precision, precision, mask is not None, scale, dims)
    tensors = [x.float() if kind == "f32" else x for x in (q, k, v)] + ([] if mask is None else [in_4_dims(mask)])
    request = model.create_infer_request()
    request.infer(dict(enumerate(map(_openvino_tensor, tensors))))
    out = request.get_output_tensor(0)
    if out.element_type.get_type_name() == "bf16":
        return from_bf16_bits(out.data.view(np.int16)).reshape(*q.shape[:3], dims[2]).to(q.dtype)
    return torch.from_numpy(np.array(out.data)).to(q.dtype)


openvino_sdpa, openvino_sdpa_fp32_model = _kernel(""), _kernel("f32")
