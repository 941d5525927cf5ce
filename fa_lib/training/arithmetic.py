"""What the bits of a training step on a CPU depend on, beside the code: names that say more than "AVX512".

Two processors whose names here are all the same may still give other bits. So the names explain a difference, and no
difference is an error.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import cache

import torch

from fa_lib.execution.machine import model
from fa_lib.training.half_products import slow

LABELS = {  # of `arithmetic`, in the order of a sentence
    "torch": "torch", "processor": "processor", "instructions": "torch's instructions", "onednn": "oneDNN",
    "mkl": "MKL", "summed_in_fp32": "summed in FP32",
}  # fmt: skip
NONE = "none"
ASKS = "import torch as t; t.ones(8, 8).to_mkldnn(); t.ones(64, 64) @ t.ones(64, 64)"  # one call of each
ASKS_S = 120.0  # seconds until the process that asks must have ended
ONEDNN = re.compile(r"^onednn_verbose.*,cpu,isa:(.+)$", re.MULTILINE)
MKL = re.compile(r"^MKL_VERBOSE oneMKL (.+?) Product .*? architecture (.+), (?:Lnx|Mac|Win) ", re.MULTILINE)
REPRODUCIBLE = re.compile(r"^MKL_VERBOSE .* CNR:(\S+)", re.MULTILINE)  # what MKL_CBWR asks for


def arithmetic() -> dict[str, str]:
    """Name what the bits of a training step depend on.

    Returns:
        dict of name -> text, of LABELS: torch's version; processor (vendor, family and model); instructions that
        torch's own loops use; onednn, the instruction set that oneDNN dispatches to; mkl, MKL's version and the path
        that it takes (on other vendors' processors than Intel's it names no instructions); summed_in_fp32, the formats
        whose products `half_products` sums in FP32. NONE where there is no such library, or it does not say.
    """
    summed = [name for name, dtype in (("BF16", torch.bfloat16), ("FP16", torch.float16)) if slow(dtype)]
    here = dict(
        torch=torch.__version__, processor=model() or NONE, instructions=torch.backends.cpu.get_cpu_capability()
    )
    return here | _libraries() | dict(summed_in_fp32=" ".join(summed) or NONE)


@cache
def _libraries() -> dict[str, str]:
    """What oneDNN and MKL say of themselves where they are asked to be verbose: in a separate process, since both
    read that wish once, when they begin."""
    environ = os.environ | dict(ONEDNN_VERBOSE="1", MKL_VERBOSE="1")
    try:
        process = subprocess.run(
            [sys.executable, "-P", "-c", ASKS], env=environ, capture_output=True, text=True, timeout=ASKS_S
        )
        printed = process.stdout
    except (OSError, subprocess.TimeoutExpired):
        printed = ""
    onednn, mkl, mode = (pattern.search(printed) for pattern in (ONEDNN, MKL, REPRODUCIBLE))
    path = " for ".join(mkl.groups()) if mkl else NONE
    path += f", MKL_CBWR {mode[1]}" if mode and mode[1] != "OFF" else ""
    return dict(onednn=onednn[1].strip() if onednn else NONE, mkl=path)


def difference(here: Mapping[str, str], recorded: Mapping[str, str]) -> str:
    """Say in one sentence how this machine's `arithmetic` differs from a recording's.

    Args:
        here: `arithmetic` of this machine.
        recorded: `arithmetic` of the recording; it may lack names.
    """
    differing = [f"{LABELS[name]} {recorded[name] or NONE}, here {here[name]}"
             for name in LABELS if name in recorded and (recorded[name] or NONE) != here[name]]  # fmt: skip
    unknown = [f"{LABELS[name]} (here {here[name]})" for name in LABELS if name not in recorded]
    parts = [f"the recording had {'; '.join(differing)}"] if differing else []
    parts += [f"the recording does not name {', '.join(unknown)}"] if unknown else []
    return "; ".join(parts) or "by all its names this machine is the same as the recording's"
