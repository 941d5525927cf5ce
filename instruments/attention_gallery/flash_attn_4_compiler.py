"""Compiles FlashAttention-4's kernels, in a process of its own: CuTe reads the target from the environment.

    python flash_attn_4_compiler.py FOLDER SM PROCESSORS    # FOLDER: of the package; SM: sm_90 or sm_100

Each line of standard input is a call, as JSON: dtype, q and k (shapes (batch, n, heads, head_dim)), causal. Each line
of standard output answers with the kernel that the project's own code chooses for it: its PTX, and the choice; or with
an error. No GPU is needed: the project compiles for torch's fake tensors.
"""

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

MOST_ERROR = 400  # characters


class Compiled(dict):
    """The project's cache of compiled kernels, which knows the key that was asked last."""

    asked: Any = None

    def __contains__(self, key):
        self.asked = key
        return super().__contains__(key)


def chosen(kernel: Any, text: str) -> dict[str, Any]:
    """What the launch depends on, of the kernel's object and of CuTe's text of the host's code."""
    swizzle_and_box = r'make_non_exec_tiled_tma_\w+\(.*?"S<(\d),.*?tma_gbasis = <"\(([\d,()]+?)\):'
    scheduler = "SingleTileLPTScheduler" if kernel.is_causal else "SingleTileScheduler"  # flash_fwd_sm90.py, line 321
    scheduler = getattr(getattr(kernel, "TileScheduler", None), "__name__", scheduler)
    maps = [
        dict(width=16 << int(swizzle), box=[int(x) for x in re.findall(r"\d+", box)])
        for swizzle, box in re.findall(swizzle_and_box, text)
    ]
    tile, cluster = getattr(kernel, "tile_m", None) or kernel.cta_tiler[0], kernel.cluster_shape_mn[0]
    name = type(kernel).__name__
    return dict(name=name, scheduler=scheduler, tile=tile, pack_gqa=kernel.pack_gqa, cluster=cluster, maps=maps)


def serve(folder: str, sm: str, processors: int) -> None:
    """Answer calls until standard input ends."""
    answers, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    os.dup2(2, 1)  # what compilers print
    dump = tempfile.mkdtemp()
    os.environ.update(
        FLASH_ATTENTION_ARCH=sm, CUTE_DSL_ARCH=f"{sm}a", FLASH_ATTENTION_NUM_SMS=str(processors),
        CUTE_DSL_KEEP="ptx,ir-debug", CUTE_DSL_DUMP_DIR=dump, CUTE_DSL_DISABLE_FILE_CACHING="1",
    )  # fmt: skip
    sys.path.insert(0, folder)
    import cutlass.utils  # pyright: ignore[reportMissingImports]
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    answers_of_gpu: Any = dict(
        get_device_multiprocessor_count=lambda: processors, get_max_active_clusters=lambda size: processors // size
    )  # fmt: skip
    cutlass.utils.HardwareInfo = lambda *_: SimpleNamespace(**answers_of_gpu)
    from flash_attn.cute import interface  # pyright: ignore[reportMissingImports]

    cache, facts, compile_it = Compiled(), {}, interface.cute.compile
    interface._flash_attn_fwd.compile_cache = cache

    def compiling(kernel, *arguments, **options):
        for path in Path(dump).iterdir():
            path.unlink()
        result = compile_it(kernel, *arguments, **options)
        (ptx,) = (path.read_text() for path in Path(dump).glob("*.ptx"))
        (ir,) = (path.read_text() for path in Path(dump).glob("*.mlir"))
        facts[cache.asked] = dict(ptx=ptx, **chosen(kernel, ir))
        return result

    interface.cute.compile = compiling
    for line in sys.stdin:
        call = json.loads(line)
        try:
            with FakeTensorMode():
                make = [torch.empty(call[x], dtype=getattr(torch, call["dtype"]), device="cuda") for x in "qkk"]
                interface._flash_attn_fwd(*make, causal=call["causal"])
            answer = facts[cache.asked]
        except Exception as error:  # noqa: BLE001  the caller says it
            answer = dict(error=f"{type(error).__name__}: {error}"[:MOST_ERROR])
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]))
