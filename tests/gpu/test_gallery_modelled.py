"""GPU kernels of other projects, from their archives, without a GPU: small calls of each, what was found in some, and
the reproductions on the pages of finds.

`make test-gpu` asks a few of them; FULL=1 all, which fetches some 400 MB of archives and has nvcc compile for minutes.
"""

import importlib.util
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from attention_gallery import conch_kernels, lmdeploy_kernels, sglang_kernels, triton_kernels
from attention_gallery.caches import QUANTISED_INPUTS, over_bits
from attention_gallery.catalogue import MODELLED
from attention_gallery.source_modules import module
from fa_lib import kernels
from fa_lib.execution.paths import ROOT
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.precision import Precision
from fa_lib.numerics.formats import BF16, Format
from fa_lib.numerics.metrics import over_baseline
from ptx_machine import GPU, triton
from ptx_machine.fake_cuda import fake_cuda
from ptx_machine.sources import unpacked

QUICK = ("sglang_decode", "sglang_extend", "vllm_unified", "vllm_unified_decode", "vllm_encoder", "conch_paged",
         "conch_varlen", "fla_parallel", "xformers_split_k_a100", "flag_gems_sdpa")  # fmt: skip
BEYOND = {"llama_cuda_tile": 6, "conch_varlen": 4, "conch_paged": 4}  # what they are off, over Baseline, at 200 keys
RUN = [key for key, entry in MODELLED.items() if not entry.cannot]


def drawn(n_q, n, dtype):
    torch.manual_seed(0)
    return [torch.randn(1, 1, length, 64).to(dtype) for length in (n_q, n, n)]


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


A100 = GPU.of("A100")
IMPORTED = {  # page -> imports the project's files from its archive, without what else the project would import
    "find_sageattention": lambda: pytest.importorskip("sageattention"),
    "find_conch": lambda: [conch_kernels._file(name) for name in ("paged_attention", "varlen_attention")],
    "find_flag_gems": triton_kernels._flag_gems,
    "find_sglang_decode": lambda: module(
        sglang_kernels.SGLANG, f"{sglang_kernels.FILES}.decode_attention", sglang_kernels.STUBS
    ),
    "find_lmdeploy": lmdeploy_kernels._files,
}
NUMBER = r"(?<![\w.])\d+\.\d+|nan"
MASKED = "        qk += tl.where(k_mask, 0, -1.0e6)\n"  # the line that SageAttention 1.0.6 lacks


@pytest.mark.parametrize("name", IMPORTED)
def test_a_reproduction_prints_here_what_its_page_says(name, capsys):
    """The page's script runs unchanged on the modelled A100. Numbers are within a fifth."""
    text = (ROOT / "docs" / "gallery" / f"{name}.md").read_text()
    script, printed = (re.search(f"```{kind}\n(.*?)```", text, re.S)[1] for kind in ("python", "text"))
    with fake_cuda(A100), triton(A100):
        IMPORTED[name]()
        exec(compile(script, name, "exec"), {})
    out = capsys.readouterr().out
    assert re.sub(NUMBER, "", out) == re.sub(NUMBER, "", printed)
    pairs = [(float(a), float(b)) for a, b in zip(re.findall(NUMBER, out), re.findall(NUMBER, printed))]
    assert all(a == pytest.approx(b, rel=0.2, abs=2e-4, nan_ok=True) for a, b in pairs)


def changed(file, folder, *pairs):
    """Import a file of a project with some of its text replaced."""
    text = file.read_text()
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    copy = folder / f"changed_{len(list(folder.iterdir()))}.py"
    copy.write_text(text)
    spec = importlib.util.spec_from_file_location(copy.stem, copy)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def sage(monkeypatch, tmp_path):
    """SageAttention in an A100's arithmetic, and a function that changes a line of its kernel without a mask."""
    core = pytest.importorskip("sageattention.core")
    file = Path(core.__file__).with_name("attn_qk_int8_per_block.py")
    kernel = kernels.get(MODELLED["sageattention_a100"].ref)
    return kernel, lambda *pair: monkeypatch.setattr(core, "attn_false", changed(file, tmp_path, pair).forward)


