"""The examples are attention; the CUDA kernel among them on the GPU that is asked for, judged, and blamed."""

import pytest
import torch
from own_kernels import results

from attention_check.gpu.blame import blame
from attention_check.measure.capability import RACES
from attention_check.measure.contract import _Asker
from attention_check.testing import assert_attention_close
from examples.cuda_attention import attention, kernel
from fa_lib import kernels
from fa_lib.execution.paths import ROOT
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.numerics.formats import FP16, Format
from ptx_machine import Kernel

MINE = "examples.cuda_attention:attention"


def drawn(n_q, n_kv, dtype=torch.float16):
    torch.manual_seed(0)
    return [torch.randn(1, 2, n, 64).to(dtype) for n in (n_q, n_kv, n_kv)]


EXAMPLES = [  # kernel, GPU, queries and keys: the last tile is not full
    (MINE, "A100", (30, 70)), ("examples.torch_extension.attention:attention", "A100", (50, 70)),
    ("examples.triton_attention:attention", "A100", (128, 200)),
    ("examples.triton_attention:attention", "H100", (128, 200)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name, gpu, lengths", EXAMPLES)
def test_an_example_is_attention(name, gpu, lengths, dtype, causal):
    q, k, v = drawn(*lengths, dtype)
    o = kernels.get(name, gpu=gpu)(q, k, v, causal=causal)
    assert_attention_close(o, q, k, v, precision=Format.of(dtype), causal=causal)


def test_a_kernel_without_a_gpu_takes_the_one_it_is_judged_on():
    q, k, v = drawn(30, 700)
    a, h, again = (kernels.get(MINE, gpu=gpu)(q, k, v) for gpu in ("A100", "H100", "A100"))
    assert torch.equal(a, again) and not torch.equal(a, h) and torch.equal(a, attention(q, k, v))
    ptx = kernel("float16").text

    def of_an_a100(q, k, v):
        Kernel(ptx, "float16", gpu="A100")((1,), (1,), 0, q, k, v, q, 1.0, 0, 0, 0, 0)

    with pytest.raises(ValueError, match="gpu: got a kernel for A100 on H100; accepted is Kernel without a gpu"):
        kernels.get(of_an_a100, gpu="H100")(q, k, v)


def test_blame_shows_the_lines_of_the_text():
    q, k, v = (x[:, :1] for x in drawn(2, 40, torch.bfloat16))
    found = blame(MINE, q, k, v, gpu="A100")
    assert found.complete and not found.lost
    first = found.table.iloc[0]
    assert first.text == "O[i] = T(seen ? o / l : 0.0f);" and first.share == pytest.approx(1, abs=0.01)


def test_it_passes():
    """Some of what `check kernel examples/cuda_attention.py:attention --gpu A100` asks; all of it takes minutes."""
    found = results(KernelRef.of(MINE, "A100"), "causality", "answer_causal_one_key", "answer_causal_one_query")
    assert all(found.values()), found


def test_a_missing_barrier_is_named_by_its_line(tmp_path, monkeypatch):
    source = (ROOT / "examples" / "cuda_attention.py").read_text()
    (tmp_path / "raced.py").write_text("".join(source.rsplit("__syncthreads();", 1)))
    monkeypatch.syspath_prepend(tmp_path)
    for module, outcome in (("raced", "malformed"), ("examples.cuda_attention", "answered")):
        asker = _Asker(KernelRef(module, "attention", "A100"), 64, "cpu", False, None)
        asker.ask_races(FP16)
        assert asker.rows[0]["asked"] == RACES and asker.rows[0]["outcome"] == outcome
        assert ("kernel.cu, line" in (said := asker.rows[0]["problem"]) and "a race" in said) == (module == "raced")
