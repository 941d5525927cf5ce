"""Random programs, run by numpy and compiled: memory, shared memory and registers end with the same bits."""

import csv
import random
from pathlib import Path

import pandas as pd
import pytest
import torch
from small_ptx import kernel

WORDS = 24  # registers of each kind that programs use
LISTED = pd.read_csv(Path(__file__).with_name("instructions.tsv"), sep="\t", quoting=csv.QUOTE_NONE).groupby("list")
# instructions by the kind of their registers, {} is a register of that kind; and others, with their operands' kinds
PLAIN = {kind: [*own.text] for kind, own in LISTED.get_group("plain").groupby("kinds", sort=False)}
MIXED = [*LISTED.get_group("mixed")[["text", "kinds"]].itertuples(index=False, name=None)]
INSIDE = ".shared .align 16 .b8 memory[1024]; .local .align 8 .b8 depot[64];"
TOGETHER = ("vote", "shfl", "redux", "movmatrix", "ldmatrix", "mma")  # not under a guard, and not in a loop that parts


def register(draw, kind):
    return f"%p{draw.randint(1, 8)}" if kind == "%p" else f"{kind}{draw.randint(1, WORDS)}"


def line(draw, together):
    """A random instruction; often under a guard."""
    while True:
        if draw.random() < 0.55:
            kind = draw.choice([*PLAIN])
            text = draw.choice(PLAIN[kind])
            kinds = [kind] * text.count("{}")
        else:
            text, words = draw.choice(MIXED)
            kinds = [f"%{word}" for word in words.split("%")[1:]]
        if together or not text.startswith(TOGETHER):
            break
    guard = (
        f"@{draw.choice(['', '!'])}%p{draw.randint(1, 8)} "
        if draw.random() < 0.3 and not text.startswith(TOGETHER)
        else ""
    )
    return f"{guard}{text.format(*(register(draw, kind) for kind in kinds))};"


def program(seed):
    """Registers from memory; instructions, some in a loop that lanes leave at different times; registers to memory."""
    draw = random.Random(seed)
    kinds = {"%r": ("b32", 4), "%f": ("b32", 4), "%d": ("b64", 8), "%h": ("b16", 2)}
    lines = ["mov.u32 %r63, %tid.x; mul.wide.u32 %d31, %r63, 2048; add.s64 %d30, %d0, %d31; add.s64 %d29, %d1, %d31;",
             "mov.u32 %r59, memory; shr.u32 %r60, %r63, 5; shl.b32 %r60, %r60, 9; add.u32 %r59, %r59, %r60;",
             "and.b32 %r63, %r63, 31;",  # each warp has shared memory of its own: no races
             "shl.b32 %r60, %r63, 4; add.u32 %r60, %r60, %r59; shl.b32 %r61, %r63, 2;",
             "add.u32 %r61, %r61, %r59; shl.b32 %r62, %r63, 3; add.u32 %r62, %r62, %r59; mov.u32 %r58, 0;",
             "cvt.u64.u32 %d28, %r61; cvta.shared.u64 %d28, %d28; setp.lt.u32 %p11, %r63, 16;",
             "selp.b64 %d27, %d28, %d30, %p11;"]  # generic addresses: shared, and of some lanes shared  # fmt: skip
    at = 256
    loads, stores = [], []
    for kind, (word, size) in kinds.items():
        for i in range(1, WORDS + 1):
            if (kind, i) != ("%d", 0):
                loads.append(f"ld.global.{word} {kind}{i}, [%d30+{at}];")
                stores.append(f"st.global.{word} [%d29+{at}], {kind}{i};")
                at += size
    lines += loads
    lines += [f"setp.lt.u32 %p{i}, %r{i}, %r{i + 1};" for i in range(1, 9)]
    lines += [f"st.shared.v4.u32 [%r60], {{%r{i}, %r{i + 1}, %r{i + 2}, %r{i + 3}}};" for i in (1, 5)]
    lines += ["bar.sync 0;", *(line(draw, True) for _ in range(60)), "bar.sync 0;"]
    lines += ["AGAIN:", *(line(draw, False) for _ in range(12)), "add.u32 %r58, %r58, 1; and.b32 %r57, %r63, 3;"]
    lines += ["setp.le.u32 %p10, %r58, %r57; @%p10 bra AGAIN;", "bar.sync 0;", *(line(draw, True) for _ in range(30))]
    lines += stores + [f"selp.u32 %r1, 1, 0, %p{i}; st.global.u32 [%d29+{at + 4 * i}], %r1;" for i in range(1, 9)]
    return "\n".join(lines)


def inputs(seed, threads):
    """Bytes for the registers: floats of moderate size and very small ones, and anything."""
    torch.manual_seed(seed)
    anything = torch.randint(-(1 << 31), (1 << 31) - 1, (threads, 512), dtype=torch.int64).to(torch.int32)
    sizes = torch.where(torch.rand(threads, 512) < 0.3, 2.0**-63, 1.0)  # products of these are subnormal
    numbers = (torch.randn(threads, 512) * sizes).view(torch.int32)
    return torch.where(torch.rand(threads, 512) < 0.8, numbers, anything)


