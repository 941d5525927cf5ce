"""mma.sync: where the registers of a warp hold the elements of matrices, and how products are summed."""

import numpy as np
import pytest
import torch
from small_ptx import kernel

from fa_lib.numerics.formats import BF16, FP16, TF32
from fa_lib.numerics.tensor_cores import TensorCore

pytestmark = pytest.mark.usefixtures("machine")
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "tf32": torch.float32, "s8": torch.int8,
          "u8": torch.uint8, "s32": torch.int32, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}  # fmt: skip
KINDS = ["m16n8k8.f32.f16.f16.f32", "m16n8k16.f32.f16.f16.f32", "m16n8k16.f16.f16.f16.f16", "m16n8k8.f16.f16.f16.f16",
         "m16n8k8.f32.bf16.bf16.f32", "m16n8k16.f32.bf16.bf16.f32", "m16n8k4.f32.tf32.tf32.f32",
         "m16n8k8.f32.tf32.tf32.f32", "m16n8k16.s32.s8.s8.s32", "m16n8k32.s32.u8.s8.s32",
         "m16n8k16.f32.e4m3.e4m3.f32", "m16n8k32.f32.e5m2.e5m2.f32"]  # fmt: skip


def places(kind, k):
    """(row, column) of every element of A, (row, column) of B, by lane and place among a lane's elements, as the
    figures of PTX's text have them."""
    group, thread = np.arange(32)[:, None] // 4, np.arange(32)[:, None] % 4
    i, j = np.arange(k // 2)[None], np.arange(k // 4)[None]
    if kind in ("f16", "bf16"):
        row = np.where((i < 2) | ((i >= 4) & (i < 6)), group, group + 8)
        a = row, thread * 2 + (i & 1) + np.where(i < 4, 0, 8)
        b = thread * 2 + (j & 1) + np.where(j < 2, 0, 8), group + 0 * j
    elif kind == "tf32":
        a = np.where(i % 2 == 0, group, group + 8), np.where(i < 2, thread, thread + 4)
        b = np.where(j == 0, thread, thread + 4), group + 0 * j
    else:
        row = np.where((i < 4) | ((i >= 8) & (i < 12)), group, group + 8)
        a = row, thread * 4 + (i & 3) + np.where(i < 8, 0, 16)
        b = thread * 4 + (j & 3) + np.where(j < 4, 0, 16), group + 0 * j
    return a, b


def multiplied(name, A, B, C, gpu):
    """The result of one mma.sync of a warp, whose lanes load their elements from memory one behind the other."""
    shape, gives, left, right, _ = name.split(".")
    k = int(shape.split("k")[1])
    a, b = places(left, k)
    i, lane = np.arange(4)[None], np.arange(32)[:, None]
    c = np.where(i < 2, lane // 4, lane // 4 + 8), lane % 4 * 2 + (i & 1)
    parts = [x[torch.from_numpy(at[0]), torch.from_numpy(at[1])].contiguous() for x, at in ((A, a), (B, b), (C, c))]
    counts = [x.nbytes // 128 for x in parts]
    body, lists, first = ["mov.u32 %r60, %tid.x;"], [], 0
    for pointer, count in enumerate(counts):
        registers = [f"%r{first + r}" for r in range(count)]
        first += count
        body.append(f"mul.wide.u32 %d9, %r60, {4 * count}; add.s64 %d8, %d{pointer}, %d9;")
        body += [f"ld.global.b32 {register}, [%d8+{4 * r}];" for r, register in enumerate(registers)]
        lists.append("{" + ", ".join(registers) + "}")
    out = torch.zeros_like(parts[2])
    results = [f"%r{first + r}" for r in range(counts[2])]
    body.append(
        f"mma.sync.aligned.{shape}.row.col.{name.split('.', 1)[1]} {{{', '.join(results)}}}, {', '.join(lists)};"
    )
    body.append(f"mul.wide.u32 %d9, %r60, {4 * counts[2]}; add.s64 %d8, %d3, %d9;")
    body += [f"st.global.b32 [%d8+{4 * r}], {register};" for r, register in enumerate(results)]
    kernel("\n".join(body), ["a", "b", "c", "out"], gpu=gpu)((1,), (32,), 0, *parts, out)
    D = torch.zeros(16, 8, dtype=out.dtype)
    D[torch.from_numpy(c[0]), torch.from_numpy(c[1])] = out
    return D


def drawn(name, values=None):
    shape, gives, left, right, _ = name.split(".")
    k = int(shape.split("k")[1])
    sizes = ((16, k), (k, 8), (16, 8))
    if values is None:
        return [torch.randint(-3 if kind != "u8" else 0, 4, size).to(DTYPES[kind])
                for size, kind in zip(sizes, (left, right, gives))]  # fmt: skip
    return [values(size).to(DTYPES[kind]) for size, kind in zip(sizes, (left, right, gives))]


@pytest.mark.parametrize("name", KINDS)
def test_registers_hold_the_elements_that_ptx_says(name):
    """Of small whole numbers every product and sum is exact, in any order."""
    A, B, C = drawn(name)
    got = multiplied(name, A, B, C, "L40S")
    assert torch.equal(got.double(), A.double() @ B.double() + C.double())


@pytest.mark.parametrize("gpu", ["A100", "H100", "B200"])
@pytest.mark.parametrize("name, fmt", [
    ("m16n8k16.f32.bf16.bf16.f32", BF16), ("m16n8k16.f32.f16.f16.f32", FP16), ("m16n8k8.f32.tf32.tf32.f32", TF32),
    ("m16n8k16.f16.f16.f16.f16", FP16),
])  # fmt: skip
def test_products_are_summed_as_the_gpus_matrix_unit_does(name, fmt, gpu):
    A, B, C = drawn(name, lambda size: torch.randn(size) * 2.0 ** torch.randint(-4, 5, size))
    if fmt == TF32:  # what is below its bits does not count
        A, B = ((x.view(torch.int32) & ~0x1FFF).view(torch.float32) for x in (A, B))
    result = name.split(".")[1]
    core = TensorCore.of(gpu, fmt, result={"f32": "FP32", "f16": "FP16"}[result])
    want = core.matmul(A.double(), B.double(), C.double())
    assert torch.equal(multiplied(name, A, B, C, gpu).double(), want)
    assert not torch.equal(want, A.double() @ B.double() + C.double())


def test_what_a_gpu_does_not_have_is_refused():
    for name, gpu in (("m16n8k32.f32.e4m3.e4m3.f32", "H100"), ("m8n8k4.f32.f16.f16.f32", "A100")):
        with pytest.raises(ValueError, match=r"mma.sync.aligned.*(is not known|not modelled) \(line"):
            kernel(f"mma.sync.aligned.{name.split('.')[0]}.row.col.{name.split('.', 1)[1]} {{%r1, %r2, %r3, %r4}}, "
                   "{%r1, %r2, %r3, %r4}, {%r1, %r2}, {%r1, %r2, %r3, %r4};", gpu=gpu)  # fmt: skip


@pytest.mark.parametrize("name", [name for name in KINDS if name.split(".")[2] in ("f16", "bf16", "tf32")])
@pytest.mark.parametrize("where", ["A", "B", "C", "with infinity"])
def test_nan_is_ptxs_one_and_stays_in_its_row_or_column(name, where):
    A, B, C = drawn(name)
    due = torch.zeros(16, 8, dtype=torch.bool)
    if where in ("A", "with infinity"):
        A[3, 2], due[3] = float("nan"), True
    if where == "B":
        B[1, 6], due[:, 6] = float("nan"), True
    if where == "C":
        C[5, 1], due[5, 1] = float("nan"), True
    if where == "with infinity":
        C[7, 4] = float("inf")
    got = multiplied(name, A, B, C, "H100")
    assert torch.equal(got.isnan(), due) and torch.equal(got.isinf(), C.isinf())
    one = 0x7FFF if got.dtype is torch.float16 else 0x7FFFFFFF
    assert (got[due].view(torch.int16 if got.dtype is torch.float16 else torch.int32) == one).all()
    due |= C.isinf()
    C = C.nan_to_num(0, 0, 0)
    assert torch.equal(got[~due].double(), (A.double().nan_to_num() @ B.double().nan_to_num() + C.double())[~due])
