"""ggml's flash attention on CPU, which llama.cpp and whisper.cpp run: ggml_flash_attn_ext, called by ctypes.

Nothing is built: the wheels xllamacpp (llama.cpp) and pywhispercpp (whisper.cpp) hold ggml's shared libraries. As
llama.cpp does, Q is given in FP32 and K, V in the type of the KV cache. Below 64 queries ggml takes a path that goes
key by key; where V is stored in FP16 that path adds up O in FP16 (ggml-cpu/ops.cpp,
ggml_compute_forward_flash_attn_ext_f16_one_chunk).
"""

import ctypes
import math
from contextlib import contextmanager
from functools import cache
from importlib.metadata import files

import torch

from attention_gallery.adapters import Kernel, accepts, swapped, visible

TYPES = {"FP32": 0, "FP16": 1, "q4_0": 2, "q8_0": 8, "BF16": 30}  # enum ggml_type of ggml.h
DTYPES = {torch.float32: "FP32", torch.float16: "FP16", torch.bfloat16: "BF16"}
STORED = {name: dtype for dtype, name in DTYPES.items()}
PREC_F32 = 10  # of enum ggml_prec: llama.cpp asks for FP32 in every model; the CPU kernel computes the same without
PROMPT = 64  # queries from which ggml takes its path for prompts, not that of decoding
BLOCK = 32  # values that share a scale in q4_0 and q8_0
MASK_ROWS = 64  # ggml wants the mask's rows padded to a multiple of GGML_KQ_MASK_PAD
FILES = {  # wheel -> the beginnings of its shared libraries that hold ggml
    "xllamacpp": ("xllamacpp/xllamacpp.",),
    "pywhispercpp": ("pywhispercpp.libs/libggml-base-", "pywhispercpp.libs/libggml-cpu-"),
}
SCRATCH = 64 << 20  # bytes for the graph and the kernel's own buffers


class _Parameters(ctypes.Structure):  # struct ggml_init_params
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


_pointer, _int, _long, _float = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float
_SIGNATURES = {  # of ggml.h and ggml-cpu.h: the result, then the arguments
    "ggml_init": (_pointer, _Parameters),
    "ggml_free": (None, _pointer),
    "ggml_new_tensor_4d": (_pointer, _pointer, _int, _long, _long, _long, _long),
    "ggml_get_data": (_pointer, _pointer),
    "ggml_flash_attn_ext": (_pointer, *[_pointer] * 5, _float, _float, _float),
    "ggml_flash_attn_ext_set_prec": (None, _pointer, _int),
    "ggml_new_graph": (_pointer, _pointer),
    "ggml_build_forward_expand": (None, _pointer, _pointer),
    "ggml_quantize_chunk": (ctypes.c_size_t, _int, _pointer, _pointer, _long, _long, _long, _pointer),
    "ggml_graph_compute_with_ctx": (_int, _pointer, _pointer, _int),
    "ggml_cpu_init": (None,),
}


@cache
def _functions(wheel):
    """Load ggml's functions, name -> function, from the shared libraries of an installed wheel."""
    paths = [file.locate() for start in FILES[wheel] for file in files(wheel) or () if str(file).startswith(start)]
    libraries = [ctypes.CDLL(str(path)) for path in paths]  # no RTLD_GLOBAL: two versions of ggml share a process
    functions = {}
    for name, (result, *arguments) in _SIGNATURES.items():
        functions[name] = next(getattr(library, name) for library in libraries if hasattr(library, name))
        functions[name].restype, functions[name].argtypes = result, arguments
    functions["ggml_cpu_init"]()
    return functions


def flash_attn_ext(
    wheel: str = "xllamacpp", k_type: str | None = None, v_type: str | None = None, threads: int = 2,
    precise: bool = False, queries: int = 0, fewest: int = 1,
) -> Kernel:  # fmt: skip
    """Make a way to call ggml_flash_attn_ext, f(q, k, v, causal=False, scale=None): o (batch, heads, n_q, head_dim of
    v) of q, k, v (batch, heads, n, head_dim) in FP32, FP16 or BF16. Each call of ggml gets the keys that its last query
    sees, as a KV cache holds them. Refused: a dtype or head_dim that ggml does not have, and fewer queries than
    `fewest`. A ValueError: storing K or V in a type that is no quantised one changes their values, so that the results
    would not differ by the type alone. A RuntimeError: ggml reports an error.

    Args:
        wheel: the wheel of FILES that holds ggml.
        k_type, v_type: the types of TYPES that K and V are stored in; None is their own dtype.
        threads: number of threads; ggml divides the keys among them where there is one query, and the queries
            otherwise.
        precise: whether o is FP32, as ggml returns it, and not in q's dtype.
        queries: the most queries of one call of ggml; 0 is all.
        fewest: queries below which a call is refused, because another path of ggml takes it.
    """

    @accepts("ggml", (*DTYPES,), queries=queries)
    def kernel(q, k, v, causal=False, scale=None):
        if q.shape[2] < fewest:
            raise NotImplementedError(f"below {fewest} queries ggml takes its path of decoding: {q.shape[2]} here")
        kinds = [kind or DTYPES[q.dtype] for kind in (k_type, v_type)]
        for name, x, kind in zip("kv", (k, v), kinds):
            if kind not in STORED and x.shape[-1] % BLOCK:
                raise NotImplementedError(
                    f"ggml quantises blocks of {BLOCK} values: head_dim of {name} is {x.shape[-1]}, and no multiple"
                )
            if kind in STORED and not torch.equal(x.to(STORED[kind]).to(x.dtype), x):
                raise ValueError(f"{name}: some values change when stored as {kind}; accepted are values that it holds")
        o = _called(_functions(wheel), threads, kinds, q, k, v, causal, scale)
        return o if precise else o.to(q.dtype)

    return kernel


