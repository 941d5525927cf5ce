"""What is refused before a training run starts."""

import os
from dataclasses import asdict

import diffusers
import lightning_fabric
import torch
import transformers

from fa_lib import kernels
from fa_lib.execution.fingerprint import code_version
from fa_lib.training.arm import PRECISIONS

LIBRARIES = (diffusers, transformers, lightning_fabric)


# What torchrun or srun started: so many processes, on so many machines.
STARTED = int(os.environ.get("WORLD_SIZE") or os.environ.get("SLURM_STEP_NUM_TASKS") or 1)


NODES = int(os.environ.get("GROUP_WORLD_SIZE") or os.environ.get("SLURM_STEP_NUM_NODES") or 1)


def describe(arm, seed, config, steps, every, source="shapes", streaming=False, device="cpu", devices=1,
             strategy="ddp"):  # fmt: skip
    """The settings of a run: the arguments of `train`, and the version of the code. Of data it knows the place, not the
    content: after a change to a folder of images, train into another folder."""
    if arm.precision not in PRECISIONS:
        raise ValueError(f"precision: got {arm.precision!r}; accepted are {', '.join(PRECISIONS)}")
    for name, value in (("steps", steps), ("every", every), ("devices", devices)):
        if type(value) is not int or value < 1:
            raise ValueError(f"{name}: got {value!r}; accepted is a whole number from 1")
    if config.batch % devices:
        raise ValueError(f"devices: got {devices}; accepted are divisors of the batch, {config.batch}")
    if STARTED not in (1, devices):
        raise ValueError(f"devices: got {devices}; accepted is {STARTED}, the processes that torchrun or srun started")
    if strategy not in ("ddp", "fsdp") or (strategy == "fsdp" and (devices == 1 or arm.precision.startswith("16"))):
        rest = "and fsdp with several devices, not in FP16"
        raise ValueError(f"strategy: got {strategy!r} with devices = {devices}, {arm.precision}; accepted: ddp, {rest}")
    if device not in ("cpu", "cuda") or (device == "cuda" and torch.cuda.device_count() < devices // NODES):
        here = f"cpu, and {torch.cuda.device_count()} of cuda"
        raise ValueError(f"device: got {devices} of {device!r}; here are {here}")
    code = code_version(describe, [asdict(arm) | dict(device=device)])[:16]
    version = [code, *(library.__version__ for library in LIBRARIES)]
    rest = dict(seed=seed, steps=steps, every=every, source=str(source), streaming=streaming)
    rest |= dict(device=device, devices=devices, strategy=strategy)
    return asdict(arm) | asdict(config) | rest | dict(version=" ".join(version))


def able(name, config, dtype, device):
    """Refuses a kernel that cannot do what the model will ask: both kinds of attention, forward and backward.

    Raises:
        ValueError: with the kernel's own words.
    """
    kernel = kernels.get(name)
    for kind, keys in (("self", config.tokens), ("cross", config.text_bytes)):
        masked = kind == "cross" and config.text_mask
        q, k, v = (
            torch.zeros(2, config.heads, n, config.head_dim, dtype=dtype, device=device, requires_grad=True)
            for n in (config.tokens, keys, keys)
        )
        options = dict(mask=torch.zeros(2, 1, 1, keys, dtype=dtype, device=device)) if masked else {}
        try:
            o = kernel(q, k, v, **options)
            o.backward(torch.ones_like(q))
        except Exception as error:
            wanted = f"{kind}-attention of {config.tokens} queries, {keys} keys, head_dim {config.head_dim}"
            raise ValueError(
                f"kernel: {name!r} cannot do what the model asks, {wanted}, {dtype} on {device}, "
                f"{'a' if masked else 'no'} mask: {error}"
            ) from error
