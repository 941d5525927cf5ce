"""Shadows of small PTX kernels: with all errors kept they are the kernel's numbers, and with none float64's."""

import numpy as np
import pytest
import torch
from small_ptx import kernel

from ptx_machine.shadow.observer import shadowed
from ptx_machine.shadow.policy import Policy

LANE = "mov.u32 %r60, %tid.x; cvt.u64.u32 %d10, %r60; shl.b64 %d11, %d10, 2; "
READ = LANE + "add.s64 %d12, %d0, %d11; add.s64 %d13, %d1, %d11; ld.global.f32 %f1, [%d12]; "
ROUNDED = "mul.f32 %f2, %f1, %f1; cvt.rn.bf16.f32 %h1, %f2; "  # x^2, in BF16
WRITE = " st.global.f32 [%d13], %f9;"


def run(body, inside="", outside="", out=torch.float32):
    """The kernel's numbers, its shadows without errors and with all of them: float64 (32,) each; and x."""
    x = torch.from_numpy(np.random.default_rng(0).uniform(1, 2, 32).astype(np.float32))
    o = torch.zeros(32, dtype=out)
    with shadowed(Policy()) as found:
        kernel(READ + body, inside=inside, outside=outside)((1,), (32,), 1024, x, o)
    shadows = found.of(o)
    assert shadows is not None
    return o.double(), shadows[0], shadows[1], x.double()


@pytest.mark.parametrize("way", [
    "cvt.f32.bf16 %f9, %h1;",
    "mov.b32 %r1, {%h1, %h1}; mov.b32 {%h2, %h3}, %r1; cvt.f32.bf16 %f9, %h3;",
    "cvt.u32.u16 %r1, %h1; shl.b32 %r2, %r1, 16; mov.b32 %f9, %r2;",  # BF16 is the upper half of FP32
    "mov.b32 %f9, {0, %h1};",
    "mov.b32 %r1, {%h1, %h1}; and.b32 %r2, %r1, 0xffff0000; mov.b32 %f9, %r2;",
    "mov.b32 %r1, {%h1, %h1}; prmt.b32 %r2, %r1, %r1, 0x3276; mov.b32 {%h2, %h3}, %r2; cvt.f32.bf16 %f9, %h2;",
    "cvt.rn.bf16x2.f32 %r1, %f2, %f2; mov.b32 {%h2, %h3}, %r1; cvt.f32.bf16 %f9, %h3;",
    "cvt.f32.bf16 %f3, %h1; setp.gt.f32 %p1, %f3, 0f00000000; selp.f32 %f9, %f3, %f1, %p1;",
    "cvt.f32.bf16 %f3, %h1; shfl.sync.bfly.b32 %f4, %f3, 5, 31, -1; shfl.sync.bfly.b32 %f9, %f4, 5, 31, -1;",
    "cvt.f32.bf16 %f3, %h1; mov.b32 %r1, %f3; xor.b32 %r2, %r1, 0x80000000; mov.b32 %f4, %r2; neg.f32 %f9, %f4;",
    "cvt.f32.bf16 %f3, %h1; mov.b64 %d20, {%f3, %f3}; mov.b64 {%f4, %f9}, %d20;",
])  # fmt: skip
def test_a_shadow_goes_where_its_number_goes(way):
    o, exact, kept, x = run(ROUNDED + way + WRITE)
    assert torch.equal(kept, o) and torch.allclose(exact, x * x, rtol=1e-15, atol=0)
    assert (o - exact).abs().max() > 1e-3, "BF16's rounding is left out"


