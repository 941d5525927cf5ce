"""A changed instruction: the machine runs the text that the environment's function gives."""

import json

import pytest
import small_ptx
import torch

from benchmarks import gpu_mutations
from ptx_machine.launch import REWRITE, Kernel

BODY = """ld.global.f32 %f1, [%d0];
max.f32 %f3,
 %f1, 0f3F800000; // of two lines
st.global.f32 [%d1], %f3;"""


@pytest.mark.parametrize(("kernel", "found"), [("small", 1.0), ("another", 3.0)])
def test_the_environment_changes_a_kernel(kernel, found, monkeypatch):
    text, out = small_ptx.text(BODY), torch.zeros(1)
    line = text.split("\n").index("max.f32 %f3,") + 1
    change = dict(kernel=kernel, line=line, before="max.f32 %f3, %f1, 0f3F800000;",
                  after="min.f32 %f3, %f1, 0f3F800000;")  # fmt: skip
    monkeypatch.setenv(REWRITE, "benchmarks.gpu_mutations:rewritten")
    monkeypatch.setenv(gpu_mutations.ROW, json.dumps(change))
    Kernel(text, gpu="A100")((1,), (1,), 0, torch.tensor([3.0]), out)
    assert out.item() == found
