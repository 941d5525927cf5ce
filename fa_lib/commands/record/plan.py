"""The steps of `fa-lib dev record`, in order of value, and which of them fit into the time that is left."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fa_lib.execution.lookup import lookup

LIMIT = 8  # minutes that any step may take
SCALES = {"cuda": "gpu", "cpu": "quick"}  # of notebooks/scales, by device: on a CPU it is a rehearsal


@dataclass(frozen=True)
class Step:
    """A step; it runs in its own process and leaves its files whole.

    Attributes:
        key: its name. label: what it shows.
        minutes: the time that it is expected to take on a GPU, `LIMIT` at most. It is not begun with less time left.
        goes_on: whether, begun again, it resumes.
    """

    key: str
    label: str
    minutes: float
    goes_on: bool = False


STEPS = {step.key: step for step in (
    Step("tests", "the tests that need a CUDA device", 4),
    Step("hardware", "how its matrix units add, how ex2 and exp are off, in which order row sums are added", 2),
    Step("launches", "the bytes that FlashAttention-2's kernels leave in memory, of build/launches", 1),
    Step("gpu_machine", "whether FlashAttention-2's outputs here are the bits that the GPU machine gave", 1),
    Step("validation", "notebook 01: torch's FlashAttention-2 against its model, and by the rule", 6, goes_on=True),
    Step("backends", "torch's other attention kernels, by the rule and against the model", 6, goes_on=True),
    Step("gallery", "attention kernels that other projects ship for GPUs, judged", 6, goes_on=True),
    Step("speed", "forward and backward of the text-to-image model, Flash over Baseline", 4),
    Step("flash_attn", "the package flash-attn, built for this GPU, and its tests", 8, goes_on=True),
    Step("emulator", "notebooks 02 to 05, N to 32,768, and the emulator's speed", 8, goes_on=True),
    Step("study", "notebooks 06 to 08: how weights drift apart", 8, goes_on=True),
)}  # fmt: skip


def chosen(names: Sequence[str], done: Iterable[str]) -> list[Step]:
    """Choose the steps to be made.

    Args:
        names: keys of STEPS; empty is all that are not done. done: keys of the steps that are done.

    Raises:
        ValueError: there is no such step.
    """
    for name in names:
        lookup("step", name, STEPS)
    done = set(done)
    return [step for key, step in STEPS.items() if (key in names if names else key not in done)]


def fits(step: Step, left: float) -> bool:
    """Say whether a step can be begun with `left` minutes left; a step that resumes needs two."""
    return left >= (min(2.0, step.minutes) if step.goes_on else step.minutes)
