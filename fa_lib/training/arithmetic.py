"""What the bits of a training step on a CPU depend on, beside the code.

Two machines whose names here are all the same may still give other bits: oneDNN and MKL choose their code by the
processor. So the names explain a difference, and no difference is an error.
"""

from collections.abc import Mapping

import torch

from fa_lib.execution.machine import model
from fa_lib.training.half_products import slow

LABELS = {  # of `arithmetic`, in the order of a sentence
    "torch": "torch", "processor": "processor", "instructions": "torch's instructions",
    "summed_in_fp32": "summed in FP32",
}  # fmt: skip
NONE = "none"


def arithmetic() -> dict[str, str]:
    """Name what the bits of a training step depend on.

    Returns:
        dict of name -> text, of LABELS: torch's version; processor (vendor, family and model); instructions that
        torch's own loops use; summed_in_fp32, the formats whose products `half_products` sums in FP32. NONE where there
        is nothing to say.
    """
    summed = [name for name, dtype in (("BF16", torch.bfloat16), ("FP16", torch.float16)) if slow(dtype)]
    return dict(
        torch=torch.__version__, processor=model() or NONE, instructions=torch.backends.cpu.get_cpu_capability(),
        summed_in_fp32=" ".join(summed) or NONE,
    )  # fmt: skip


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