@pytest.mark.parametrize("way", [
    "st.shared.b16 [at], %h1; ld.shared.b16 %h2, [at];",
    "st.shared.b16 [at], %h1; st.shared.b16 [at+2], %h1; ld.shared.b32 %r5, [at]; mov.b32 {%h3, %h2}, %r5;",
    "mov.b32 %r5, {%h1, %h1}; st.shared.v2.b32 [at], {%r5, %r5}; ld.shared.b64 %d20, [at]; mov.b64 {%r6, %r7}, %d20;"
    " mov.b32 {%h2, %h3}, %r7;",
    "mov.b32 %r5, {%h1, %h1}; mov.b64 %d20, {%r5, %r5}; st.shared.b64 [at], %d20; ld.shared.v2.b32 {%r6, %r7}, [at];"
    " mov.b32 {%h3, %h2}, %r7;",
])  # fmt: skip
def test_a_shadow_goes_through_shared_memory(way):
    place = "shl.b32 %r50, %r60, 3; mov.u32 %r51, room; add.u32 %r50, %r50, %r51; "
    inside = ".shared .align 16 .b8 room[1024];"
    way = way.replace("[at+2]", "[%r50+2]").replace("[at]", "[%r50]")
    o, exact, kept, x = run(ROUNDED + place + way + " cvt.f32.bf16 %f9, %h2;" + WRITE, inside)
    assert torch.equal(kept, o) and torch.allclose(exact, x * x, rtol=1e-15, atol=0)


def test_matrices_from_shared_memory_and_products_of_them():
    """A = x in every element of a row's pair, B = 1: the sums of an A100's matrix unit, and the exact ones."""
    body = (
        ROUNDED + "mov.b32 %r1, {%h1, %h1}; shl.b32 %r50, %r60, 4; mov.u32 %r51, room; add.u32 %r50, %r50, %r51; "
        "st.shared.v4.b32 [%r50], {%r1, %r1, %r1, %r1}; bar.warp.sync -1; "
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r2, %r3, %r4, %r5}, [%r50]; mov.u32 %r10, 0x3f803f80; "
        "mov.f32 %f3, 0f00000000; mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f9, %f5, %f6, %f7}, "
        "{%r2, %r3, %r4, %r5}, {%r10, %r10}, {%f3, %f3, %f3, %f3};" + WRITE
    )
    o, exact, kept, x = run(body, ".shared .align 16 .b8 room[1024];")
    row = torch.arange(32) // 4
    assert torch.equal(kept, o)
    assert torch.allclose(exact, 8 * (x * x)[row] + 8 * (x * x)[row + 16], rtol=1e-14, atol=0)


def test_atomic_sums_have_shadows_lane_after_lane():
    x, o = torch.full((32,), 1 + 2.0**-12), torch.zeros(32)
    body = (
        READ.replace("shl.b64 %d11, %d10, 2", "mov.u64 %d11, 0")
        + "mul.f32 %f2, %f1, %f1; red.global.add.f32 [%d13], %f2;"
    )
    with shadowed(Policy()) as found:
        kernel(body)((1,), (32,), 0, x, o)
    memory = found.memories.outer[o.data_ptr()]
    exact, kept = memory.values[0]
    assert kept == o[0].item() and exact == pytest.approx(32 * (1 + 2.0**-12) ** 2, rel=1e-15) and exact != kept


def test_a_number_that_whole_numbers_make_has_no_shadow():
    """Its bits are others than those that its shadow was made for."""
    other = "mov.b32 %r1, %f3; mul.lo.u32 %r2, %r1, 1; add.u32 %r2, %r2, 65536; mov.b32 %f4, %r2; "  # an ulp of BF16
    way = "cvt.f32.bf16 %f3, %h1; " + other + "add.f32 %f9, %f4, %f3;"
    o, exact, kept, x = run(ROUNDED + way + WRITE)
    rounded = (x * x).to(torch.bfloat16).double()
    assert torch.allclose(exact, o - rounded + x * x, rtol=1e-7) and torch.equal(kept, o)


def test_a_sum_of_whole_numbers_may_multiply_by_a_power_of_two():
    """One more in the exponent, as compilers scale the operand of a logarithm."""
    way = "cvt.f32.bf16 %f3, %h1; mov.b32 %r1, %f3; add.s32 %r2, %r1, 0x00800000; mov.b32 %f9, %r2;"
    o, exact, kept, x = run(ROUNDED + way + WRITE)
    assert torch.equal(kept, o) and torch.allclose(exact, 2 * x * x, rtol=1e-15, atol=0)
