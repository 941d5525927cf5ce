"""Threads, warps, blocks and memory: kernels of a few lines whose results are known."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from small_ptx import kernel, text

from ptx_machine.launch import Kernel, Structure
from ptx_machine.memory import Fault
from ptx_machine.special_registers import SPECIAL_REGISTERS

pytestmark = pytest.mark.usefixtures("machine")
EACH = (
    "mov.u32 %r1, %tid.x; mul.wide.u32 %d9, %r1, 4; add.s64 %d8, %d{0}, %d9;"  # %d8: the address of a thread's number
)


def numbers(count, dtype=torch.int32):
    return torch.zeros(count, dtype=dtype)


def ran(body, count=32, **more):
    """What each of `count` threads writes to its own place, [%d8]."""
    out = numbers(count)
    kernel(EACH.format(0) + body, ["out"], **more)((1,), (count,), 0, out)
    return out.tolist()


def test_threads_part_and_meet_again():
    """Each lane goes round as often as its number says; behind the loop all are together again."""
    body = EACH.format(0) + """
    mov.u32 %r2, 0; mov.u32 %r3, 0;
    LOOP: setp.ge.u32 %p1, %r2, %r1; @%p1 bra DONE; add.u32 %r3, %r3, %r2; add.u32 %r2, %r2, 1; bra LOOP;
    DONE: activemask.b32 %r4; selp.b32 %r5, 1000, 0, %p1; add.u32 %r3, %r3, %r5; st.global.u32 [%d8], %r3;
    mul.wide.u32 %d9, %r1, 4; add.s64 %d8, %d1, %d9; st.global.u32 [%d8], %r4;
    """  # fmt: skip
    out, together = numbers(32), numbers(32)
    kernel(body)((1,), (32,), 0, out, together)
    assert out.tolist() == [n * (n - 1) // 2 + 1000 for n in range(32)] and together.unique().tolist() == [-1]


def test_a_guarded_end_ends_some():
    assert ran("setp.gt.u32 %p1, %r1, 20; @%p1 exit; st.global.u32 [%d8], 7;") == [7] * 21 + [0] * 11


def test_a_branch_by_table():
    body = """
    and.b32 %r2, %r1, 3; WHERE: .branchtargets A, B, C, B; brx.idx %r2, WHERE;
    A: mov.u32 %r3, 10; bra END; B: mov.u32 %r3, 20; bra END; C: mov.u32 %r3, 30;
    END: st.global.u32 [%d8], %r3;"""
    assert ran(body)[:8] == [10, 20, 30, 20] * 2


def test_warps_meet_at_barriers():
    """Each thread reads what a thread of another warp wrote before the barrier."""
    body = """
    mov.u32 %r9, memory; shl.b32 %r2, %r1, 2; add.u32 %r2, %r9, %r2; st.shared.u32 [%r2], %r1;
    bar.sync 0; sub.u32 %r3, 95, %r1; shl.b32 %r3, %r3, 2; add.u32 %r3, %r9, %r3; ld.shared.u32 %r4, [%r3];
    st.global.u32 [%d8], %r4;"""
    assert ran(body, 96, inside=".shared .align 4 .b8 memory[384];") == [*reversed(range(96))]


def test_a_barrier_of_some_warps_and_one_that_nobody_waits_at():
    """Warp 0 writes and arrives; warp 1 waits for it; warp 2 has ended. Then a barrier of those who are left."""
    body = """
    shr.u32 %r2, %r1, 5; setp.eq.u32 %p1, %r2, 2; @%p1 exit; setp.eq.u32 %p2, %r2, 0; mov.u32 %r5, 0;
    @%p2 st.shared.u32 [memory], 5; @%p2 bar.arrive 3, 64; @!%p2 bar.sync 3, 64; @!%p2 ld.shared.u32 %r5, [memory];
    bar.sync 0; st.global.u32 [%d8], %r5;"""
    assert ran(body, 96, inside=".shared .align 4 .b8 memory[4];") == [0] * 32 + [5] * 32 + [0] * 32


def test_an_mbarrier_lets_a_waiting_warp_go_on():
    """Warp 0, whose code stands first, waits in a loop for 32 arrivals of warp 1."""
    body = """
    setp.ne.u32 %p3, %r1, 0; @!%p3 mbarrier.init.shared.b64 [bar], 32; bar.sync 0;
    shr.u32 %r2, %r1, 5; setp.eq.u32 %p1, %r2, 1; mov.u32 %r5, 1; @%p1 bra ARRIVE;
    WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], 0; @!%p2 bra WAIT; ld.shared.u32 %r5, [memory]; bra END;
    ARRIVE: st.shared.u32 [memory], 9; mbarrier.arrive.shared.b64 %d7, [bar];
    END: st.global.u32 [%d8], %r5;"""
    inside = ".shared .align 8 .b8 bar[8]; .shared .align 4 .b8 memory[4];"
    assert ran(body, 64, inside=inside) == [9] * 32 + [1] * 32


@pytest.mark.parametrize("mode, by, clamp, other", [
    ("bfly", 5, 0x1F, lambda i: i ^ 5), ("up", 3, 0, lambda i: i - 3 if i >= 3 else i),
    ("down", 3, 0x1F, lambda i: i + 3 if i < 29 else i), ("idx", 7, 0x1F, lambda i: 7),
    ("down", 2, 0x181F, lambda i: i + 2 if i % 8 < 6 else i),  # in segments of 8
])  # fmt: skip
def test_shuffles(mode, by, clamp, other):
    body = f"""
    mul.lo.u32 %r2, %r1, %r1; shfl.sync.{mode}.b32 %r3|%p1, %r2, {by}, {clamp}, -1; selp.u32 %r4, 10000, 0, %p1;
    add.u32 %r3, %r3, %r4; st.global.u32 [%d8], %r3;"""
    inside = [other(i) != i or mode == "idx" or (mode == "bfly") for i in range(32)]
    assert ran(body) == [other(i) ** 2 + 10000 * ok for i, ok in enumerate(inside)]


def test_votes_and_reductions():
    body = EACH.format(0) + """
    setp.lt.u32 %p1, %r1, 4; vote.sync.ballot.b32 %r2, %p1, -1; vote.sync.any.pred %p2, %p1, -1;
    redux.sync.max.u32 %r3, %r1, -1; and.b32 %r6, %r1, 1; match.any.sync.b32 %r5, %r6, -1;
    selp.u32 %r7, 1, 0, %p2; st.global.v4.u32 [%d8], {%r2, %r3, %r5, %r7};"""  # fmt: skip
    body = body.replace("mul.wide.u32 %d9, %r1, 4", "mul.wide.u32 %d9, %r1, 16")
    out = numbers(128)
    kernel(body, ["out"])((1,), (32,), 0, out)
    assert out.reshape(32, 4)[:2].tolist() == [[15, 31, 0x55555555, 1], [15, 31, 0xAAAAAAAA - (1 << 32), 1]]


def test_lanes_that_shuffle_wait_for_those_that_came_another_way():
    """Even lanes come to it first: the others go by way of code that stands behind it."""
    body = """
    and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 0; @!%p1 bra FAR; add.u32 %r1, %r1, 200;
    MEET: shfl.sync.bfly.b32 %r3, %r1, 1, 31, -1; st.global.u32 [%d8], %r3; bra END;
    FAR: add.u32 %r1, %r1, 100; bra MEET; END:"""
    assert ran(body) == [(i ^ 1) + (100 if i % 2 == 0 else 200) for i in range(32)]


def test_matrices_come_as_rows_and_as_columns():
    """ldmatrix, transposed and not, and back by stmatrix; movmatrix transposes, too."""
    body = EACH.format(0) + """
    mov.u32 %r9, memory; ld.global.u32 %r2, [%d8]; shl.b32 %r3, %r1, 2; add.u32 %r3, %r9, %r3;
    st.shared.u32 [%r3], %r2; bar.sync 0;
    and.b32 %r4, %r1, 7; shl.b32 %r4, %r4, 4; add.u32 %r4, %r9, %r4;
    ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r5}, [%r4]; movmatrix.sync.aligned.m8n8.trans.b16 %r6, %r2;
    add.s64 %d7, %d1, %d9; st.global.u32 [%d7], %r5; st.global.u32 [%d7+128], %r6;
    stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%r4], {%r5}; bar.sync 0; ld.shared.u32 %r2, [%r3];
    st.global.u32 [%d7+256], %r2;
    """  # fmt: skip
    x = torch.arange(64, dtype=torch.int16).reshape(8, 8)
    out = torch.zeros(3, 8, 8, dtype=torch.int16)
    kernel(body, inside=".shared .align 16 .b8 memory[128];")((1,), (32,), 0, x, out)
    assert torch.equal(out[0], x.T) and torch.equal(out[1], x.T) and torch.equal(out[2], x)


def test_copies_fill_with_zeros_and_generic_addresses_find_their_memory():
    body = EACH.format(0) + """
    mov.u32 %r9, memory; shl.b32 %r2, %r1, 4; add.u32 %r3, %r9, %r2; mul.wide.u32 %d9, %r1, 16;
    add.s64 %d8, %d0, %d9; mov.u32 %r4, 8;
    cp.async.cg.shared.global [%r3], [%d8], 16, %r4; cp.async.wait_all; cvt.u64.u32 %d6, %r3;
    cvta.shared.u64 %d6, %d6;
    ld.v4.u32 {%r10, %r11, %r12, %r13}, [%d6]; add.s64 %d7, %d1, %d9; st.v4.u32 [%d7], {%r10, %r11, %r12, %r13};
    """  # fmt: skip
    x, out = torch.arange(1, 129, dtype=torch.int32), numbers(128)
    kernel(body, inside=".shared .align 16 .b8 memory[512];")((1,), (32,), 0, x, out)
    assert torch.equal(out.reshape(32, 4)[:, :2], x.reshape(32, 4)[:, :2]) and not out.reshape(32, 4)[:, 2:].any()


def test_local_memory_is_each_threads_own():
    body = "st.local.u32 [own+4], %r1; ld.local.u32 %r2, [own+4]; st.global.u32 [%d8], %r2;"
    assert ran(body, 64, inside=".local .align 4 .b8 own[8];") == [*range(64)]


def test_atomics_have_an_order():
    """Lanes one after the other: what each finds is what those before it left."""
    body = EACH.format(1) + """
    atom.global.add.u32 %r2, [%d0], 2; st.global.u32 [%d8], %r2; mov.f32 %f1, 0f3F800000;
    red.global.add.f32 [%d0+4], %f1;
    atom.global.cas.b32 %r3, [%d0+8], 0, %r1; atom.global.max.s32 %r4, [%d0+12], %r1;"""  # fmt: skip
    counters, out = numbers(4), numbers(64)
    kernel(body)((2,), (32,), 0, counters, out)
    assert counters[[0, 3]].tolist() == [128, 31] and counters[1:2].view(torch.float32).item() == 64
    assert out[:32].tolist() == [64 + 2 * i for i in range(32)]  # of the second block, the last to write


def test_lanes_with_one_address_keep_their_order_beside_lanes_with_others():
    """Lane i exchanges i with the word i mod 5: it finds what lane i - 5 left there."""
    body = EACH.format(1) + """
    rem.u32 %r2, %r1, 5; mul.wide.u32 %d9, %r2, 4; add.s64 %d9, %d9, %d0;
    atom.global.exch.b32 %r3, [%d9], %r1; st.global.u32 [%d8], %r3;"""  # fmt: skip
    words, out = torch.full((5,), 99, dtype=torch.int32), numbers(32)
    kernel(body)((1,), (32,), 0, words, out)
    assert out.tolist() == [99] * 5 + [*range(27)] and words.tolist() == [30, 31, 27, 28, 29]


def test_every_special_register_has_a_value():
    small = kernel("".join(f"mov.u32 %r1, {name};" for name in sorted(SPECIAL_REGISTERS)), ["out"])
    assert small((1,), (48,), 0, numbers(1)) == 2 * (len(SPECIAL_REGISTERS) + 2)


def test_blocks_and_threads_in_three_dimensions():
    body = """
    mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z; mov.u32 %r4, %ctaid.x; mov.u32 %r5, %ctaid.y;
    mad.lo.u32 %r6, %r2, 4, %r1; mad.lo.u32 %r6, %r3, 8, %r6;
    mad.lo.u32 %r7, %r5, 3, %r4; mad.lo.u32 %r6, %r7, 16, %r6;
    mul.wide.u32 %d9, %r6, 4; add.s64 %d8, %d0, %d9; mov.u32 %r8, %nctaid.x; add.u32 %r6, %r6, %r8;
    st.global.u32 [%d8], %r6;
    """
    out = numbers(96)
    small = kernel(body, ["out"])
    small((3, 2), (4, 2, 2), 0, out)
    assert out.tolist() == [i + 3 for i in range(96)]
    out.zero_()
    small((3, 2), (4, 2, 2), 0, out, blocks=[(1, 1, 0)])
    assert out.nonzero().flatten().tolist() == [*range(64, 80)]


def test_structures_numbers_and_variables_of_the_module():
    """A structure by value, a number, and a table in constant memory."""
    outside = ".const .align 4 .u32 table[4] = {5, 6, 7, 8};\n.global .align 4 .b8 kept[4];"
    source = text("""
    ld.param.u64 %d0, [given+8]; ld.param.f32 %f1, [given+16]; ld.param.u32 %r1, [number];
    mov.u64 %d1, table; cvt.u64.u32 %d2, %r1; shl.b64 %d2, %d2, 2; add.s64 %d1, %d1, %d2; ld.const.u32 %r2, [%d1];
    ld.global.u32 %r3, [kept]; add.u32 %r3, %r3, 1; st.global.u32 [kept], %r3;
    st.global.f32 [%d0], %f1; st.global.u32 [%d0+4], %r2; st.global.u32 [%d0+8], %r3;
    """, [], outside=outside)  # fmt: skip
    source = source.replace("small()", "small(.param .align 8 .b8 given[24], .param .u32 number)")
    out = numbers(3)
    layout = {"first": (0, 4), "out": (8, 8), "scale": (16, 4)}
    small = Kernel(source)
    for launch in (1, 2):
        small((1,), (1,), 0, Structure(layout, 24, dict(out=out, scale=0.5)), 2)
        assert out[:1].view(torch.float32).item() == 0.5 and out[1:].tolist() == [7, launch]
    with pytest.raises(ValueError, match="got a field 'scales'; accepted are first, out, scale"):
        small((1,), (1,), 0, Structure(layout, 24, dict(scales=1.0)), 2)
    with pytest.raises(ValueError, match="got 1; accepted are the 2 that small takes"):
        small((1,), (1,), 0, 2)
    with pytest.raises(ValueError, match="argument 0: got a structure of 16 bytes; accepted are 24"):
        small((1,), (1,), 0, Structure(layout, 16), 2)


PART = "mov.u32 %r1, %laneid; setp.gt.u32 %p1, %r1, 3; @%p1 bra A;"  # lanes 0 to 3 go on
LOAD = EACH.format(0) + "ld.global.u32 %r2, [%d8{0}]; st.global.u32 [%d1], %r2;"


@pytest.mark.parametrize("body, reason", [
    (LOAD.format("+4"), r"thread \(31, 0, 0\): 4 bytes at 0x\w+ are outside of argument 0, 0 bytes behind its end"),
    (LOAD.format("-8"), r"thread \(0, 0, 0\): 4 bytes at 0x\w+ are outside of argument 0, 8 bytes before it begins"),
    (LOAD.format("+2"), r"thread \(0, 0, 0\): 0x\w+ is no multiple of 4,"),
    ("ld.global.u32 %r2, [%d5];", "in no tensor of"),
    ("ld.global.u32 %r2, [%d5+-4];", "in no tensor of"),  # the end of the access is address 0
    ("mov.u32 %r1, %laneid; setp.eq.u32 %p1, %r1, 3; selp.b64 %d6, %d5, %d0, %p1; ld.u32 %r2, [%d6+-4];",
     "argument 0|in no tensor of"),
    ("ld.shared.u32 %r2, [memory];", "shared memory at 0 was never written"),
    ("st.shared.u32 [memory+62], 1;", "is no multiple of 4"),
    ("st.shared.u32 [memory+64], 1;", "4 bytes at 64 of shared memory, which has 64"),
    ("trap;", "the kernel ends itself"),
    ("mov.u32 %r1, %laneid; setp.gt.u32 %p1, %r1, 3; @%p1 exit; bar.sync 1, 64;", "threads wait for"),
    (PART + "shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1; A: bar.sync 0;",
     "lanes 4, 5, .* do not come"),
    (PART + "shfl.sync.bfly.b32 %r2, %r1, 4, 31, 15; A: bar.sync 0;",
     "it reads lane 4, which takes no part"),
])  # fmt: skip
def test_what_a_kernel_may_not_do_is_a_fault_with_its_place(body, reason):
    x, out = numbers(32), numbers(32)
    small = kernel(".loc 1 77 3\n" + body, inside=".shared .align 16 .b8 memory[64];", outside='.file 1 "my_kernel.cu"')
    place = r"small: my_kernel.cu, line 77 \(line \d+ of its PTX\): .*block \(0, 0, 0\)"
    with pytest.raises(Fault, match=f"{place}, .*{reason}"):
        small((1,), (32,), 0, x, out)


def test_what_is_never_written_can_hold_something():
    out = numbers(1)
    body, inside = "ld.shared.u32 %r2, [memory]; st.global.u32 [%d0], %r2;", ".shared .align 4 .b8 memory[4];"
    small = kernel(body, ["out"], inside=inside)
    small((1,), (1,), 0, out, unwritten=0xFF)
    assert out.item() == -1


def test_what_is_not_modelled_is_named_before_anything_runs():
    body = "tex.1d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%d1, {%f1}]; add.sat.s32 %r1, %r2, %r3; add.u32 %r1, %r1, 1;"
    body += "\nadd.sat.s32 %r1, %r1, 1; mov.u32 %r1, %clock; max.s16x2 %r1, %r2, %r3;"
    body += "shfl.sync.b32 %r1, %r2, 1, 2, -1;"
    named = r"tex.1d.v4.f32.f32: .*\(line \d+\).*add.sat.s32: .*\(line \d+, \d+\); .*%clock"
    with pytest.raises(ValueError, match=named + ".*max.s16x2: its type .*shfl"):
        kernel(body)
    with pytest.raises(ValueError, match=r"PTX, line 4: got 'nonsense'"):
        Kernel(".version 8.0\n.target sm_80\n.address_size 64\nnonsense")
    with pytest.raises(ValueError, match="gpu: got 'P100'; accepted are A100"):
        kernel("", gpu="P100")
    with pytest.raises(ValueError, match="entry: got 'large'; accepted is one of small"):
        Kernel(text(""), "large")


def test_words_as_asm_in_cudas_headers_writes_them():
    small, out = kernel("{.reg.b32 low, high; mov.u32 low, WARP_SZ; st.global.u32 [%d1], low;}"), numbers(1)
    small((1,), (1,), 0, numbers(1), out)
    assert out.item() == 32


@pytest.mark.parametrize("function", ["vprintf", "other"])
def test_a_kernel_that_could_call_a_function_runs_until_it_does(function):
    body = f"""
    ld.global.u32 %r1, [%d0]; setp.eq.u32 %p1, %r1, 0; @%p1 bra QUIET;
    {{ .param .b64 param0; st.param.b64 [param0+0], %d0; .param .b32 retval0;
    call.uni (retval0), {function}, (param0, param0); ld.param.b32 %r2, [retval0+0]; }}
    QUIET: st.global.u32 [%d1], 3;"""
    small = kernel(body, outside=f".extern .func (.param .b32 back) {function} (.param .b64 a, .param .b64 b);")
    x, out = numbers(1), numbers(1)
    small((1,), (1,), 0, x, out)
    assert out.item() == 3
    with nullcontext() if function == "vprintf" else pytest.raises(Fault, match="calls the function other, and none"):
        small((1,), (1,), 0, x + 1, out)


def test_a_call_by_address_is_refused():
    body = "mov.u64 %d2, other; { call (ret), %d2, (a), form; form: .callprototype (.param .b32 _) _ (.param .b32 _); }"
    with pytest.raises(ValueError, match=r"there is no variable other \(addresses of functions are not modelled\)"):
        kernel(body, outside=".func (.param .b32 ret) other (.param .b32 a) { ret; }")


def test_names_of_inner_scopes_are_their_own():
    inner = "{ .reg .b32 %r2; mov.u32 %r2, 5; { .reg .b32 t; mov.u32 t, %r2; } } { .reg .b32 t; mov.u32 t, 9; }"
    assert ran(f"mov.u32 %r2, 1; {inner} st.global.u32 [%d8], %r2;") == [1] * 32


def test_products_are_joined_to_sums_where_ptxas_joins_them():
    x = np.float32(1 + 2.0**-12)  # its square needs 25 bits

    def result(body):
        out = numbers(1, torch.float32)
        start = f"mov.f32 %f1, 0f{x.view(np.uint32):08X}; mov.f32 %f2, 0fBF800000;"
        kernel(f"{start} {body} st.global.f32 [%d0], %f4;", ["out"])((1,), (1,), 0, out)
        return out.item()

    once, twice = float(x) ** 2 - 1, float(np.float32(x * x)) - 1
    assert once != twice
    assert result("mul.f32 %f3, %f1, %f1; add.f32 %f4, %f3, %f2;") == once
    assert result("mul.f32 %f3, %f1, %f1; sub.f32 %f4, %f3, 0f3F800000;") == once
    assert result("mul.f32 %f3, %f1, %f1; sub.f32 %f4, %f2, %f3;") == -float(np.float32(float(x) ** 2 + 1))
    assert result("mul.ftz.f32 %f3, %f1, %f1; add.ftz.f32 %f4, %f2, %f3;") == once
    for kept in (
        "mul.rn.f32 %f3, %f1, %f1; add.f32 %f4, %f3, %f2;",
        "mul.f32 %f3, %f1, %f1; add.rn.f32 %f4, %f3, %f2;",
        "mul.f32 %f3, %f1, %f1; add.f32 %f4, %f3, %f2; mov.f32 %f5, %f3;",  # it is used twice
        "mov.u32 %r1, 0; setp.ne.u32 %p1, %r1, 0; mul.f32 %f3, %f1, %f1; L: add.f32 %f4, %f3, %f2; @%p1 bra L;",
    ):  # the last one has them in two basic blocks
        assert result(kept) == twice, kept
    assert result("mul.f32 %f3, %f1, %f1; L: add.f32 %f4, %f3, %f2;") == once  # a label that nothing branches to


@pytest.mark.parametrize("kind, one, digits", [("f16x2", 0x3C00, 11), ("bf16x2", 0x3F80, 8)])
def test_products_of_16_bits_are_joined_too(kind, one, digits):
    """The square of 1 + 3 ulp needs more digits; the sum with -1 shows them."""

    def result(body):
        start = f"mov.b32 %r1, 0x{(one + 3) * 0x10001:08X}; mov.b32 %r2, 0x{(one | 0x8000) * 0x10001:08X};"
        out = numbers(1)
        kernel(f"{start} {body} st.global.u32 [%d0], %r4;", ["out"])((1,), (1,), 0, out)
        dtype = {"f16x2": torch.float16, "bf16x2": torch.bfloat16}[kind]
        return out.view(dtype).double().tolist()

    ulp = 2.0 ** (1 - digits)
    once, twice = 6 * ulp + 8 * ulp**2, 6 * ulp  # of 9 ulp^2, 8 are left
    assert result(f"mul.{kind} %r3, %r1, %r1; add.{kind} %r4, %r3, %r2;") == [once, once]
    assert result(f"mul.rn.{kind} %r3, %r1, %r1; add.{kind} %r4, %r3, %r2;") == [twice, twice]
    assert result(f"mul.{kind} %r3, %r1, %r2; sub.{kind} %r4, %r3, %r2;") == [-3 * ulp, -3 * ulp]
    assert result(f"mul.{kind} %r3, %r1, %r1; neg.{kind} %r5, %r2; sub.{kind} %r4, %r5, %r3;") == [-once, -once]


def test_a_quotient_by_a_constant_is_a_product_and_joined_to_a_sum():
    """ptxas takes 1 / 255 rounded to nearest; MUFU.RCP of an H100 gives the number below it."""
    a, c = np.float32(87.3), np.float32(-0.34)

    def result(body, gpu="H100"):
        start = "".join(f"mov.f32 %f{i}, 0f{x.view(np.uint32):08X};" for i, x in ((1, a), (3, c)))
        start += "ld.global.f32 %f2, [%d0];"
        out = torch.tensor([255.0])
        one = kernel(f"{start} {body} st.global.f32 [%d0], %f5;", ["out"], gpu=gpu)
        one((1,), (1,), 0, out)
        return np.float32(out.item())

    nearest, below = np.float32(1 / 255), np.nextafter(np.float32(1 / 255), np.float32(0))
    assert result("mov.f32 %f4, 0f437F0000; div.full.f32 %f5, %f1, %f4;") == a * nearest
    assert result("div.full.f32 %f5, %f1, %f2;") == a * below != a * nearest
    fused = np.float32(float(a) * float(below) + float(c))
    assert result("div.full.f32 %f4, %f1, %f2; add.f32 %f5, %f4, %f3;") == fused != a * below + c
    fused = np.float32(float(c) - float(a) * float(below))
    assert result("div.approx.f32 %f4, %f1, %f2; sub.f32 %f5, %f3, %f4;") == fused
    assert result("div.rn.f32 %f4, %f1, %f2; add.f32 %f5, %f4, %f3;") == np.float32(a / np.float32(255)) + c
    exactly = np.float32(float(a) / 255 + float(c))
    assert result("div.full.f32 %f4, %f1, %f2; add.f32 %f5, %f4, %f3;", "A100") == exactly