def of_sage(kernel, n):
    """Return its distance from attention, and from attention with keys of score 0 up to a full tile of 64."""
    torch.manual_seed(0)
    q, k, v = (torch.rand(1, 1, n, 64).half() for _ in range(3))
    o, (q, k, v) = kernel(q, k, v).double(), (x.double() for x in (q, k, v))
    more = (0, 0, 0, -n % 64)
    padded = F.scaled_dot_product_attention(q, F.pad(k - k.mean(2, keepdim=True), more), F.pad(v, more))
    return [(o - each).abs().max().item() for each in (F.scaled_dot_product_attention(q, k, v), padded)]


def test_sageattention_counts_keys_of_zeros_until_one_line_hides_them(sage):
    kernel, change = sage
    own = {n: of_sage(kernel, n) for n in (128, 129, 200)}
    change("* q_scale * k_scale \n", "* q_scale * k_scale \n" + MASKED)
    masked = {n: of_sage(kernel, n) for n in own}
    assert max(own[128]) < 1.5e-3 and all(own[n][0] > 0.1 and own[n][1] < 1.5e-3 for n in (129, 200))
    assert all(each[0] < 1.5e-3 for each in masked.values())


def test_the_fp16_of_sageattention_is_inside_a_tile(sage):
    """With FP32 results of P V of a tile its error is what its 8 bits cost; O in FP16 from tile to tile would stay."""
    kernel, change = sage
    assert over_bits("sageattention_a100", kernel) > 2
    change("tl.dot(p, v, out_dtype=tl.float16)", "tl.dot(p, v)")
    assert over_bits("sageattention_a100", kernel) < 1.5


def test_conch_loses_what_it_keeps_in_16_bits(monkeypatch, tmp_path):
    """varlen_attention with the accumulator, the row sum and alpha in FP32, and all else as it is."""
    file = unpacked(conch_kernels.CONCH) / "conch/kernels/attention/varlen_attention.py"
    in_fp32 = (
        ("cxpr_head_size_padded], dtype=dtype)", "cxpr_head_size_padded], dtype=tl.float32)"),
        ("query_group_size_padded], 0.0, dtype=dtype)", "query_group_size_padded], 0.0, dtype=tl.float32)"),
        ("output += tl.dot(p, value_block).to(dtype)", "output += tl.dot(p, value_block)"),
        ("l_ij = tl.sum(p, axis=1).to(dtype)", "l_ij = tl.sum(p.to(tl.float32), axis=1)"),
        ("alpha = tl.exp(m_i - m_ij).to(dtype)", "alpha = tl.exp(m_i - m_ij)"),
    )
    kernel = kernels.get(MODELLED["conch_varlen"].ref)
    q, k, v = (BF16(x) for x in draw("uniform", 0, (1, 1, 16, 64), (1, 1, 4096, 64)))
    golden = kernels.golden(q, k, v, inputs=BF16)
    baseline = (kernels.reference(q, k, v, precision=Precision.materialized(BF16)) - golden).abs().max()

    def times():
        return ((kernel(*(x.bfloat16() for x in (q, k, v))).double() - golden).abs().max() / baseline).item()

    assert times() > 10
    launcher = changed(file, tmp_path, *in_fp32).varlen_attention_launcher
    monkeypatch.setattr(conch_kernels._file("varlen_attention"), "varlen_attention_launcher", launcher)
    assert times() < 2


def test_llama_cpp_is_judged_in_the_format_of_its_cache():
    q, k, v = (torch.randn(1, 1, 16, 64).bfloat16() for _ in range(3))
    for key in ("llama_cuda_mma", "llama_cuda_mma_crowded", "llama_cuda_tile", "llama_cuda_decode"):
        with pytest.raises(NotImplementedError, match="a cache of F16 has float16; q is bfloat16"):
            kernels.get(MODELLED[key].ref)(q, k, v)
