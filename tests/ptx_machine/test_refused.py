"""Launches and texts that a GPU or ptxas refuses, and outputs of memory that nobody wrote."""

import pytest
import torch
from small_ptx import kernel, text

from attention_check.isolation.calls import call_kernel
from attention_check.isolation.isolated_kernel import isolated
from attention_check.isolation.worker import Outcome
from benchmarks.mutants.gradients import Altered
from fa_lib import kernels
from fa_lib.kernels.kernel_ref import KernelRef
from ptx_machine import Fault, Kernel
from ptx_machine.memory import Endless

A100, STATIC = 163 * 1024, 64  # bytes of shared memory: the most that a block may have, and the kernel's own


@pytest.fixture(scope="module")
def small():
    return kernel("", ["a"], inside=f".shared .align 16 .b8 memory[{STATIC}];")


@pytest.mark.parametrize("grid, block, shared, words", [
    ((1,), (2048,), 0, r"block: got \(2048,\); accepted are one to three whole numbers from 1, up to 1,024, 1,024, 64"),
    ((1,), (64, 32), 0, r"block: got \(64, 32, 1\), 2,048 threads; accepted are up to 1,024"),
    ((1,), (1, 1, 65), 0, r"block: got \(1, 1, 65\)"),
    ((1, 65536), (32,), 0, r"grid: got \(1, 65536\); accepted .* up to 2,147,483,647, 65,535, 65,535"),
    ("12", (32,), 0, "grid: got '12'"),
    ((1.5,), (32,), 0, r"grid: got \(1.5,\)"),
    ((1,), (0,), 0, "block: got"),
    ((1,), (32,), -1, "shared: got -1; accepted are 0 to 166,848 bytes on A100, where a block has 166,912"),
    ((1,), (32,), A100 - STATIC + 1, "shared: got 166849; accepted"),
])  # fmt: skip
def test_a_launch_that_a_gpu_refuses(small, grid, block, shared, words):
    with pytest.raises(ValueError, match=words):
        small(grid, block, shared, torch.zeros(1))


def test_the_largest_launch_and_the_limit_of_a_text(small):
    small((1,), (1024,), A100 - STATIC, torch.zeros(1))
    limited = Kernel(text("", []).replace("()\n{", "()\n.maxntid 64, 1, 1\n{"))
    limited((1,), (64,), 0)
    with pytest.raises(ValueError, match=r"block: got \(65, 1, 1\), 65 threads; accepted are up to 64"):
        limited((1,), (65,), 0)


@pytest.mark.parametrize("kind, value, words", [
    ("u64", 1.5, "argument 0: got 1.5 for a parameter of type u64; accepted is a whole number of 8 bytes, a tensor"),
    ("u64", "x", "got 'x' for"), ("u64", 1 << 64, "accepted is a whole number of 8 bytes"),
    ("u32", None, "got NoneType for a parameter of type u32; accepted is a whole number of 4 bytes"),
    ("u32", torch.zeros(1), "got Tensor for"), ("s32", 0.5, "got 0.5 for"), ("u32", 1 << 32, "whole number of 4 bytes"),
    ("f32", None, "got NoneType for a parameter of type f32; accepted is a number"), ("f32", "1", "got '1' for"),
])  # fmt: skip
def test_an_argument_that_does_not_fit(kind, value, words):
    one = Kernel(text("", []).replace("()\n{", f"(.param .{kind} a)\n{{"))
    with pytest.raises(ValueError, match=words):
        one((1,), (1,), 0, value)


def test_arguments_that_fit():
    taken = text("", []).replace("()\n{", "(.param .b32 a, .param .u64 b, .param .s32 c, .param .f32 d)\n{")
    for values in ((0.5, None, -1, 2), (1, -1, True, 0.5), (1, torch.zeros(1), (1 << 31) - 1, 1.0)):
        Kernel(taken)((1,), (1,), 0, *values)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("inside", ["", "add.u32 %r2, %r2, %laneid;"])
