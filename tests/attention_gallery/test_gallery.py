"""The gallery: its adapters, its catalogue, and its kernels against the golden value where their libraries are here."""

import importlib
import inspect
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

import attention_gallery as gallery
from attention_check.isolation.calls import call_kernel
from attention_gallery import adapters, catalogue, pallas
from attention_gallery.adapters import in_4_dims, seen, visible
from attention_gallery.catalogue import CATALOGUES, ENTRIES, ON_CUDA
from fa_lib import deviation, draw, kernels
from fa_lib.execution.paths import PACKAGE, PACKAGES
from fa_lib.numerics.formats import BF16, FP16, FP32

FOLDER = PACKAGES["attention_gallery"]
HEAVY = ("jax", "onnxruntime", "onnx", "openvino", "mlx", "transformers", "diffusers", "tokamax", "ml_dtypes")


def drawn(fmt=BF16, n_q=70, n_kv=203, heads=4, kv_heads=2, d=32, seed=0):
    """q, k, v in fmt's dtype."""
    return tuple(fmt(x).to(fmt.dtype) for x in draw("normal", seed, (2, heads, n_q, d), (2, kv_heads, n_kv, d)))


# --- adapters


@pytest.mark.parametrize("count", [1, 32, 70, 100])
@pytest.mark.parametrize("causal", [False, True])
def test_queries_at_a_time_give_what_one_call_gives(count, causal):
    asked = []

    def kernel(q, k, v, causal=False, scale=None):
        asked.append((q.shape[2], k.shape[2]))
        return kernels.baseline(q, k, v, causal=causal, scale=scale)

    q, k, v = drawn()
    o = adapters.queries_at_a_time(kernel, count)(q, k, v, causal=causal, scale=0.1)
    assert torch.equal(o, kernels.baseline(q, k, v, causal=causal, scale=0.1))
    assert [n for n, _ in asked] == [min(count, 70 - i) for i in range(0, 70, count)]
    assert asked[0][1] == (203 - 70 + min(count, 70) if causal else 203)


def test_a_causal_mask_and_another_are_one():
    q, k = torch.zeros(1, 1, 3, 4), torch.zeros(1, 1, 5, 4)
    below, mask = visible(3, 5), torch.tensor([False, True, True, True, True]).expand(3, 5)
    assert seen(q, k, False, None) is None and seen(q, k, False, mask) is mask
    assert torch.equal(seen(q, k, True, None), below) and torch.equal(seen(q, k, True, mask), below & mask)
    added = seen(q, k, True, torch.full((1, 1, 3, 5), 0.5))
    assert torch.equal(added == 0.5, below[None, None]) and (added[~below[None, None]] == -torch.inf).all()
    assert in_4_dims(None) is None and in_4_dims(mask).shape == (1, 1, 3, 5)


def test_bf16_goes_through_numpy_bit_by_bit():
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16)  # NaN and infinities too
    bits = adapters.bf16_bits(every)
    assert bits.dtype == np.int16 and np.array_equal(bits, np.arange(-(2**15), 2**15))
    back = adapters.from_bf16_bits(bits.view(np.float16))
    assert back.dtype == torch.bfloat16 and torch.equal(back.view(torch.int16), every.view(torch.int16))
    bits[0] = 1
    assert back.view(torch.int16)[0] == -(2**15), "a copy"


@pytest.mark.parametrize("fmt", [BF16, FP16, FP32], ids=str)
def test_jax_has_the_values_and_the_gradients(fmt):
    pytest.importorskip("jax")
    q, k, v = (x.requires_grad_() for x in drawn(fmt, n_q=203, kv_heads=4))
    assert torch.equal(adapters.from_jax(adapters.to_jax(q)), q)

    def product(q, k, v):  # one rounding, and gradients that need none
        return q * k

    o, due = adapters.through_jax(product, q, k, v), product(q, k, v)
    assert o.dtype == fmt.dtype and torch.equal(o, due)
    grads = torch.autograd.grad(o, (q, k, v), torch.full_like(o, 2))
    assert torch.equal(grads[0], 2 * k) and torch.equal(grads[1], 2 * q) and not grads[2].any()
    with torch.no_grad():
        assert not adapters.through_jax(product, q, k, v).requires_grad


