"""Random programs, run by numpy and compiled: memory, shared memory and registers end with the same bits."""

import random

import pytest
import torch
from small_ptx import kernel

WORDS = 24  # registers of each kind that programs use
PLAIN = {  # instructions by the kind of their registers; {} is a register of that kind
    "%r": ["add.s32 {}, {}, {}", "sub.u32 {}, {}, {}", "mul.lo.s32 {}, {}, {}", "mul.hi.u32 {}, {}, {}",
           "mul.hi.s32 {}, {}, {}", "mad.lo.s32 {}, {}, {}, {}", "and.b32 {}, {}, {}", "xor.b32 {}, {}, {}",
           "or.b32 {}, {}, {}", "not.b32 {}, {}", "shl.b32 {}, {}, 5", "shr.s32 {}, {}, {}", "shr.u32 {}, {}, 3",
           "min.s32 {}, {}, {}", "max.u32 {}, {}, {}", "neg.s32 {}, {}", "prmt.b32 {}, {}, {}, 0x5410",
           "lop3.b32 {}, {}, {}, {}, 0x96", "bfe.u32 {}, {}, 3, 9", "bfi.b32 {}, {}, {}, 4, 8", "popc.b32 {}, {}",
           "bfe.s32 {}, {}, {}, {}", "bfi.b32 {}, {}, {}, {}, {}", "prmt.b32 {}, {}, {}, {}",
           "div.u32 {}, {}, {}", "rem.s32 {}, {}, {}", "div.s32 {}, {}, {}", "rem.u32 {}, {}, {}",
           "dp4a.s32.s32 {}, {}, {}, {}", "dp4a.u32.s32 {}, {}, {}, {}", "dp4a.u32.u32 {}, {}, {}, {}",
           "shf.l.wrap.b32 {}, {}, {}, 7", "mov.u32 {}, %laneid",
           "fma.rn.f16x2 {}, {}, {}, {}", "add.f16x2 {}, {}, {}", "max.bf16x2 {}, {}, {}", "mov.b32 {}, {}",
           "sub.bf16x2 {}, {}, {}", "mul.f16x2 {}, {}, {}", "neg.bf16x2 {}, {}", "abs.f16x2 {}, {}"],
    "%f": ["add.f32 {}, {}, {}", "sub.ftz.f32 {}, {}, {}", "mul.f32 {}, {}, {}", "fma.rn.f32 {}, {}, {}, {}",
           "fma.rn.ftz.f32 {}, {}, {}, {}", "max.f32 {}, {}, {}", "min.ftz.f32 {}, {}, {}", "ex2.approx.ftz.f32 {}, {}",
           "rcp.approx.ftz.f32 {}, {}", "sqrt.rn.f32 {}, {}", "neg.f32 {}, {}", "abs.f32 {}, {}",
           "lg2.approx.f32 {}, {}",
           "abs.ftz.f32 {}, {}", "copysign.f32 {}, {}, {}", "add.rz.ftz.f32 {}, {}, {}", "mul.rz.f32 {}, {}, {}",
           "fma.rz.f32 {}, {}, {}, {}", "cvt.rzi.f32.f32 {}, {}", "cvt.rmi.ftz.f32.f32 {}, {}",
           "div.rn.f32 {}, {}, {}", "add.rz.f32 {}, {}, {}", "mul.sat.f32 {}, {}, {}", "rsqrt.approx.f32 {}, {}"],
    "%d": ["add.s64 {}, {}, {}", "sub.s64 {}, {}, {}", "mul.lo.s64 {}, {}, {}", "xor.b64 {}, {}, {}",
           "shl.b64 {}, {}, 9", "shr.s64 {}, {}, 13", "min.u64 {}, {}, {}"],
    "%h": ["add.s16 {}, {}, {}", "xor.b16 {}, {}, {}", "mul.lo.u16 {}, {}, {}", "fma.rn.bf16 {}, {}, {}, {}",
           "fma.rn.f16 {}, {}, {}, {}", "sub.f16 {}, {}, {}", "mul.bf16 {}, {}, {}", "min.f16 {}, {}, {}",
           "max.bf16 {}, {}, {}", "neg.f16 {}, {}", "abs.bf16 {}, {}"],
}  # fmt: skip
MIXED = [  # with their operands' kinds
    ("cvt.rn.bf16x2.f32 {}, {}, {}", "%r%f%f"), ("cvt.rn.f16.f32 {}, {}", "%h%f"), ("cvt.f32.f16 {}, {}", "%f%h"),
    ("cvt.rn.bf16.f32 {}, {}", "%h%f"), ("cvt.f32.bf16 {}, {}", "%f%h"), ("cvt.rn.f32.s32 {}, {}", "%f%r"),
    ("cvt.rzi.s32.f32 {}, {}", "%r%f"), ("cvt.rni.u32.f32 {}, {}", "%r%f"), ("cvt.rmi.ftz.s16.f32 {}, {}", "%h%f"),
    ("cvt.rpi.u16.f32 {}, {}", "%h%f"), ("popc.b64 {}, {}", "%r%d"),
    ("cvt.rn.f32.s16 {}, {}", "%f%h"), ("cvt.rn.f16.u16 {}, {}", "%h%h"), ("cvt.rn.f16.s32 {}, {}", "%h%r"),
    ("cvt.rn.f32.s64 {}, {}", "%f%d"), ("cvt.rn.f32.u64 {}, {}", "%f%d"),
    ("cvt.s64.s32 {}, {}", "%d%r"), ("cvt.u32.u64 {}, {}", "%r%d"),
    ("cvt.u16.u32 {}, {}", "%h%r"), ("mul.wide.u32 {}, {}, {}", "%d%r%r"), ("mad.wide.s32 {}, {}, {}, {}", "%d%r%r%d"),
    ("mov.b32 {}, {}", "%f%r"), ("mov.b32 {}, {}", "%r%f"), ("mov.b64 {}, {{{}, {}}}", "%d%r%r"),
    ("mov.b64 {{{}, {}}}, {}", "%r%r%d"), ("mov.b32 {{{}, {}}}, {}", "%h%h%r"), ("mov.b32 {}, {{{}, {}}}", "%r%h%h"),
    ("setp.lt.s32 {}, {}, {}", "%p%r%r"), ("setp.gt.ftz.f32 {}, {}, {}", "%p%f%f"),
    ("setp.neu.f32 {}, {}, {}", "%p%f%f"),
    ("setp.ge.and.u32 {}, {}, {}, {}", "%p%r%r%p"), ("and.pred {}, {}, {}", "%p%p%p"), ("not.pred {}, {}", "%p%p"),
    ("selp.b32 {}, {}, {}, {}", "%r%r%r%p"), ("selp.f32 {}, {}, {}, {}", "%f%f%f%p"),
    ("setp.eq.u64 {}, {}, {}", "%p%d%d"), ("vote.sync.ballot.b32 {}, {}, -1", "%r%p"),
    ("shfl.sync.bfly.b32 {}, {}, 9, 31, -1", "%r%r"), ("shfl.sync.down.b32 {}|%p9, {}, 3, 0x101f, -1", "%r%r"),
    ("redux.sync.add.s32 {}, {}, -1", "%r%r"), ("movmatrix.sync.aligned.m8n8.trans.b16 {}, {}", "%r%r"),
    ("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{{}, {}}}, [%r60]", "%r%r"),
    ("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{{}, {}, {}, {}}}, [%r60]", "%r%r%r%r"),
    ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {{{}, {}, {}, {}}}, {{{}, {}, {}, {}}}, {{{}, {}}}, "
     "{{{}, {}, {}, {}}}", "%f%f%f%f%r%r%r%r%r%r%f%f%f%f"),
    ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {{{}, {}, {}, {}}}, {{{}, {}, {}, {}}}, {{{}, {}}}, "
     "{{{}, {}, {}, {}}}", "%f%f%f%f%r%r%r%r%r%r%f%f%f%f"),
    ("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {{{}, {}}}, {{{}, {}, {}, {}}}, {{{}, {}}}, {{{}, {}}}",
     "%r%r%r%r%r%r%r%r%r%r"),
    ("mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32 {{{}, {}, {}, {}}}, {{{}, {}, {}, {}}}, {{{}, {}}}, "
     "{{{}, {}, {}, {}}}", "%r%r%r%r%r%r%r%r%r%r%r%r%r%r"),
    ("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {{{}, {}, {}, {}}}, {{{}, {}}}, {{{}}}, {{{}, {}, {}, {}}}",
     "%r%r%r%r%r%r%r%r%r%r%r"),
    ("st.shared.u32 [%r61], {}", "%r"), ("ld.shared.v2.u32 {{{}, {}}}, [%r62]", "%r%r"),
    ("ld.global.u8 {}, [%d30+5]", "%h"), ("ld.global.v2.s8 {{{}, {}}}, [%d30+2]", "%r%h"),
    ("ld.shared.s32 {}, [%r61]", "%d"), ("st.global.u8 [%d30+9], {}", "%h"),
    ("st.shared.v2.u16 [%r61], {{{}, {}}}", "%r%d"),
    ("ld.global.u16 {}, [%d30+6]", "%h"), ("ld.global.v2.f32 {{{}, {}}}, [%d30+8]", "%f%f"),
    ("st.global.b64 [%d30+16], {}", "%d"),
    ("atom.shared.max.s32 {}, [%r61], {}", "%r%r"), ("atom.shared.min.u32 {}, [%r59], {}", "%r%r"),
    ("atom.shared.add.u32 {}, [%r59+8], {}", "%r%r"), ("atom.shared.min.s32 {}, [%r62], {}", "%r%r"),
    ("ld.u32 {}, [%d28]", "%r"), ("st.v2.u16 [%d28], {{{}, {}}}", "%h%h"), ("ld.v2.u32 {{{}, {}}}, [%d30+8]", "%r%r"),
    ("st.u32 [%d30+24], {}", "%r"), ("ld.u32 {}, [%d27]", "%r"), ("st.u32 [%d27], {}", "%r"),
    ("st.local.u32 [depot+8], {}", "%r"), ("ld.local.v2.u32 {{{}, {}}}, [depot+8]", "%r%r"),
    ("st.local.v2.u16 [depot+12], {{{}, {}}}", "%h%h"), ("setp.nan.f32 {}, {}, {}", "%p%f%f"),
    ("ld.shared.f32 {}, [%r61]", "%f"), ("st.shared.v4.u32 [%r60], {{{}, {}, {}, {}}}", "%r%r%r%r"),
]  # fmt: skip
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
        done = one((1,), (64,), 0, memory, out)
        ends.append((done.instructions, memory, out))
    assert ends[0][0] == ends[1][0]
    assert torch.equal(ends[0][1], ends[1][1]) and torch.equal(ends[0][2], ends[1][2])


def test_what_kernels_do_most_is_compiled():
    known = [(text, kind * text.count("{}")) for kind, texts in PLAIN.items() for text in texts] + MIXED
    draw, lines = random.Random(0), []
    for text, kinds in known:
        lines.append(text.format(*(register(draw, f"%{kind}") for kind in kinds.split("%")[1:])) + ";")
    left = kernel("\n".join(lines), inside=INSIDE).native.left
    assert {each.split(".")[0] for each in left} == {"lg2", "mul", "vote", "redux", "movmatrix"}
    assert {each for each in left if each[:3] == "mul"} == {"mul.sat.f32"}
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
        assert torch.equal(
            out, torch.arange(128, dtype=torch.int32)[:, None] + torch.tensor([0, 128], dtype=torch.int32)
        )