def test_a_kernel_that_does_not_end_is_a_fault(monkeypatch, compiled, inside):
    limit = 1 << (23 if compiled else 10)
    monkeypatch.setattr("ptx_machine.warp.LONGEST", limit)

    def counts(times):
        body = f"mov.u32 %r1, 0; A: add.u32 %r1, %r1, 1; {inside} setp.ne.u32 %p1, %r1, {times}; @%p1 bra A;"
        Kernel(text(body, []), compiled=compiled)((1,), (32,), 0)

    counts(limit // 8)
    with pytest.raises(Endless, match=rf"line \d+ .*{limit:,} instructions of a warp, and it does not end"):
        counts(0)


MMA = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {A}, {%r5, %r6}, {%f1, %f2, %f3, %f4};"


@pytest.mark.parametrize("body, inside, words", [
    ("", ".shared .align 4 .b8 memory[-4];", r"PTX, line \d+: got '-'; accepted is a whole number from 0"),
    ("", ".reg .b32 %x<-2>;", "got '-'; accepted is a whole number from 0"),
    ("", f".shared .b8 memory[{48 * 1024 + 1}];", "got 49,153 bytes of static shared memory; accepted are 49,152"),
    ("A: mov.u32 %r1, 1; A: bra A;", "", "got 'A'; accepted is a label that is not there yet"),
    (MMA.replace("{A}", "{%r1, %r2, %r3}"), "", r"got \(4, 3, 2, 4\) registers of D, A, B and C; accepted .*\(4, 4,"),
    ("{ mov.u32 %r1, 1;", "", "PTX, line .*: got 'the end of the text'; accepted is }"),
])  # fmt: skip
def test_a_text_that_ptxas_refuses(body, inside, words):
    with pytest.raises(ValueError, match=words):
        kernel(body, ["a"], inside=inside)


HALF = kernel("""
    mov.u32 %r1, %tid.x; shl.b32 %r1, %r1, 2; cvt.u64.u32 %d5, %r1; add.s64 %d6, %d0, %d5; add.s64 %d7, %d1, %d5;
    ld.global.f32 %f1, [%d6]; add.f32 %f1, %f1, %f1; st.global.f32 [%d7], %f1;""")  # fmt: skip


def doubled(q, k, v):
    """Twice q, the second row by way of memory of which only the first half is written."""
    kept, o = torch.empty_like(q), q.new_empty(q.shape)
    HALF((1,), (len(q) // 2,), 0, q, kept)
    HALF((1,), (len(k),), 0, kept, o)
    return o


def test_an_output_of_memory_that_nobody_wrote_is_a_fault():
    q, fewer = torch.ones(32), torch.ones(16)
    on_a100 = kernels.get(doubled, gpu="A100")
    with pytest.raises(Fault, match=r"memory holds that nobody wrote: 16 of 32 elements; \w+: .*: ld"):
        on_a100(q, q, q)
    of_o = r"16 of 32 elements, \(16,\) is the first, .* NaN"  # which no kernel writes
    with pytest.raises(Fault, match=of_o):
        kernels.get(lambda q, k, v: doubled(torch.cat([q, q]), k, v), gpu="A100")(fewer, fewer, fewer)
    own = torch.full((32,), float("nan"))  # of its inputs
    with_nan = kernels.get(lambda q, k, v: q + torch.zeros_like(torch.empty_like(q)), gpu="A100")
    assert with_nan(own, q, q).isnan().all()


def test_a_kernel_that_returns_such_memory_gives_a_wrong_answer(tmp_path, monkeypatch):
    """In this process and in one of its own: it is no refusal."""
    (tmp_path / "unwritten.py").write_text("import torch\n\ndef f(q, k, v):\n    return torch.empty_like(q)\n")
    monkeypatch.syspath_prepend(tmp_path)
    q, name = torch.ones(1, 1, 4, 8), KernelRef("unwritten", "f", "A100")
    answers = [call_kernel(kernels.get(lambda q, k, v: torch.empty_like(q), gpu="A100"), q, q, q)]
    with isolated(name) as kernel:
        answers.append(call_kernel(kernels.get(kernel), q, q, q))
    for answer in answers:
        assert answer.outcome == Outcome.MALFORMED
        assert answer.problem.startswith("fails: its output is what memory holds that nobody wrote: 32 of 32 elements")


def test_a_gradient_of_memory_that_nobody_wrote_is_a_fault():
    def halved(dO):
        assert dO.is_cuda
        dq = torch.empty_like(dO)
        HALF((1,), (len(dO) // 2,), 0, dO.contiguous(), dq)
        return dq

    q = torch.ones(32, requires_grad=True)
    o = kernels.get(lambda q, k, v: Altered.apply(2 * q, halved), gpu="A100")(q, q, q)
    with pytest.raises(Fault, match="16 of 32 elements"):
        o.sum().backward()
