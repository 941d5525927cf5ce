"""The catalogue of the gallery: kernels on a CPU and on a GPU, and those of `modelled`, GPU kernels on a CPU."""

from attention_gallery.entry import Entry, entries
from attention_gallery.modelled import MODELLED
from fa_lib.kernels.kernel_ref import KernelRef


def project_of(kernel: KernelRef) -> str:
    """Return the name and version of the project that wrote a kernel of the gallery; "" for another kernel."""
    entry = {**MODELLED, **ENTRIES}.get(kernel.function)
    return f"{entry.package.name if entry.package else entry.needs[0]} {entry.version}" if entry else ""


def listing() -> str:
    """List every kernel in three lines: its key and project; the packages it needs, and whether it runs here; its
    use."""
    lines = []
    for entry in (*ENTRIES.values(), *ON_CUDA.values(), *MODELLED.values()):
        runs = f"cannot run here: {entry.problem}" if entry.problem else "runs here"
        where = {"cpu": "", "cuda": " on cuda"}.get(entry.device, f" in the arithmetic of an {entry.gpu}")
        first = f"gallery:{entry.key}{where} ({entry.project})"
        lines += [first, f"    {entry.archives}; {runs}", f"    in use: {entry.use}"]
    return "\n".join(lines)


_ALL = [
    *entries(
        "llama.cpp (ggml)", "ggml", ("xllamacpp",),
        ggml_prefill="reading a prompt of 64 tokens or more; flash attention is on by default (--flash-attn auto)",
        ggml_decode="every generated token; flash attention and an FP16 KV cache are the defaults",
        ggml_few="prompts and speculative batches below 64 tokens, by the same defaults",
        ggml_decode_1_thread="every generated token with --threads 1",
        ggml_decode_v_fp32="every generated token with --cache-type-v f32",
        ggml_q8_0="every generated token with --cache-type-k q8_0 --cache-type-v q8_0",
        ggml_q4_0="every generated token with --cache-type-k q4_0 --cache-type-v q4_0",
    ),
    *entries(
        "whisper.cpp (ggml)", "ggml", ("pywhispercpp",),
        whisper_prefill="the encoder, and prompts of 64 tokens or more; flash attention is on by default since 1.8",
        whisper_decode="every token of the decoder, with an FP16 KV cache, by the same default",
        whisper_few="prompts of the decoder below 64 tokens, by the same default",
    ),
    *entries(
        "PyTorch", "torch_kernels", ("torch",),
        torch_flash="scaled_dot_product_attention chooses it on CPU unless there is dropout or a mask with gradients",
        torch_math="scaled_dot_product_attention where no other backend fits, or under sdpa_kernel(SDPBackend.MATH)",
        torch_math_16_bit="the same after torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)",
        torch_flex="flex_attention without torch.compile",
        torch_flex_compiled="torch.compile(flex_attention)",
    ),
    *entries(
        "transformers", "huggingface", ("transformers",),
        transformers_eager='attn_implementation="eager", and every model without a faster one',
        transformers_sdpa='attn_implementation="sdpa", the default, for a batch of padded texts',
    ),
    *entries(
        "diffusers", "huggingface", ("diffusers",),
        diffusers_native='the attention dispatcher of newer models; its default backend is "native"',
        diffusers_written_out="AttnProcessor, of models without AttnProcessor2_0 and with attention upcast or sliced",
    ),
    *entries(
        "Keras", "keras_kernels", ("keras",),
        keras_written_out="MultiHeadAttention with dropout, or where return_attention_scores is asked for",
    ),
    *entries(
        "ONNX Runtime", "onnx_runtime", ("onnxruntime", "onnx"),
        onnx_attention="torch.onnx.export with opset 23 writes this operator for scaled_dot_product_attention",
        onnx_multi_head="the transformer optimizer fuses attention of encoders into it",
        onnx_group_query="the prompt, in models of onnxruntime-genai's model builder",
        onnx_group_query_decode="every generated token, in models of onnxruntime-genai's model builder",
    ),
    *entries(
        "OpenVINO", "openvino_kernels", ("openvino",),
        openvino_sdpa="a model in 16 bits; where the CPU has instructions for BF16 alone, FP16 is computed in BF16",
        openvino_sdpa_fp32_model="a model in FP32; the hint's default is BF16 on a CPU with BF16 instructions",
    ),
    *entries(
        "MLX", "mlx_kernels", ("mlx",),
        mlx_sdpa="mlx.core.fast.scaled_dot_product_attention on the CPU device, the only one on Linux without CUDA",
    ),
    *entries(
        "JAX", "jax_kernels", ("jax", "jaxlib"),
        jax_dot_product='jax.nn.dot_product_attention; its default implementation is "xla"',
    ),
    *entries(
        "JAX Pallas", "pallas", ("jax", "jaxlib"),
        pallas_tpu_flash="jax.experimental.pallas.ops.tpu.flash_attention on a TPU; here in interpret mode",
        pallas_splash="splash_attention of the same package on a TPU, which MaxText uses; here in interpret mode",
        pallas_gpu_mha="jax.experimental.pallas.ops.gpu.attention.mha on a GPU; here in interpret mode",
        pallas_gpu_decode="decode_attention.gqa of the same package on a GPU, 16 splits by default; in interpret mode",
    ),
    *entries(
        "ringattention", "ringattention", ("ringattention", "flax", "einops", "jax", "jaxlib"),
        ring_fp32_logits="ringattention(..., float32_logits=True), as its README calls it",
        ring_16_bit_logits="ringattention(..., float32_logits=False)",
    ),
    *entries(
        "flash-attention-jax", "flash_jax", ("flash-attention-jax", "einops", "jax", "jaxlib"),
        flash_attention_jax="flash_attention and causal_flash_attention",
    ),
    *entries(
        "tokamax", "tokamax_kernels", ("tokamax", "jax", "jaxlib"),
        tokamax_chunked='tokamax.dot_product_attention(implementation="xla_chunked")',
    ),
    Entry(
        "torch_varlen", "PyTorch", "", ("torch",), "torch.nn.attention.varlen.varlen_attn, sequences packed on a GPU",
        "torch 2.13.0 has no kernel of aten::_flash_attention_forward, which it calls, for CPU",
    ),
    Entry(
        "torch_int8", "PyTorch", "", ("torch",), "scaled_dot_product_attention of Q, K, V in 8 bits",
        "torch 2.13.0 has no kernel of aten::_scaled_dot_product_flash_attention.quantized for CPU",
    ),
    Entry(
        "ctranslate2", "CTranslate2", "", ("ctranslate2",), "ctranslate2.Generator, Translator and Encoder",
        "ctranslate2 4.8.5 gives Python no call of its attention, only whole models",
    ),
    Entry(
        "tinygrad", "tinygrad", "", ("tinygrad",), "Tensor.scaled_dot_product_attention",
        "tinygrad 0.14.0 compiles for a CPU by clang, LLVM or Mesa, which `make gallery` does not install",
    ),
    Entry(
        "flash_attn", "flash-attn", "", ("flash-attn",), "flash_attn.flash_attn_func",
        "flash-attn 2.8.3 has CUDA kernels alone; `python -m benchmarks.record` judges it on a GPU",
    ),
    Entry(
        "sageattention", "SageAttention", "", ("sageattention",), "sageattention.sageattn in place of torch's",
        "sageattention 1.0.6 has Triton kernels alone; the interpreter of Triton 3.9 truncates FP32 to BF16 and adds "
        "the bit patterns of BF16 as integers, so that nothing is judged through it",
    ),
]  # fmt: skip