@pytest.mark.parametrize("seed", range(14))
def test_both_machines_end_with_the_same_bits(seed):
    ends = []
    for compiled in (False, True):
        memory, out = inputs(seed, 64), torch.zeros(64, 512, dtype=torch.int32)
        one = kernel(program(seed), gpu=["A100", "H100"][seed % 2], compiled=compiled,
                     inside=INSIDE)  # fmt: skip
        instructions = one((1,), (64,), 0, memory, out)
        ends.append((instructions, memory, out))
    assert ends[0][0] == ends[1][0]
    assert torch.equal(ends[0][1], ends[1][1]) and torch.equal(ends[0][2], ends[1][2])


def test_what_kernels_do_most_is_compiled():
    known = [(text, kind * text.count("{}")) for kind, texts in PLAIN.items() for text in texts] + MIXED
    draw, lines = random.Random(0), []
    for text, kinds in known:
        lines.append(text.format(*(register(draw, f"%{kind}") for kind in kinds.split("%")[1:])) + ";")
    left = kernel("\n".join(lines), inside=INSIDE).native.left
    assert {each.split(".")[0] for each in left} == {"redux", "atom"}
    assert not {"fma.rn.f32", "add.f32", "add.s32", "mul.f32", "max.f32", "div.rn.f32", "cvt.rn.bf16x2.f32"} & {*left}


ORDERED = """
mov.u32 %r1, %tid.x; mov.u32 %r2, memory; setp.eq.u32 %p1, %r1, 0; @%p1 st.shared.u32 [%r2], 0;
bar.sync 0; atom.shared.add.u32 %r7, [%r2], 1; bar.sync 0; atom.shared.add.u32 %r8, [%r2], 1;
mul.wide.u32 %d2, %r1, 8; add.s64 %d3, %d1, %d2; st.global.v2.u32 [%d3], {%r7, %r8};
"""


def test_warps_go_on_from_a_barrier_in_the_same_order():
    for compiled in (False, True):
        out = torch.zeros(128, 2, dtype=torch.int32)
        kernel(ORDERED, compiled=compiled, inside=INSIDE)((1,), (128,), 0, torch.zeros(1), out)
        assert torch.equal(out, torch.arange(256, dtype=torch.int32).view(2, 128).T)


PATTERNS = {"one number": "mov.u32 %r2, 24;", "neighbours": "shl.b32 %r2, %r1, {shift};",
            "apart": "mul.lo.u32 %r2, %r1, 40;", "neighbours, the other way round":
            "mov.u32 %r2, 31; sub.u32 %r2, %r2, %r1; shl.b32 %r2, %r2, {shift};"}  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("kind, shift", [("u8", 0), ("s16", 1), ("u32", 2), ("v2.u32", 3)])
@pytest.mark.parametrize("lanes", [32, 20])
def test_loads_and_stores_of_any_pattern_have_the_same_bits(pattern, kind, shift, lanes):
    """Of global and shared memory, by all lanes or some; s16 is extended by its sign."""
    place, item = PATTERNS[pattern].format(shift=shift), ("%r3", "%r4")
    of = "{%r3, %r4}" if kind[0] == "v" else item[0]
    body = f"""mov.u32 %r1, %tid.x; mov.u32 %r3, 0; mov.u32 %r4, 0; {place} cvt.u64.u32 %d2, %r2;
    mov.u32 %r5, memory; mul.lo.u32 %r6, %r1, 64; add.u32 %r6, %r5, %r6;
    mul.wide.u32 %d4, %r1, 64; add.s64 %d5, %d0, %d4;
    {" ".join(f"ld.global.u32 %r7, [%d5+{i}]; st.shared.u32 [%r6+{i}], %r7;" for i in range(0, 64, 4))} bar.sync 0;
    setp.lt.u32 %p1, %r1, {lanes}; add.s64 %d3, %d0, %d2; add.u32 %r5, %r5, %r2;
    @%p1 ld.global.{kind} {of}, [%d3]; @%p1 st.shared.{kind.replace("s16", "u16")} [%r5+8], {of};
    @%p1 ld.shared.{kind} {of}, [%r5+8]; mul.wide.u32 %d4, %r1, 8; add.s64 %d5, %d1, %d4;
    st.global.v2.u32 [%d5], {{%r3, %r4}}; add.s64 %d3, %d1, %d2;
    @%p1 st.global.{kind.replace("s16", "u16")} [%d3+256], {of};"""
    ends = []
    for compiled in (False, True):
        out = torch.zeros(512, dtype=torch.int32)
        kernel(body, compiled=compiled, inside=INSIDE.replace("1024", "4096"))((1,), (32,), 0, inputs(3, 1)[0], out)
        ends.append(out)
    assert torch.equal(*ends) and ends[0].any()
