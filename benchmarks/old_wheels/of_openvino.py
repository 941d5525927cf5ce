"""OpenVINO on the calls of public reports: python of_openvino.py IN.npz OUT.npz."""

import sys

import numpy as np
import openvino
from openvino import opset13

given, out = sys.argv[1:]
feed = [np.load(given)[name] for name in "qkv"]
inputs = [opset13.parameter(list(x.shape), np.float32) for x in feed]
model = openvino.Model([opset13.scaled_dot_product_attention(*inputs, causal=False)], inputs, "attention")
compiled = openvino.Core().compile_model(model, "CPU")  # with its own choice of precision
np.savez(out, o=compiled(feed)[0])