ENTRIES = {entry.key: entry for entry in _ALL}  # on a CPU

_ALL_ON_CUDA = [
    *entries(
        "PyTorch", "torch_kernels", ("torch",), "cuda",
        torch_flash="FlashAttention-2: scaled_dot_product_attention takes it for 16 bits without a mask",
        torch_cudnn="sdpa_kernel(SDPBackend.CUDNN_ATTENTION); torch 2.5.0 took it first on Hopper",
        torch_efficient="scaled_dot_product_attention with a mask, and in FP32",
        torch_math="scaled_dot_product_attention where no other backend fits, or under sdpa_kernel(SDPBackend.MATH)",
        torch_math_16_bit="the same after torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)",
        torch_flex_compiled="torch.compile(flex_attention): a Triton kernel",
        torch_varlen="torch.nn.attention.varlen.varlen_attn, sequences packed one behind another",
    ),
    *entries(
        "flash-attn", "flash_attn_kernels", ("flash-attn",), "cuda",
        flash_attn='flash_attn.flash_attn_func; attn_implementation="flash_attention_2" in transformers',
        flash_attn_triton="flash_attn.flash_attn_triton.flash_attn_func, experimental, copied into MPT",
    ),
    *entries(
        "xformers", "triton_kernels", ("xformers",), "cuda",
        xformers_split_k="memory_efficient_attention for up to 32 queries that share their keys, as in decoding",
        xformers_default="memory_efficient_attention; without kernels of its own it calls FlashAttention-2 of torch",
    ),
    *entries(
        "SageAttention", "triton_kernels", ("sageattention",), "cuda",
        sageattention="sageattention.sageattn in place of torch's; Q and K in 8 bits",
    ),
    *entries(
        "JAX", "jax_kernels", ("jax", "jaxlib"), "cuda",
        jax_dot_product='jax.nn.dot_product_attention; its default implementation is "xla"',
        jax_cudnn='jax.nn.dot_product_attention(implementation="cudnn")',
    ),
    *entries(
        "JAX Pallas", "pallas", ("jax", "jaxlib"), "cuda",
        pallas_gpu_mha="jax.experimental.pallas.ops.gpu.attention.mha",
        pallas_gpu_decode="decode_attention.gqa of the same package, 16 splits by default",
    ),
]  # fmt: skip

ON_CUDA = {entry.key: entry for entry in _ALL_ON_CUDA}
CATALOGUES = {"cpu": ENTRIES, "cuda": ON_CUDA, "modelled": MODELLED}
