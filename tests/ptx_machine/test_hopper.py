"""What Hopper adds: copies of boxes by a tensor map, barriers that count bytes, matrices in shared memory. A kernel
copies boxes with their swizzle; the products read them by their descriptors, which a different rule of PTX describes:
so each checks the other. Blackwell's products are FlashAttention-4's, in tests/gpu/test_flash_attn.py."""

from functools import partial

import numpy as np
import pytest
import small_ptx
import torch
from small_ptx import lanewise

from ptx_machine.arguments import Structure
from ptx_machine.device import GPU
from ptx_machine.launch import Kernel
from ptx_machine.memory import Fault
from ptx_machine.shared_matrices import Descriptor, places
from ptx_machine.tensor_maps import tensor_map

pytestmark = pytest.mark.usefixtures("machine")
SHARED = ".extern .shared .align 1024 .b8 memory[];"
HEAD = partial(small_ptx.HEAD.format, target="sm_100a", name="small", outside=SHARED, inside="")
BEGIN = """
mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; mov.b32 %r0, memory;
@%p1 mbarrier.init.shared.b64 [%r0], 1; bar.sync 0;
"""
WAIT = """{{ .reg .pred ok;
AGAIN: mbarrier.try_wait.parity.shared.b64 ok, [%r0{at}], {parity}; @ok bra OUT; bra AGAIN; OUT: }}"""
LOAD = (
    "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [{to}], [%d9, {{{x}, {y}}}], [%r0];"
)
STORE = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d9, {{{x}, {y}}}], [{of}];"


def made(body, maps=0, pointers=(), gpu="H100"):
    parameters = [*(f".param .align 64 .b8 map{i}[128]" for i in range(maps)), *(f".param .u64 {p}" for p in pointers)]
    text = HEAD(parameters=", ".join(parameters), body=body)
    return Kernel(text, gpu=gpu, compiled=small_ptx.COMPILED[0])


def box_of(i):
    return f"mov.b64 %d8, map{i}; cvta.param.u64 %d9, %d8;"


def descriptor(start, leading, stride, swizzle):
    """Of wgmma: without the two bits that say which swizzle."""
    return (start >> 4) | (leading >> 4) << 16 | (stride >> 4) << 32 | swizzle << 62


def integers(*shape, seed=0):
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.parametrize("x, y", [(0, 0), (-3, 5), (60, 12), (90, 40), (-40, 0)])
@pytest.mark.parametrize("width", [16, 64, 128])
def test_a_box_outside_of_its_tensor_is_zeros_and_writes_nothing_there(width, x, y):
    """Copy a box of 16 x 32 in, and out again to another place: the places agree with torch's padding."""
    source, target = integers(20, 72), torch.full((20, 72), 9.0, dtype=torch.bfloat16)
    body = BEGIN + f"""
    {box_of(0)} @%p1 mbarrier.arrive.expect_tx.shared.b64 %d1, [%r0], 1024;
    @%p1 {LOAD.format(to="%r0+1024", x=x, y=y)} {WAIT.format(at="", parity=0)}
    {box_of(1)} @%p1 {STORE.format(of="%r0+1024", x=8, y=6)}"""  # fmt: skip
    maps = [tensor_map(each, (16, 32), width) for each in (source, target)]
    made(body, 2)((1,), (32,), 4096, *maps)
    box = torch.nn.functional.pad(source, (99, 99, 99, 99))[99 + y :, 99 + x :][:16, :32]
    expected = torch.full((20, 72), 9.0, dtype=torch.bfloat16)
    expected[6:20, 8:40] = box[:14]
    assert torch.equal(target, expected)


def test_a_barrier_waits_for_bytes_that_were_expected():
    """Half of the bytes that are expected: all threads wait for what never comes."""
    body = BEGIN + f"""
    {box_of(0)} @%p1 mbarrier.arrive.expect_tx.shared.b64 %d1, [%r0], 2048;
    @%p1 {LOAD.format(to="%r0+1024", x=0, y=0)} {WAIT.format(at="", parity=0)}"""  # fmt: skip
    with pytest.raises(Fault, match="wait for what never comes"):
        made(body, 1)((1,), (32,), 4096, tensor_map(integers(20, 72), (16, 32), 64))


@pytest.mark.parametrize("copy, reason", [
    (LOAD.format(to="%r0+1040", x=0, y=0), "no multiple of 128"),
    ("cp.async.bulk.tensor.1d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r0+1024], [%d9, {0}], [%r0];",
     "1 dimensions of a tensor that has 2"),
    (LOAD.format(to="%r0+3968", x=0, y=0), "reaches byte"),
])  # fmt: skip
def test_a_copy_that_no_gpu_allows_is_a_fault(copy, reason):
    with pytest.raises(Fault, match=reason):
        made(BEGIN + box_of(0) + copy, 1)((1,), (32,), 4096, tensor_map(integers(20, 72), (16, 32), 64))


