"""One changed instruction: each kind changes what it says, and the changed kernel computes something else."""

import json

import pytest
import small_ptx
import torch

from ptx_machine import mutate
from ptx_machine.launch import Kernel
from ptx_machine.ptx import parse

LOAD = "ld.global.f32 %f1, [%d0];\n"
STORE = "st.global.f32 [%d1], %f3;"
CASES = {  # kind -> (body, the statement after the change, output before and after; the input is 3, 5)
    "rounding": ("add.rn.f32 %f3, %f1, 0f34400000;", "add.rz.f32 %f3, %f1, 0f34400000;", None),
    "operand": ("sub.f32 %f3, %f1, 0f3F800000;", "sub.f32 %f3, 0f3F800000, %f1;", (2, -2)),
    "predicate": (
        "mov.f32 %f3, %f1;\nsetp.gt.f32 %p1, %f1, 0f3F800000;\n@%p1 add.f32 %f3, %f3, 0f3F800000;",
        "@!%p1 add.f32 %f3, %f3, 0f3F800000;",
        (4, 3),
    ),
    "comparison": (
        "setp.lt.f32 %p1, %f1, 0f40400000;\nselp.f32 %f3, 0f3F800000, %f1, %p1;",
        "setp.le.f32 %p1, %f1, 0f40400000;",
        (3, 1),
    ),
    "immediate": ("mov.u32 %r1, 6;\ncvt.rn.f32.u32 %f3, %r1;", "mov.u32 %r1, 7;", (6, 7)),
    "barrier": ("mov.f32 %f3, %f1;\nbar.sync 0;", ";", (3, 3)),
    "rescale": ("mul.f32 %f3, %f1, 0f40000000;", "mov.f32 %f3, %f1;", (6, 3)),
    "exponent": ("mul.f32 %f3, %f1, 0f3FB8AA3B;", "mul.f32 %f3, %f1, 0f3FB90000;", (4.328085, 4.3359375)),
    "maximum": ("max.f32 %f3, %f1, 0f3F800000;", "min.f32 %f3, %f1, 0f3F800000;", (3, 1)),
    "offset": ("ld.global.f32 %f3, [%d0];", "ld.global.f32 %f3, [%d0+4];", (3, 5)),
}


def run(text):
    a, out = torch.tensor([3.0, 5.0]), torch.zeros(1)
    Kernel(text, gpu="A100")((1,), (1,), 0, a, out)
    return float(out)


def of_kind(text, kind):
    return [each for each in mutate.changes(text, parse(text).entries["small"]) if each.kind == kind]


@pytest.mark.parametrize("kind", CASES)
def test_a_change_does_what_it_says(kind):
    body, after, values = CASES[kind]
    text = small_ptx.text(f"{LOAD}{body}\n{STORE}")
    change = next(each for each in of_kind(text, kind) if each.after == after)
    other = mutate.changed(text, change)
    assert parse(other).entries["small"].instructions != parse(text).entries["small"].instructions
    if values:
        assert (run(text), run(other)) == pytest.approx(values)
    else:
        assert 0 < run(text) - run(other) < 1e-6


def test_sums_of_a_product_are_rounded_to_fp16():
    body = (
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f3, %f4, %f5, %f6},\n{%r1, %r2, %r3, %r4}, {%r5, %r6},\n"
    )
    text = small_ptx.text(f"{LOAD}mov.f32 %f7, 0f3F801000;\n{body}{{%f7, %f7, %f7, %f7}};\n{STORE}")
    zeros = "\n".join(f"mov.u32 %r{i}, 0;" for i in range(1, 7))
    text = text.replace("mma.sync", f"{zeros}\nmma.sync")
    (change,) = of_kind(text, "accumulators")
    assert [_run_warp(each) for each in (text, mutate.changed(text, change))] == [1 + 2**-11, 1.0]


def _run_warp(text):
    out = torch.zeros(1)
    Kernel(text, gpu="A100")((1,), (32,), 0, torch.ones(2), out)
    return float(out)


def test_the_environment_records_a_kernel_and_changes_it(tmp_path, monkeypatch):
    text = small_ptx.text(f"{LOAD}{CASES['maximum'][0]}\n{STORE}")
    monkeypatch.setenv(mutate.RECORD, str(tmp_path))
    assert run(text) == 3
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text()) == {"kernel": "small", "text": text}
    (change,) = of_kind(text, "maximum")
    monkeypatch.setenv(mutate.CHANGE, mutate.as_json(change))
    assert run(text) == 1
    monkeypatch.setenv(mutate.WITHIN, f"{__file__}:of_kind")
    assert run(text) == 3
