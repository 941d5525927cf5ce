"""A model in training under the probe."""

import tempfile
from collections.abc import Sequence

from attention_check.probe.probe import Probe
from fa_lib.training.arm import ARMS
from fa_lib.training.config import PRECISIONS, Config, RunSpec
from fa_lib.training.run import check_kernel, repeatable, train


def watch(seed: int, config: Config, steps: int, at: Sequence[int], names: Sequence[str],
          device: str = "cpu") -> list[dict]:  # fmt: skip
    """Train with Baseline, and run other kernels on the inputs of each attention call of the steps `at`: the paper's
    second technique. The training is that of the arm "baseline", bit for bit.

    Args:
        seed, config, steps, device: as of a RunSpec. at: from 0 on. names: of the other kernels, for `kernels.get`.

    Returns:
        the rows of `Probe`, with step, layer and kind ("self" or "cross").

    Raises:
        ValueError: before training, where a step or a kernel does not fit.
        RuntimeError: a kernel refused a call.
    """
    if not set(at) <= set(range(steps)):
        raise ValueError(f"at: got {at!r}; accepted are steps from 0 to {steps - 1}")
    probe = Probe(names, queries=None, baseline=None)  # every row; what runs is Baseline itself
    with repeatable(device):
        for name, kernel in probe.kernels.items():
            check_kernel(name, kernel, config, PRECISIONS[ARMS["baseline"].precision], device)

    def at_step(step):
        def each_call(place, q, k, v, o):
            probe(q, k, v, o, dict(step=step, layer=place[0], kind=place[1]))

        return each_call if step in at else None

    with tempfile.TemporaryDirectory() as folder:
        train(RunSpec(ARMS["baseline"], seed, config, steps, every=steps, device=device), folder, watch=at_step)
    if probe.skipped:
        raise RuntimeError(f"names: {'; '.join(' '.join(words) for words in probe.skipped)}")
    return probe.rows
