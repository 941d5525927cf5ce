"""ONNX Runtime on CPU: the ONNX operator Attention, and its own MultiHeadAttention and GroupQueryAttention.

Each call runs a model of that one operator. Arrays go in and out by DLPack, which has BF16.
"""

from functools import cache

import torch

from attention_gallery.adapters import accepts, dtype_name, lengths, packed, repeated, seen, unpacked

CONTRIBUTED = "com.microsoft"  # the domain of ONNX Runtime's own operators
THREADS = 2


@cache
def _session(op, domain, inputs, outputs, attributes):
    """Make a session that runs a model of one operator. inputs: (name, type) of each, of onnx.TensorProto's types; ""
    as name where it is left out. outputs: names, of the first input's type. attributes: (name, value) of each."""
    import onnxruntime
    from onnx import helper

    node = helper.make_node(op, [name for name, _ in inputs], outputs, domain=domain, **dict(attributes))
    graph_inputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in inputs if name]
    graph_outputs = [helper.make_tensor_value_info(name, inputs[0][1], None) for name in outputs]
    graph = helper.make_graph([node], op, graph_inputs, graph_outputs)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(CONTRIBUTED, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=11)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = THREADS, 3  # 3: errors alone
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _run(op, domain, tensors, outputs=("o",), **attributes):
    """Run one operator and copy its first output. tensors: name -> tensor of each input; None where it is left out."""
    from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidGraph, NotImplemented, OrtValue

    types = {torch.float32: 1, torch.float16: 10, torch.bfloat16: 16, torch.float64: 11, torch.int32: 6, torch.bool: 9}
    inputs = tuple(("", 0) if x is None else (name, types[x.dtype]) for name, x in tensors.items())
    try:
        session = _session(op, domain, inputs, outputs, (*attributes.items(),))
    except (Fail, InvalidGraph, NotImplemented) as error:
        has = f"ONNX Runtime has no {op} in {dtype_name(tensors['q'].dtype)} on CPU"
        raise NotImplementedError(f"{has}: {error}") from error
    feed = {}
    for name, x in ((name, x.detach().contiguous()) for name, x in tensors.items() if x is not None):
        boolean = x.dtype == torch.bool  # ONNX Runtime takes booleans as bytes
        feed[name] = OrtValue.from_dlpack((x.view(torch.uint8) if boolean else x).__dlpack__(), boolean)
    o = session._sess.run_with_ort_values(feed, list(outputs), None)[0]  # pyright: ignore
    return torch.from_dlpack(o.to_dlpack()).clone()


@accepts()
def onnx_attention(q, k, v, causal=False, scale=None, mask=None):
    """Run the operator Attention of ONNX (opset 23), causal as a boolean mask: its own is_causal aligns top-left."""
    mask = seen(q, k, causal, mask)
    return _run("Attention", "", dict(q=q, k=k, v=v) | ({} if mask is None else dict(mask=mask)), scale=scale)


@accepts("MultiHeadAttention", top_left=True)
def onnx_multi_head(q, k, v, causal=False, scale=None):
    """Run ONNX Runtime's MultiHeadAttention, which has its own flash attention for FP32 on CPU."""
    heads, (k, v) = q.shape[1], repeated(q, k, v)
    attributes = dict(num_heads=heads, scale=scale, unidirectional=int(causal))
    tensors = dict(q=packed(q), k=packed(k), v=packed(v))
    return unpacked(_run("MultiHeadAttention", CONTRIBUTED, tensors, **attributes), heads)


def _grouped(q, k, v, scale, past):
    """Run GroupQueryAttention. The first `past` keys are its cache, and the others belong to the queries: each query
    sees the keys up to its own."""
    if q.shape[3] != v.shape[3]:
        raise NotImplementedError(f"GroupQueryAttention needs one head_dim; q has {q.shape[3]} and v {v.shape[3]}")
    (batch, heads), n_kv = q.shape[:2], k.shape[2]
    tensors = dict(
        q=packed(q), k=packed(k[:, :, past:]), v=packed(v[:, :, past:]), past_k=k[:, :, :past] if past else None,
        past_v=v[:, :, :past] if past else None, last=lengths(batch, n_kv - 1), total=lengths(1, n_kv),
    )  # fmt: skip
    attributes = dict(num_heads=heads, kv_num_heads=k.shape[1], scale=scale)
    return unpacked(_run("GroupQueryAttention", CONTRIBUTED, tensors, ("o", "all_k", "all_v"), **attributes), heads)


@accepts()
def onnx_group_query(q, k, v, causal=False, scale=None):
    """Run ONNX Runtime's GroupQueryAttention on all queries in one call, as it reads a prompt; it is always causal.
    Refused: not causal, more queries than keys, several queries with a cache and a batch above 1, or V of another
    head_dim."""
    if not causal or q.shape[2] > k.shape[2]:
        raise NotImplementedError("GroupQueryAttention is always causal; it needs causal=True, and n_q <= n_kv")
    if q.shape[2] < k.shape[2] and q.shape[2] > 1 and q.shape[0] > 1:
        raise NotImplementedError("GroupQueryAttention with a cache and several queries needs a batch of 1")
    return _grouped(q, k, v, scale, k.shape[2] - q.shape[2])


@accepts(queries=1)
def onnx_group_query_decode(q, k, v, causal=False, scale=None):
    """Run ONNX Runtime's GroupQueryAttention on one query in each call, all keys but the last one as the cache. A query
    that would see no key, and V of another head_dim, raise NotImplementedError."""
    return _grouped(q, k, v, scale, k.shape[2] - 1)
