"""Small kernels of PTX for tests, written here."""

import numpy as np
import torch

from ptx_machine.launch import Kernel

COMPILED = [True]  # whether kernels are
HEAD = """.version 8.0
.target sm_80
.address_size 64
{outside}
.visible .entry {name}({parameters})
{{
.reg .pred %p<16>; .reg .b16 %h<32>; .reg .b32 %r<64>; .reg .f32 %f<64>; .reg .b64 %d<32>; .reg .f64 %g<32>;
{inside}
{body}
ret;
}}
"""


def text(body, pointers=("a", "out"), name="small", outside="", inside=""):
    """A kernel whose parameters are pointers; %d0, %d1, ... hold them."""
    parameters = ", ".join(f".param .u64 {each}" for each in pointers)
    loads = "\n".join(f"ld.param.u64 %d{i}, [{each}];" for i, each in enumerate(pointers))
    return HEAD.format(name=name, parameters=parameters, outside=outside, inside=inside, body=f"{loads}\n{body}")


def kernel(body, pointers=("a", "out"), gpu="A100", compiled=None, **more):
    return Kernel(text(body, pointers, **more), gpu=gpu, compiled=COMPILED[0] if compiled is None else compiled)


WIDTH = {"b16": 2, "b32": 4, "b64": 8}
PREFIX = {"b16": "%h", "b32": "%r", "b64": "%d2"}


def lanewise(instruction, inputs, out):
    """Results of an instruction, one for each lane, as a numpy array, the same from both machines.

    Args:
        instruction: with {0}, {1} ... for operands and {out}. inputs: arrays of (32,). out: dtype of the result.
    """
    widths = [f"b{8 * x.dtype.itemsize}" for x in inputs]
    body = ["mov.u32 %r60, %tid.x;", "cvt.u64.u32 %d10, %r60;"]
    names = []
    for i, width in enumerate(widths):
        names.append(f"{PREFIX[width]}{i + 1}")
        body.append(
            f"mul.lo.s64 %d11, %d10, {WIDTH[width]}; add.s64 %d12, %d{i}, %d11; ld.global.{width} {names[-1]}, [%d12];"
        )
    size = np.dtype(out).itemsize
    result = f"{PREFIX[f'b{8 * size}']}9"
    body.append(instruction.format(*names, out=result) + ";")
    body.append(
        f"mul.lo.s64 %d11, %d10, {size}; add.s64 %d12, %d{len(inputs)}, %d11; st.global.b{8 * size} [%d12], {result};"
    )
    tensors = [torch.from_numpy(np.ascontiguousarray(x).view(f"int{8 * x.dtype.itemsize}").copy()) for x in inputs]
    pointers = [*(f"a{i}" for i in range(len(inputs))), "out"]
    results = []
    for compiled in (False, True):
        into = torch.zeros(32, dtype={2: torch.int16, 4: torch.int32, 8: torch.int64}[size])
        kernel("\n".join(body), pointers, compiled=compiled)((1,), (32,), 0, *tensors, into)
        results.append(into.numpy())
    assert np.array_equal(*results), instruction
    return results[0].view(out)
