"""Small kernels of PTX for tests, written here."""

import numpy as np
import torch

from ptx_machine.launch import Kernel

COMPILED = [True]  # whether kernels are
HEAD = """.version 8.8
.target {target}
.address_size 64
{outside}
.visible .entry {name}({parameters})
{{
.reg .pred %p<16>; .reg .b16 %h<32>; .reg .b32 %r<99>; .reg .f32 %f<64>; .reg .b64 %d<33>; .reg .f64 %g<32>;
{inside}
{body}
ret;
}}
"""


def text(body, pointers=("a", "out"), name="small", outside="", inside=""):
    """A kernel whose parameters are pointers; %d0, %d1, ... hold them."""
    parameters = ", ".join(f".param .u64 {each}" for each in pointers)
    loads = "\n".join(f"ld.param.u64 %d{i}, [{each}];" for i, each in enumerate(pointers))
    own = dict(target="sm_80", name=name, outside=outside, inside=inside)
    return HEAD.format(**own, parameters=parameters, body=f"{loads}\n{body}")


def kernel(body, pointers=("a", "out"), gpu="A100", compiled=None, **more):
    return Kernel(text(body, pointers, **more), gpu=gpu, compiled=COMPILED[0] if compiled is None else compiled)


PREFIX = {2: "%h", 4: "%r", 8: "%d2"}  # of registers, by their bytes
AT = "mul.lo.s64 %d11, %d10, {}; add.s64 %d12, %d{}, %d11;"  # %d12: a thread's number of an array


def elementwise(instruction, inputs, out, gpu="A100", compiled=True, threads=32):
    """Results of an instruction, one for each element, as a numpy array.

    Args:
        instruction: with {0}, {1} ... for operands and {out}. inputs: arrays of one length. out: dtype of the result.
        threads: of a block; the length is a multiple of it.
    """
    body = ["mov.u32 %r60, %tid.x; mov.u32 %r61, %ctaid.x; mov.u32 %r62, %ntid.x;"]
    body.append("mad.lo.u32 %r60, %r61, %r62, %r60; cvt.u64.u32 %d10, %r60;")
    names = [f"{PREFIX[x.dtype.itemsize]}{i + 1}" for i, x in enumerate(inputs)]
    for i, (x, name) in enumerate(zip(inputs, names)):
        body.append(f"{AT.format(x.dtype.itemsize, i)} ld.global.b{8 * x.dtype.itemsize} {name}, [%d12];")
    size = np.dtype(out).itemsize
    result = f"{PREFIX[size]}9"
    body.append(instruction.format(*names, out=result) + ";")
    body.append(f"{AT.format(size, len(inputs))} st.global.b{8 * size} [%d12], {result};")
    tensors = [torch.from_numpy(np.ascontiguousarray(x).view(f"int{8 * x.dtype.itemsize}").copy()) for x in inputs]
    into = torch.zeros(len(inputs[0]), dtype={2: torch.int16, 4: torch.int32, 8: torch.int64}[size])
    one = kernel("\n".join(body), [*(f"a{i}" for i in range(len(inputs))), "out"], gpu=gpu, compiled=compiled)
    one((len(into) // threads,), (threads,), 0, *tensors, into)
    return into.numpy().view(out)


def lanewise(instruction, inputs, out):
    """`elementwise` on arrays of (32,), the same from both machines."""
    results = [elementwise(instruction, inputs, out, compiled=compiled) for compiled in (False, True)]
    assert results[0].tobytes() == results[1].tobytes(), instruction
    return results[0]