@adapters.accepts("ring", widths=(32,), scaled=False, gradients=False, masked=False, square=True)
def ring(q, k, v, causal=False, scale=None):
    return kernels.baseline(q, k, v, causal=causal, scale=scale)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda q: ring(q, q, q, scale=0.05), "^ring scales .* = 0.1768; scale = 0.05"),
        (lambda q: ring(q, q[:, :, :3], q), "^ring takes one length for queries and keys; got 70 and 3"),
        (lambda q: ring(*(torch.zeros(1, 2, 9, 8) for _ in "qkv")), "^ring has head_dim .32,. here; got 8"),
        (lambda q: ring(q, q, q, causal=True), "^ring has no causal mask"),
        (lambda q: ring(q.clone().requires_grad_(), q, q), "^ring has no gradients"),
        (lambda q: adapters.queries_at_a_time(ring, 1)(q, *[q[:, :, :3]] * 2, causal=True), "70 queries and 3 keys"),
        (lambda q: adapters.only_dtypes(q, (torch.float16,), "this"), "this has float16; q is bfloat16"),
        (lambda q: pallas.pallas_gpu_mha(*[q.new_zeros(1, 2, 97, 64)] * 3), "powers of two on a GPU; got 97 queries"),
    ],
)
def test_what_a_kernel_lacks_is_told(call, message):
    with pytest.raises(NotImplementedError, match=message):
        call(drawn()[0])
    q = drawn()[0]
    assert torch.equal(ring(q, q, q, scale=32**-0.5), kernels.baseline(q, q, q))


# --- the catalogue


def test_every_entry_has_its_function_in_its_file_and_none_is_left_out():
    every = [pair for entries in CATALOGUES.values() for pair in entries.items()]
    for key, entry in every:
        assert entry.key == key and entry.project and entry.needs and entry.use
        if entry.cannot:
            assert not entry.module and re.search(r" \d+\.\d+", entry.cannot), "the version that cannot run"
        else:
            assert callable(getattr(importlib.import_module(f"attention_gallery.{entry.module}"), key)), key
    about = {"__init__", "adapters", "caches", "catalogue", "causes", "finds", "plots", "source_modules"}
    modules = {path.stem for path in FOLDER.glob("*.py")} - about - {"flash_attn_4_compiler"}
    assert modules == {entry.module for _, entry in every if entry.module}
    assert not modules & {key for key, _ in every}, "a key would be taken for the module"


def test_to_import_the_gallery_imports_none_of_the_libraries():
    modules = ", ".join(f"attention_gallery.{path.stem}" for path in FOLDER.glob("*.py") if path.stem != "__init__")
    script = f"import sys, {modules}; print(set({HEAVY!r}) & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.stdout.strip() == "set()", done.stderr


def test_a_library_that_is_missing_is_told_in_a_sentence(monkeypatch):
    monkeypatch.setattr(catalogue, "installed", lambda name: None)
    with pytest.raises(ValueError, match=r"ggml_decode cannot run: it needs xllamacpp \S+, not installed here; `mak"):
        kernels.get("attention_gallery:ggml_decode")
    assert "transformers, not installed here; pip install" in ENTRIES["transformers_eager"].problem
    assert "gallery:ggml_decode (llama.cpp (ggml))\n    xllamacpp not installed; cannot run" in catalogue.listing()


def test_a_kernel_of_a_gpu_needs_one_and_its_library(monkeypatch):
    assert all(entry.device == "cuda" and not entry.cannot for entry in ON_CUDA.values())
    assert all(entry.device == "cpu" for entry in ENTRIES.values())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert all("needs a CUDA device" in entry.problem for entry in ON_CUDA.values())
    assert gallery.torch_math is kernels.get("attention_gallery.torch_kernels:torch_math")
    with pytest.raises(ImportError, match="flash_attn cannot run: flash-attn 2.8.3 .*CUDA"):
        _ = gallery.flash_attn
    with pytest.raises(ImportError, match="torch_cudnn cannot run: .* CUDA device"):
        _ = gallery.torch_cudnn
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(catalogue, "installed", lambda name: "1.0" if name == "torch" else None)
    assert not ON_CUDA["torch_cudnn"].problem and gallery.torch_cudnn.__name__ == "torch_cudnn"
    assert gallery.torch_varlen.__name__ == "torch_varlen", "what a CPU cannot run, a GPU can"
    problem = ON_CUDA["sageattention"].problem
    assert "sageattention, not installed" in problem and "docs/gpu/recorded.md" in problem
    assert "gallery:torch_flash on cuda (PyTorch)\n    torch 1.0; runs here" in catalogue.listing()


# --- the kernels