def test_bytes_that_lie_together_are_copied():
    """cp.async.bulk without a tensor map: 64 bytes, counted by the barrier."""
    x, out = integers(2, 32), torch.zeros(32, dtype=torch.bfloat16)
    body = BEGIN + f"""ld.param.u64 %d2, [x]; ld.param.u64 %d3, [out];
    @%p1 mbarrier.arrive.expect_tx.shared.b64 %d1, [%r0], 64; mov.b32 %r2, 64; add.u64 %d2, %d2, 64;
    @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0+1024], [%d2], %r2, [%r0];
    {WAIT.format(at="", parity=0)} shl.b32 %r3, %r1, 1; add.u32 %r3, %r3, %r0; ld.shared.u16 %r4, [%r3+1024];
    mul.wide.u32 %d4, %r1, 2; add.s64 %d3, %d3, %d4; st.global.u16 [%d3], %r4;"""  # fmt: skip
    made(body, pointers=["x", "out"])((1,), (32,), 4096, x, out)
    assert torch.equal(out, x[1])


def test_bytes_may_come_before_they_are_expected():
    body = BEGIN + f"""
    {box_of(0)} @%p1 {LOAD.format(to="%r0+1024", x=0, y=0)}
    @%p1 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r0], 1024; @%p1 mbarrier.arrive.shared.b64 %d1, [%r0];
    {WAIT.format(at="", parity=0)}"""  # fmt: skip
    made(body, 1)((1,), (32,), 4096, tensor_map(integers(20, 72), (16, 32), 64))


