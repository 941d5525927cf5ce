"""GPU kernels of other projects, from their archives, without a GPU: small calls of each, and what was found in some.

`make test-gpu` asks a few of them; FULL=1 all, which fetches some 400 MB of archives and has nvcc compile for minutes.
"""

import pytest
import torch
from test_find_pages import changed

from attention_gallery.caches import QUANTISED_INPUTS, over_bits
from attention_gallery.catalogue import MODELLED
from fa_lib import kernels
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.precision import Precision
from fa_lib.numerics.formats import BF16, Format
from fa_lib.numerics.metrics import over_baseline
from ptx_machine.sources import unpacked

QUICK = ("sglang_decode", "sglang_extend", "vllm_unified", "vllm_unified_decode", "vllm_encoder", "conch_paged",
         "conch_varlen", "fla_parallel", "xformers_split_k_a100", "flag_gems_sdpa")  # fmt: skip
BEYOND = {"llama_cuda_tile": 6, "conch_varlen": 4, "conch_paged": 4}  # what they are off, over Baseline, at 200 keys
RUN = [key for key, entry in MODELLED.items() if not entry.cannot]


def drawn(n_q, n, dtype, heads=1, kv_heads=1, times=1.0):
    torch.manual_seed(0)
    shapes = (1, heads, n_q, 64), (1, kv_heads, n, 64), (1, kv_heads, n, 64)
    return [(times * torch.randn(shape)).to(dtype) for shape in shapes]


@pytest.mark.parametrize("key", [
    key if key in QUICK else pytest.param(key, marks=pytest.mark.full) for key in RUN if key not in QUANTISED_INPUTS
])  # fmt: skip
def test_a_kernel_is_attention(key):
    """Causal where it takes that; 128 keys, a multiple of every tile, and as many queries, or one."""
    kernel = kernels.get(MODELLED[key].ref)
    for dtype in (torch.bfloat16, torch.float16):
        fmt = Format.of(dtype)
        for options in (dict(causal=True), {}):
            q, k, v = drawn(128 if "decode" not in key and key != "conch_paged" else 2, 128, dtype)
            try:
                with torch.no_grad():
                    o = kernel(q, k, v, **options)
            except NotImplementedError:
                continue
            golden = kernels.golden(q, k, v, inputs=fmt, **options)
            tensors = (x.double() for x in (q, k, v))
            baseline = kernels.reference(*tensors, precision=Precision.materialized(fmt), **options)
            error, bound = ((x.double() - golden).abs().max().item() for x in (o, baseline))
            assert over_baseline(error, bound) <= BEYOND.get(key, 2.3), (fmt, options)


@pytest.mark.full
@pytest.mark.parametrize("key", [key for key in QUANTISED_INPUTS if key in MODELLED])
def test_a_kernel_of_few_bits_is_as_good_as_its_bits(key):
    assert over_bits(key, kernels.get(MODELLED[key].ref)) <= (2.5 if key.startswith("sage") else 2)


def test_sglang_multiplies_q_and_k_in_16_bits():
    of = {key: kernels.get(MODELLED[key].ref) for key in ("sglang_decode", "vllm_unified_decode")}
    tensors = drawn(1, 256, torch.float16, 2, 2, times=96)
    assert of["sglang_decode"](*tensors).isnan().any() and not of["vllm_unified_decode"](*tensors).isnan().any()
    shared = drawn(1, 256, torch.float16, 2, 1, times=96)
    assert not of["sglang_decode"](*shared).isnan().any(), "heads that share keys take another kernel"


def test_flag_gems_gradients_are_right_where_the_call_is_causal_alone():
    kernel, far = kernels.get(MODELLED["flag_gems_sdpa"].ref), {}
    for causal in (True, False):
        x = [each.requires_grad_() for each in drawn(128, 128, torch.bfloat16)]
        dO = drawn(128, 128, torch.bfloat16)[1]
        found = torch.autograd.grad(kernel(*x, causal=causal), x, dO)
        exact = [each.detach().double().requires_grad_() for each in x]
        o = torch.nn.functional.scaled_dot_product_attention(*exact, is_causal=causal)
        due = torch.autograd.grad(o, exact, dO.double())
        far[causal] = max((a.double() - b).abs().max().item() for a, b in zip(found, due))
    assert far[True] < 0.02 and far[False] > 0.2


def test_vllm_hides_the_keys_behind_the_last_with_a_number():
    """-1e8, which scores of -1e8 are not above: 200 keys do not fill their tiles."""
    q, k, v = torch.full((1, 1, 200, 64), 4096.0), torch.full((1, 1, 200, 64), -4096.0), torch.rand(1, 1, 200, 64)
    tensors = [x.to(torch.bfloat16) for x in (q, k, v)]
    assert (kernels.get(MODELLED["vllm_encoder"].ref)(*tensors) == 0).all()
    assert (kernels.get(MODELLED["vllm_unified"].ref)(*tensors).float() - 0.5).abs().max() < 0.2


def test_a_constant_value_makes_lmdeploys_cache_nan_and_one_line_mends_it(monkeypatch, tmp_path):
    """docs/gallery/find_lmdeploy.md."""
    from attention_gallery import lmdeploy_kernels as lmdeploy

    kernel = kernels.get(MODELLED["lmdeploy_decode_int8"].ref)
    q, k, v = (BF16(x).bfloat16() for x in draw("normal", 0, (1, 1, 1, 64), (1, 1, 64, 64)))
    v[0, 0, 7] = 0
    assert torch.isnan(kernel(q, k, v)).all()
    span = (v.float().amax(-1) - v.float().amin(-1)) / 255
    assert (torch.isnan(-v.float().amin(-1) / span)[0, 0] == (torch.arange(64) == 7)).all()

    file = unpacked(lmdeploy.LMDEPLOY) / lmdeploy.FOLDER / "fill_kv_cache.py"
    line, where = "scales = (val_max - val_min) / 255", ("from .", "from lmdeploy.pytorch.kernels.cuda.")
    mended = changed(file, tmp_path, (line, f"scales = tl.where(val_max > val_min, {line[9:]}, 1.0)"), where)
    monkeypatch.setattr(lmdeploy._imported(), "fill_kv_cache", mended)
    golden = kernels.golden(q, k, v, inputs=BF16)
    assert (kernel(q, k, v).double() - golden).abs().max() < 0.02
