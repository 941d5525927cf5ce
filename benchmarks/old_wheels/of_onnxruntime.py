"""ONNX Runtime on the calls of public reports: python of_onnxruntime.py IN.npz OUT.npz."""

import sys

import numpy as np
import onnx
import onnxruntime

given, out = sys.argv[1:]
feed = {name: np.load(given)[name] for name in "qkv"}
node = onnx.helper.make_node("Attention", [*feed], ["o"], is_causal=1)
values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in (*feed, "o")]
graph = onnx.helper.make_graph([node], "attention", values[:3], values[3:])
model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)], ir_version=11)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
np.savez(out, o=session.run(None, feed)[0])