@pytest.mark.parametrize("width", [32, 64, 128])
@pytest.mark.parametrize("k_major", [True, False])
def test_a_descriptor_finds_what_a_tensor_map_has_laid_out(width, k_major):
    """A box of lines of `width` bytes, as the copy engine lays it out; a descriptor of 16 columns along the sum finds
    every element of a matrix (32, 16) where it is."""
    line, rows = width // 2, 32
    place = np.arange(8192) * 2  # in bytes, of each element of boxes, one behind the other
    swizzled = place ^ ((place >> 7 & (width // 16 - 1)) << 4)
    if k_major:  # rows are lines; the sum goes along a line
        found = places(Descriptor(0, 0, 8 * width, width), rows, 16, 2, True)
        expected = np.array([[swizzled[line * row + k] for k in range(16)] for row in range(rows)])
    else:  # the sum goes from line to line; a box has `line` rows of 16 lines
        found = places(Descriptor(0, 16 * width, 8 * width, width), rows, 16, 2, False)
        expected = np.array(
            [[swizzled[row // line * 16 * line + line * k + row % line] for k in range(16)] for row in range(rows)]
        )
    assert (found == expected).all()


@pytest.mark.parametrize("gives", ["f32", "f16"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("in_registers", [False, True])
def test_wgmma_is_the_product_of_matrices(in_registers, turned, gives):
    """D = A B of 64 x 16 x 64 and 32 more columns of the sum, of four warps; numbers so small that sums are exact."""
    n, k = 32, 32
    kind = "f16" if gives == "f16" else "bf16"
    A, B = (integers(64, k, seed=1), integers(k, n, seed=2))
    A, B = (x.half() if kind == "f16" else x for x in (A, B))
    b_stored = B.contiguous() if turned else B.T.contiguous()  # lines of 64 bytes, row-major or K-major
    count = n // 2 if gives == "f32" else n // 4
    d = ", ".join(f"%r{20 + i}" for i in range(count))
    step = []
    for i in range(2):
        at = descriptor(8192 + (16 * 64 * i if turned else 32 * i), 64, 512, 2)  # %r0 is 0: the first byte
        step.append(f"mov.b64 %d5, {at};")
        if in_registers:
            step.append(
                "".join(f"ld.shared.b32 %r{8 + r}, [%r7+{512 * (r % 2) + 16 * (r // 2) + 32 * i}];" for r in range(4))
            )
            a = "{%r8, %r9, %r10, %r11}"
        else:
            step.append(f"mov.b64 %d4, {descriptor(1024 + 32 * i, 0, 512, 2)};")
            a = "%d4"
        more = f"1, 1, {int(turned)}" if in_registers else f"1, 1, 0, {int(turned)}"
        step.append(f"setp.ne.u32 %p2, {i}, 0;")
        step.append(f"wgmma.mma_async.sync.aligned.m64n{n}k16.{gives}.{kind}.{kind} {{{d}}}, {a}, %d5, %p2, {more};")
    body = BEGIN + f"""
    {box_of(0)} @%p1 mbarrier.arrive.expect_tx.shared.b64 %d1, [%r0], 6144;
    @%p1 {LOAD.format(to="%r0+1024", x=0, y=0)} {box_of(1)} @%p1 {LOAD.format(to="%r0+8192", x=0, y=0)}
    {WAIT.format(at="", parity=0)}
    shr.u32 %r2, %r1, 5; and.b32 %r3, %r1, 31; shr.u32 %r4, %r3, 2; and.b32 %r5, %r3, 3;
    shl.b32 %r6, %r2, 4; add.u32 %r6, %r6, %r4; mul.lo.u32 %r7, %r6, 64;
    mad.lo.u32 %r7, %r5, 4, %r7; add.u32 %r7, %r7, 1024;
    wgmma.fence.sync.aligned; {" ".join(step)} wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
    ld.param.u64 %d2, [out]; mul.wide.u32 %d3, %r1, {4 * count}; add.s64 %d2, %d2, %d3;
    {" ".join(f"st.global.b32 [%d2+{4 * i}], %r{20 + i};" for i in range(count))}"""  # fmt: skip
    out = torch.zeros(128, count, dtype=torch.int32)
    width = 16 if in_registers else 64  # registers are loaded as they lie, without a swizzle
    maps = [tensor_map(A, (64, 32), width), tensor_map(b_stored, (32, 32), 64)]
    made(body, 2, ["out"])((1,), (128,), 16384, *maps, out)
    numbers = out.view(torch.float32 if gives == "f32" else torch.float16).float().view(4, 8, 4, -1, 2, 2)
    D = numbers.permute(0, 4, 1, 3, 2, 5).reshape(64, n)  # warp, half of 16 rows, row, columns of 8, lane, neighbour
    assert torch.equal(D, A.float() @ B.float())


def wgmma(kinds, n, signs, turned, in_registers, A, B, compiled):
    """The bits of the result's registers, (128, count), where all are 1 before; A and B are bytes of shared memory."""
    gives, left = kinds.split(".")
    k = {"tf32": 8, "e4m3": 32, "e5m2": 32}.get(left, 16)
    count = n // 2 if gives == "f32" else n // 4
    one = {"f32": "0x3F800000", "f16": "0x3C003C00"}[gives]
    d = [f"%r{20 + i}" for i in range(count)]
    a = "{%r4, %r5, %r6, %r7}" if in_registers else "%d4"
    words = f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{gives}.{left}.{left}"
    options = [*map(str, signs), *([] if turned is None else [*([] if in_registers else ["0"]), str(int(turned))])]
    body = BEGIN + f"""
    ld.param.u64 %d2, [x]; mul.wide.u32 %d3, %r1, 64; add.s64 %d3, %d2, %d3; shl.b32 %r3, %r1, 6;
    {" ".join(f"ld.global.v4.u32 {{%r4, %r5, %r6, %r7}}, [%d3+{at}]; "
              f"st.shared.v4.b32 [%r3+{at}], {{%r4, %r5, %r6, %r7}};" for at in range(0, 64, 16))}
    bar.sync 0; setp.eq.u32 %p2, 0, 0; {" ".join(f"mov.b32 {each}, {one};" for each in d)}
    mov.b64 %d4, {descriptor(0, 0, 512, 2)}; mov.b64 %d5, {descriptor(4096, 128 if turned else 0, 512, 2)};
    {words} {{{", ".join(d)}}}, {a}, %d5, %p2, {", ".join(options)};
    ld.param.u64 %d2, [out]; mul.wide.u32 %d3, %r1, {4 * count}; add.s64 %d2, %d2, %d3;
    {" ".join(f"st.global.b32 [%d2+{4 * i}], {each};" for i, each in enumerate(d))}"""  # fmt: skip
    memory, out = torch.cat([A, B]), torch.zeros(128, count, dtype=torch.int32)
    text = HEAD(parameters=".param .u64 x, .param .u64 out", body=body)
    launched = Kernel(text, gpu="H100", compiled=compiled)
    assert not compiled or not [each for each in launched.native.left if each.startswith("wgmma")]
    launched((1,), (128,), 8192, memory, out)
    return out


@pytest.mark.parametrize("special", [None, "nan", "inf"])
@pytest.mark.parametrize("kinds, n, signs, turned, in_registers", [
    ("f32.bf16", 64, (1, 1), False, False), ("f32.bf16", 64, (1, -1), True, False),
    ("f32.f16", 16, (-1, 1), True, True), ("f16.f16", 8, (-1, -1), False, True),
    ("f32.tf32", 32, (1, 1), None, False), ("f32.e4m3", 24, (1, 1), None, False), ("f32.e5m2", 24, (1, -1), None, True),
])  # fmt: skip
def test_wgmma_has_the_same_bits_compiled(kinds, n, signs, turned, in_registers, special):
    """Of anything in shared memory, with NaN or infinity, or without."""
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "tf32": torch.float32, "e4m3": torch.float8_e4m3fn,
             "e5m2": torch.float8_e5m2}[kinds.split(".")[1]]  # fmt: skip
    draw = torch.Generator().manual_seed(n)
    size = 4096 // dtype.itemsize
    A, B = (
        (torch.randn(size, generator=draw) * 2.0 ** torch.randint(-3, 4, (size,), generator=draw)) for _ in range(2)
    )
    if special is not None:
        B[5] = float(special)
    A, B = (x.to(dtype).view(torch.uint8) for x in (A, B))
    numpys, compiled = (wgmma(kinds, n, signs, turned, in_registers, A, B, each) for each in (False, True))
    assert torch.equal(numpys, compiled) and len(numpys.unique()) > 20


def test_matrices_of_what_was_never_written_are_a_fault():
    body = (
        BEGIN
        + f"""mov.b64 %d4, {descriptor(1024, 0, 512, 2)}; mov.b64 %d5, {descriptor(8192, 0, 512, 2)};
    setp.ne.u32 %p2, 0, 0;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{%r20, %r21, %r22, %r23}}, %d4, %d5, %p2, 1, 1, 0, 0;"""
    )
    with pytest.raises(Fault, match="never written"):
        made(body)((1,), (128,), 16384)


@pytest.mark.parametrize("gpu, words, reason", [
    ("A100", "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%r20, %r21, %r22, %r23}, %d4, %d5, %p2, 1, 1, 0, 0;",
     "A100 has no wgmma"),
    ("H100", "tcgen05.mma.cta_group::2.kind::f16 [%r1], %d4, %d5, %r2, 1;", "it is not modelled"),
    ("H100", "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
     "[%r0], [%d9, {0, 0}], [%r0], %r5;", "that kind of bulk copy"),
])  # fmt: skip
def test_what_is_not_modelled_is_refused_before_anything_runs(gpu, words, reason):
    with pytest.raises(ValueError, match=reason):
        made(words, gpu=gpu)


def test_races_are_not_looked_for_where_copies_run_beside_threads():
    text = HEAD(parameters=".param .align 64 .b8 map0[128]", body=box_of(0) + LOAD.format(to="%r0", x=0, y=0))
    with pytest.raises(ValueError, match="races"):
        Kernel(text, gpu="H100", races=True)


def test_a_tensor_map_names_what_does_not_fit():
    with pytest.raises(ValueError, match="width: got 32"):
        tensor_map(integers(4, 64), (4, 64), 32)
    with pytest.raises(ValueError, match="tensor: got 2 dimensions"):
        tensor_map(integers(4, 64), (4,), 128)
    assert isinstance(tensor_map(integers(4, 64), (4, 64), 128), Structure)


def pairs(seed):
    x = np.random.default_rng(seed).standard_normal((32, 2)).astype(np.float32) * 2.0 ** np.arange(-16, 16)[:, None]
    x[::7] = np.nan
    return x.astype(np.float32)


@pytest.mark.parametrize("words, of", [
    ("add.rn.f32x2", np.add), ("mul.rn.f32x2", np.multiply), ("sub.rn.f32x2", np.subtract),
    ("add.rm.f32x2", None), ("fma.rn.f32x2", None),
])  # fmt: skip
def test_pairs_of_fp32_are_two_numbers(words, of):
    """Each half has the bits of the instruction on one number."""
    count = 3 if words.startswith("fma") else 2
    operands = [pairs(seed) for seed in range(count)]
    names = ", ".join(f"{{{i}}}" for i in range(count))
    found = lanewise(f"{words} {{out}}, {names}", [x.view(np.uint64)[:, 0] for x in operands], np.uint64)
    halves = found.view(np.uint32).reshape(32, 2)
    for half in range(2):
        single = [np.ascontiguousarray(x[:, half]).view(np.uint32) for x in operands]
        assert (halves[:, half] == lanewise(f"{words[:-2]} {{out}}, {names}", single, np.uint32)).all()
    if of is not None:
        same = of(*operands)
        assert np.array_equal(halves.view(np.float32), same, equal_nan=True)


def test_the_largest_of_three():
    a, b, c = (np.ascontiguousarray(pairs(seed)[:, 0]) for seed in (1, 2, 3))
    found = lanewise("max.f32 {out}, {0}, {1}, {2}", [x.view(np.uint32) for x in (a, b, c)], np.float32)
    assert np.array_equal(found, np.fmax(np.fmax(a, b), c), equal_nan=True)


def test_only_hopper_and_blackwell_have_their_products():
    assert GPU.of("H100").core("bf16", "f32", "wgmma") == GPU.of("H100").core("bf16", "f32")
    with pytest.raises(ValueError, match="H100 has no tcgen05.mma"):
        GPU.of("H100").core("bf16", "f32", "tcgen05.mma")
