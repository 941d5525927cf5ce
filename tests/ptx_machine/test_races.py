"""Races between warps in shared memory."""

import pytest
import torch
from small_ptx import text

from ptx_machine import Fault, Kernel

SHARED = ".shared .align 4 .b8 held[512];"
START = """mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; mov.u32 %r3, held; add.u32 %r4, %r3, %r2;
xor.b32 %r5, %r2, 128; add.u32 %r6, %r3, %r5;"""  # %r4: the thread's own word, %r6: that of a thread of the other warp
END = "cvt.u64.u32 %d5, %r2; add.s64 %d6, %d0, %d5; st.global.u32 [%d6], %r7;"
WRITE, READ, MEET = "st.shared.u32 [%r4], %r1;", "ld.shared.u32 %r7, [%r6];", "bar.sync 0;"


def run(*body, races=True, threads=64):
    out = torch.zeros(threads, dtype=torch.int32)
    kernel = Kernel(text("\n".join([START, *body, END]), ["out"], inside=SHARED), races=races)
    kernel((1,), (threads,), 0, out)
    return out.tolist()


def test_a_barrier_puts_accesses_in_order_and_without_one_they_race():
    swapped = [i ^ 32 for i in range(64)]
    assert run(WRITE, MEET, READ) == swapped
    words = r"thread \(\d+, 0, 0\): a race: warp 1 reads what warp 0 wrote, shared memory at 0"
    with pytest.raises(Fault, match=words):
        run(WRITE, "bar.warp.sync 0xffffffff;", READ.replace("%r6", "%r3"))
    with pytest.raises(Fault, match="a race: warp 1 writes what warp 0 wrote"):
        run("st.shared.u32 [%r3], %r1;", READ.replace("%r6", "%r3"))


def test_a_write_after_a_read_needs_a_barrier_too():
    again = "st.shared.u32 [%r4], %r2;"
    assert run(WRITE, MEET, READ, MEET, again) == [i ^ 32 for i in range(64)]
    with pytest.raises(Fault, match="a race: warp 1 reads what warp 0 wrote"):
        run(WRITE, MEET, READ, again)
    with pytest.raises(Fault, match="a race: warp 1 writes what warp 0 reads"):
        run(WRITE, MEET, READ, "setp.lt.u32 %p1, %r1, 32;", f"@!%p1 {again}")


def test_writes_of_what_is_there_already_do_not_race():
    assert run("st.shared.u32 [%r3], 7;", MEET, READ.replace("%r6", "%r3")) == [7] * 64


def test_a_barrier_that_a_warp_only_arrives_at_orders_one_way():
    """Warp 0 tells and goes on; warp 1 waits for it."""
    parts = "setp.lt.u32 %p1, %r1, 32; @%p1 st.shared.u32 [%r4], %r1; @%p1 bar.arrive 1, 64; @!%p1 bar.sync 1, 64;"
    late = "@!%p1 ld.shared.u32 %r7, [%r6];"
    assert run(parts, late)[32:] == [*range(32)]
    with pytest.raises(Fault, match="a race: warp 1 reads what warp 0 wrote"):
        run(parts, "@%p1 st.shared.u32 [%r4], %r2; @!%p1 nanosleep.u32 1;", late)


def test_atomic_operations_do_not_race_and_hand_on_what_was_written():
    count = "st.shared.u32 [%r3+256], 0; bar.sync 0; atom.shared.add.u32 %r7, [%r3+256], 1;"
    count = count.replace("st.shared", "setp.eq.u32 %p1, %r1, 0; @%p1 st.shared")
    assert sorted(run(count)) == [*range(64)]


def test_what_cp_async_brings_is_read_after_a_wait_and_a_barrier():
    copy = f"{END.replace('%r7', '%r1')} cp.async.ca.shared.global [%r4], [%d6], 4; cp.async.commit_group;"
    swapped = [i ^ 32 for i in range(64)]
    for wait in ("cp.async.wait_group 0;", "cp.async.wait_all;", "cp.async.commit_group; cp.async.wait_group 1;"):
        assert run(copy, wait, MEET, READ) == swapped
    for wait in ("", "cp.async.wait_group 1;"):
        with pytest.raises(Fault, match="reads what a cp.async of warp 1 brings, shared .* has not waited for it"):
            run(copy, wait, MEET, READ)
    with pytest.raises(Fault, match="a race: warp 0 reads what a cp.async of warp 1 brings"):  # which waits too late
        run(copy, MEET, "cp.async.wait_group 0;", READ)


def test_nothing_is_looked_for_unless_asked():
    run(WRITE, READ.replace("%r6", "%r3"), races=False)