def _called(ggml, threads, kinds, q, k, v, causal, scale):
    """Make one call of ggml: o, FP32. ggml: its functions; kinds: the types that K and V are stored in."""
    (batch, heads, n_q, _), (_, _, keys, width) = q.shape, v.shape
    o = torch.empty(batch, n_q, heads, width)
    mask_size = 2 * (n_q + MASK_ROWS) * keys if causal else 0
    with _context(ggml, 4 * sum(x.numel() for x in (o, q, k, v)) + mask_size) as context:
        mask = _tensor(ggml, context, _causal_mask(n_q, keys), "FP16") if causal else None
        tensors = [_tensor(ggml, context, x, kind) for x, kind in zip((q, k, v), ("FP32", *kinds))]
        out = ggml["ggml_flash_attn_ext"](context, *tensors, mask, scale, 0.0, 0.0)
        ggml["ggml_flash_attn_ext_set_prec"](out, PREC_F32)
        graph = ggml["ggml_new_graph"](context)
        ggml["ggml_build_forward_expand"](graph, out)
        status = ggml["ggml_graph_compute_with_ctx"](context, graph, threads)
        if status:
            raise RuntimeError(f"ggml_graph_compute_with_ctx returns status {status}")
        ctypes.memmove(o.data_ptr(), ggml["ggml_get_data"](out), 4 * o.numel())
    return swapped(o).contiguous()


@contextmanager
def _context(ggml, size):
    """Open a context of ggml with room for `size` bytes of tensors, and for its graph and buffers."""
    context = ggml["ggml_init"](_Parameters(size + SCRATCH, None, False))
    try:
        yield context
    finally:
        ggml["ggml_free"](context)


def _tensor(ggml, context, x, kind):
    """Store x (batch, heads, n, head_dim) as a ggml tensor of type `kind`; ggml counts dimensions from the last."""
    tensor = ggml["ggml_new_tensor_4d"](context, TYPES[kind], *reversed(x.shape))
    data = ggml["ggml_get_data"](tensor)
    x = x.detach().to(STORED.get(kind, torch.float32)).contiguous()
    if kind in STORED:
        ctypes.memmove(data, x.data_ptr(), x.numel() * x.element_size())
    else:
        rows, width = x.numel() // x.shape[-1], x.shape[-1]
        ggml["ggml_quantize_chunk"](TYPES[kind], x.data_ptr(), data, 0, rows, width, None)
    return tensor


def _causal_mask(n_q, n_kv):
    """Make the mask, FP16 (1, 1, n_q up to a multiple of MASK_ROWS, n_kv): 0 where a key is visible, else -inf."""
    rows = torch.zeros(n_q + -n_q % MASK_ROWS, n_kv, dtype=torch.float16)
    rows[:n_q].masked_fill_(~visible(n_q, n_kv), -math.inf)
    return rows[None, None]


ggml_prefill = flash_attn_ext(fewest=PROMPT)  # all queries in one call, as in reading a prompt of PROMPT tokens or more
ggml_decode = flash_attn_ext(queries=1)
ggml_few = flash_attn_ext(queries=32)  # as in speculative decoding and small batches
ggml_decode_1_thread = flash_attn_ext(threads=1, queries=1)  # which adds up all keys in one sum
ggml_decode_v_fp32 = flash_attn_ext(v_type="FP32", queries=1)  # the same values, one other type: O is added up in FP32
ggml_q8_0, ggml_q4_0 = (flash_attn_ext(k_type=kind, v_type=kind, queries=1) for kind in ("q8_0", "q4_0"))

whisper_prefill = flash_attn_ext("pywhispercpp", fewest=PROMPT)  # as in its encoder and in long prompts
whisper_decode = flash_attn_ext("pywhispercpp", queries=1)
whisper_few = flash_attn_ext("pywhispercpp", queries=32)  # as its beam search and speculative decoding have