UP_TO = torch.arange(203) % 3 != torch.arange(17)[:, None] % 3  # hides a third of the keys
CALLS = {  # what is asked of each kernel: shapes and options
    "128": (dict(n_q=128, n_kv=128), {}),
    "one query": (dict(n_q=1, n_kv=256), {}),
    "17 x 203": (dict(n_q=17, n_kv=203), {}),
    "causal 128": (dict(n_q=128, n_kv=128), dict(causal=True)),
    "causal 17 x 203, GQA": (dict(n_q=17, n_kv=203, kv_heads=1), dict(causal=True)),
    "a boolean mask": (dict(n_q=128, n_kv=128), dict(mask=torch.ones(128, 128, dtype=torch.bool).tril(20))),
    "a boolean mask, causal": (dict(n_q=17, n_kv=203), dict(mask=UP_TO[None, None], causal=True)),
    "an added mask": (
        dict(n_q=128, n_kv=128),
        dict(mask=-0.25 * (torch.arange(128) - torch.arange(128)[:, None]).abs()),
    ),
    "another scale": (dict(n_q=1, n_kv=256), dict(scale=0.05)),
}
FAR = 0.2  # of the golden value's root mean square: another mask or scale is off by more, a cache of 4 bits by less
COMPILED = "torch_flex_compiled"  # many seconds for each new shape
SLOW = {COMPILED} | {key for key, entry in ENTRIES.items() if "jax" in entry.needs}  # compiled for each shape too


@pytest.mark.parametrize("key", [pytest.param(key, marks=[pytest.mark.slow] * (key in SLOW)) for key in ENTRIES])
def test_a_kernel_answers_attention_s_question_or_says_what_it_lacks(key):
    if ENTRIES[key].problem:
        pytest.skip(f"{key} cannot run: {ENTRIES[key].problem}")
    fn, answered = kernels.get(f"attention_gallery:{key}"), []
    for fmt in (BF16, FP16, FP32):
        first = all(other == fmt for other, _ in answered)
        few = ("17 x 203",) if key == COMPILED else ("17 x 203", "causal 128")
        for name in CALLS if first and key != COMPILED else few:
            sizes, options = CALLS[name]
            q, k, v = drawn(fmt, **dict(heads=2, kv_heads=2, d=64) | sizes)
            if "mask" in options and "mask" not in inspect.signature(fn).parameters:
                continue
            if "mask" in options and options["mask"].is_floating_point():
                options = options | dict(mask=options["mask"].to(fmt.dtype))
            answer = call_kernel(fn, q, k, v, **options)
            if answer.outcome != "answered":
                assert answer.problem.startswith("raises NotImplementedError: ") and len(answer.problem) > 40, answer
                continue
            golden = kernels.golden(q, k, v, inputs=fmt, **options)
            assert deviation(answer.o, golden).relative < FAR, f"{fmt}, {name}"
            answered.append((fmt, name))
    compiles = key != COMPILED or torch.backends.cpu.get_cpu_capability() != "DEFAULT"
    assert bool(answered) == compiles


def test_ggml_s_error_depends_on_the_type_that_v_is_stored_in():
    if ENTRIES["ggml_decode"].problem:
        pytest.skip(ENTRIES["ggml_decode"].problem)
    from attention_gallery.ggml import flash_attn_ext

    given = draw("uniform", 0, (1, 2, 1, 64), (1, 2, 2048, 64))
    q, k, v = (BF16(x).to(torch.float16) for x in given)  # values that both 16-bit formats hold
    golden = kernels.golden(q, k, v, inputs=FP16)
    answers = {kind: flash_attn_ext(v_type=kind, precise=True)(q, k, v) for kind in ("FP16", "BF16", "FP32")}
    errors = {kind: deviation(o, golden).relative for kind, o in answers.items()}
    assert all(o.dtype == torch.float32 for o in answers.values())
    assert max(errors["BF16"], errors["FP32"]) < FP16.unit_roundoff < errors["FP16"] / 4
    assert torch.equal(kernels.get("attention_gallery:ggml_decode_v_fp32")(q, k, v), answers["FP32"].half())
    assert not torch.equal(flash_attn_ext(threads=1, precise=True)(q, k, v), answers["FP16"])
    equal = torch.zeros(1, 1, 4096, 64, dtype=torch.float16)  # equal weights: 40 x 4,096 passes 65,504
    assert flash_attn_ext(threads=1, precise=True)(equal[:, :, :1], equal, equal + 40).isinf().all()
    with pytest.raises(ValueError, match="^v: .* BF16"):
        flash_attn_ext(v_type="BF16")(q, k, FP16(given[2]).to(torch.float16))
    with pytest.raises(NotImplementedError, match="blocks of 32 values: head_dim of k is 40, and no multiple"):
        flash_attn_ext(k_type="q8_0")(q[..., :40], k[..., :40], v)
    with pytest.raises(NotImplementedError, match="ggml has float32, float16, bfloat16; q is float64"):
        flash_attn_ext()(q.double(), k.double(), v.double())
