"""ONNX Runtime on CPU: the ONNX operator Attention, and its own MultiHeadAttention and GroupQueryAttention.

Each call runs a model of that one operator. Arrays go in and out by DLPack, which has BF16.
"""

from functools import cache

import torch

from attention_gallery.adapters import accepts, packed, queries_at_a_time, repeated, seen, unpacked

CONTRIBUTED = "com.microsoft"  # the domain of ONNX Runtime's own operators
THREADS = 2


@cache
def _session(op, domain, inputs, outputs, attributes):
    """Make a session that runs a model of one operator.

    Args:
        inputs: (name, type) of each, of onnx.TensorProto's types; "" as name where it is left out.
        outputs: names, of the first input's type.
        attributes: (name, value) of each.
    """
    import onnx
    import onnxruntime

    node = onnx.helper.make_node(op, [name for name, _ in inputs], outputs, domain=domain, **dict(attributes))
    graph_inputs = [onnx.helper.make_tensor_value_info(name, kind, None) for name, kind in inputs if name]
    graph_outputs = [onnx.helper.make_tensor_value_info(name, inputs[0][1], None) for name in outputs]
    graph = onnx.helper.make_graph([node], op, graph_inputs, graph_outputs)
    opsets = [onnx.helper.make_opsetid("", 23), onnx.helper.make_opsetid(CONTRIBUTED, 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=11)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = THREADS, 3  # 3: errors alone
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _bytes(x):
    """Prepare a tensor for DLPack; ONNX Runtime takes booleans as bytes."""
    x = x.detach().contiguous()
    return x.view(torch.uint8) if x.dtype == torch.bool else x


def _run(op, domain, tensors, attributes, outputs=("o",)):
    """Run one operator and copy its first output. tensors: (name, tensor) of each input, ("", None) where left out."""
    from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidGraph, NotImplemented, OrtValue

    types = {torch.float32: 1, torch.float16: 10, torch.bfloat16: 16, torch.float64: 11, torch.int32: 6, torch.bool: 9}
    inputs = tuple((name, types[x.dtype] if name else 0) for name, x in tensors)
    try:
        session = _session(op, domain, inputs, outputs, attributes)
    except (Fail, InvalidGraph, NotImplemented) as error:
        dtype = f"{tensors[0][1].dtype}".removeprefix("torch.")
        raise NotImplementedError(f"ONNX Runtime has no {op} in {dtype} on CPU: {error}") from error
    feed = {name: OrtValue.from_dlpack(_bytes(x).__dlpack__(), x.dtype == torch.bool) for name, x in tensors if name}
    o = session._sess.run_with_ort_values(feed, list(outputs), None)[0]
    return torch.from_dlpack(o.to_dlpack()).clone()


@accepts()
def onnx_attention(q, k, v, causal=False, scale=None, mask=None):
    """Run the operator Attention of ONNX (opset 23), causal as a boolean mask: its own is_causal aligns top-left."""
    mask = seen(q, k, causal, mask)
    tensors = (("q", q), ("k", k), ("v", v), *([] if mask is None else [("mask", mask)]))
    return _run("Attention", "", tensors, (("scale", scale),))


@accepts(top_left="MultiHeadAttention")
def onnx_multi_head(q, k, v, causal=False, scale=None):
    """Run ONNX Runtime's MultiHeadAttention, which has its own flash attention for FP32 on CPU."""
    heads, (k, v) = q.shape[1], repeated(q, k, v)
    attributes = (("num_heads", heads), ("scale", scale), ("unidirectional", int(causal)))
    tensors = tuple((name, packed(x)) for name, x in (("q", q), ("k", k), ("v", v)))
    return unpacked(_run("MultiHeadAttention", CONTRIBUTED, tensors, attributes), heads)


def _grouped(q, k, v, scale, past):
    """Run GroupQueryAttention. The first `past` keys are its cache, and the others belong to the queries: each query
    sees the keys up to its own."""
    if q.shape[3] != v.shape[3]:
        raise NotImplementedError(f"GroupQueryAttention needs one head_dim; q has {q.shape[3]} and v {v.shape[3]}")
    batch, heads, n_kv = q.shape[0], q.shape[1], k.shape[2]
    new = [("q", packed(q)), ("k", packed(k[:, :, past:])), ("v", packed(v[:, :, past:]))]
    cache = [("past_k", k[:, :, :past]), ("past_v", v[:, :, :past])]
    lengths = [
        ("last", torch.full((batch,), n_kv - 1, dtype=torch.int32)),
        ("total", torch.tensor([n_kv], dtype=torch.int32)),
    ]
    tensors = (*new, *(cache if past else [("", None)] * 2), *lengths)
    attributes = (("num_heads", heads), ("kv_num_heads", k.shape[1]), ("scale", scale))
    return unpacked(_run("GroupQueryAttention", CONTRIBUTED, tensors, attributes, ("o", "all_k", "all_v")), heads)


@accepts()
def onnx_group_query(q, k, v, causal=False, scale=None):
    """Run ONNX Runtime's GroupQueryAttention on all queries in one call, as it reads a prompt; it is always causal.

    Raises:
        NotImplementedError: not causal, more queries than keys, several queries with a cache and a batch above 1, or V
            of another head_dim.
    """
    if not causal or q.shape[2] > k.shape[2]:
        raise NotImplementedError("GroupQueryAttention is always causal; it needs causal=True, and n_q <= n_kv")
    if q.shape[2] < k.shape[2] and q.shape[2] > 1 and q.shape[0] > 1:
        raise NotImplementedError("GroupQueryAttention with a cache and several queries needs a batch of 1")
    return _grouped(q, k, v, scale, k.shape[2] - q.shape[2])


@accepts()
def onnx_group_query_decode(q, k, v, causal=False, scale=None):
    """Run ONNX Runtime's GroupQueryAttention on one query in each call, all keys but the last one as the cache.

    Raises:
        NotImplementedError: a query would see no key, or V has another head_dim.
    """

    def decode(q, k, v, causal, scale):
        return _grouped(q, k, v, scale, k.shape[2] - 1)

    return queries_at_a_time(decode)(q, k, v, causal, scale)
