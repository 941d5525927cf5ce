"""Whether a GPU and the GPU machine compute the same bits by FlashAttention-2's own kernel.

`make original` leaves the machine's outputs in data/gpu. The calls have so many heads that the kernel does not split
the keys; all heads are equal, and the file has one.
"""

from itertools import product
from pathlib import Path

import pandas as pd
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from attention_check.isolation.calls import call_kernel
from attention_gallery.finds import draw_in_format
from fa_lib import kernels
from fa_lib.execution.files import replacing
from fa_lib.execution.paths import GPU
from fa_lib.execution.results import save
from fa_lib.numerics.formats import Format

FILE = GPU / "fa2_bits.safetensors"
N, HEADS, HEAD_DIM = 512, 32, 64
CALLS = [*product(("BF16", "FP16"), ("uniform", "normal"), (False, True))]  # format, distribution, causal
MODELLED = {(8, 0): "A100", (9, 0): "H100"}  # by compute capability
NAMES = ("attention_gallery.torch_kernels:torch_flash", "attention_gallery.flash_attn_kernels:flash_attn")


def inputs(fmt: str, distribution: str) -> list[Tensor]:
    """Draw Q, K, V of one head, (1, 1, N, HEAD_DIM) each, in a format's dtype."""
    return draw_in_format(distribution, 0, Format.of(fmt), N, N, 1)


def key(gpu: str, fmt: str, distribution: str, causal: bool) -> str:
    """Make the name of a call's output in FILE: "H100 BF16 normal causal"."""
    return f"{gpu} {fmt} {distribution}{' causal' if causal else ''}"


def keep(path: Path = FILE) -> None:
    """Write the machine's outputs, o (1, 1, N, HEAD_DIM) for each `key`. Needs nvcc."""
    from attention_check.gpu.flash_attn import Options, forward

    outputs = {}
    for gpu, (fmt, distribution, causal) in product(MODELLED.values(), CALLS):
        q, k, v = inputs(fmt, distribution)
        o, _ = forward(q, k, v, Options(causal), gpu=gpu, splits=1)
        outputs[key(gpu, fmt, distribution, causal)] = o.contiguous()
    with replacing(path) as temporary:
        save_file(outputs, temporary)


def compared(device: str, out: Path) -> None:
    """Compare the device's outputs with the machine's. On a CPU, in a rehearsal, torch's CPU kernel is compared with an
    H100's.

    The table gpu_machine below `out` has the columns kernel, fmt, distribution, causal, gpu (the one that was
    modelled), outcome, problem, different (the share of outputs whose bits differ) and largest (the largest
    difference).
    """
    capability = torch.cuda.get_device_capability() if device == "cuda" else (9, 0)
    gpu = MODELLED.get(capability)
    if gpu is None:
        print(f"no outputs were made for compute capability {capability}; there are some for {MODELLED}")
        return
    outputs, rows = load_file(FILE), []
    for name, (fmt, distribution, causal) in product(NAMES if device == "cuda" else ("flash",), CALLS):
        q, k, v = (x.expand(1, HEADS, N, HEAD_DIM).contiguous().to(device) for x in inputs(fmt, distribution))
        row = dict(kernel=name, fmt=fmt, distribution=distribution, causal=causal, gpu=gpu)
        answer = call_kernel(kernels.plain(name), q, k, v, **(dict(causal=True) if causal else {}))
        row |= dict(outcome=answer.outcome, problem=answer.problem)
        if answer.o is not None:
            difference = (answer.o[:, :1].cpu().double() - outputs[key(gpu, fmt, distribution, causal)].double()).abs()
            row |= dict(different=(difference > 0).double().mean().item(), largest=difference.max().item())
        rows.append(row)
    table = pd.DataFrame(rows)
    print(table.to_string())
    save(out, "gpu_machine", dict(n=N, heads=HEADS, head_dim=HEAD_DIM), table)
