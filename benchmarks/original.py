"""FlashAttention-2's and -4's own kernels beside the emulator: `make original` writes data/gpu, in 40 minutes on two
cores; finished cells stay in build/original, so that it goes on where it was."""

import argparse
import os
from itertools import product
from pathlib import Path

from safetensors.torch import save_file

from attention_check.gpu.flash_attn import Options, forward
from attention_gallery.entry import installed
from attention_gallery.experiments.flash_attention_4 import flash_attention_4
from attention_gallery.experiments.original import CALLS, called, gradients, original
from attention_gallery.flash_attn_4_kernels import FLASH_ATTN_4, NEEDS
from benchmarks.record import FA2_BITS, FA2_CALLS, MODELLED, fa2_inputs, fa2_key
from fa_lib import sweep
from fa_lib.execution.files import replacing
from fa_lib.execution.paths import GPU, build
from fa_lib.execution.pools import workers
from fa_lib.execution.results import save_table
from ptx_machine.nvcc import version
from ptx_machine.sources import FLASH_ATTN

OF_ALL = dict(fmt=["BF16", "FP16"], head_dim=[64, 128], gpu=["A100", "H100"], distribution=["uniform", "normal"])
GRIDS = {
    "original": (original, OF_ALL | dict(causal=[False, True], n=[512, 2048], seed=range(3))),
    "calls": (called, OF_ALL | dict(call=[*CALLS], head_dim=[64], seed=range(3))),
    "flash_attention_4": (
        flash_attention_4,
        OF_ALL | dict(causal=[False, True], gpu=["H100", "B200"], n=[200, 1024], seed=range(3)),
    ),
    "gradients": (gradients, OF_ALL | dict(causal=[False, True], gpu=["A100"], n=[512], seed=range(3))),
}


def keep_bits(path: Path) -> None:
    """Write the machine's outputs of FlashAttention-2, (1, 1, n, head_dim) by `fa2_key`; `benchmarks.record` compares a
    GPU's with them."""
    outputs = {}
    for gpu, (fmt, distribution, causal) in product(MODELLED.values(), FA2_CALLS):
        o, _ = forward(*fa2_inputs(fmt, distribution), Options(causal), gpu=gpu, splits=1)
        outputs[fa2_key(gpu, fmt, distribution, causal)] = o.contiguous()
    with replacing(path) as temporary:
        save_file(outputs, temporary)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=GPU, help="folder of the tables")
    parser.add_argument("--tables", nargs="+", choices=GRIDS, default=[*GRIDS])
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    given = parser.parse_args()
    for name in given.tables:
        cell, grid = GRIDS[name]
        with workers(given.processes) as pool:
            table = sweep(cell, grid, cache=build() / "original", executor=pool)
        package, of = (FLASH_ATTN, "source package") if name != "flash_attention_4" else (FLASH_ATTN_4, "wheel")
        compiler = dict(nvcc=version(), arch="sm_80") if of != "wheel" else {each: installed(each) for each in NEEDS}
        about = dict(kernels=f"{package.name} {package.version}, its {of}", **compiler)
        save_table(given.out / name, table, grid, about, digits=6)
    if "original" in given.tables:
        keep_bits(given.out / FA2_BITS.name)


if __name__ == "__main__":
    main()
