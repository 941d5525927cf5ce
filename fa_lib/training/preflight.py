"""What is refused before a training run starts."""

import importlib.metadata
import os
from collections.abc import Callable
from dataclasses import asdict

import torch

from fa_lib.training.config import Config
from fa_lib.training.spec import PRECISIONS, RunSpec

LIBRARIES = ("diffusers", "transformers", "lightning-fabric")


def started() -> int:
    """Return how many processes torchrun or srun started; 1 where neither did."""
    return int(os.environ.get("WORLD_SIZE") or os.environ.get("SLURM_STEP_NUM_TASKS") or 1)


def nodes() -> int:
    """Return on how many machines torchrun or srun started the processes."""
    return int(os.environ.get("GROUP_WORLD_SIZE") or os.environ.get("SLURM_STEP_NUM_NODES") or 1)


def check(spec: RunSpec) -> None:
    """Refuse a run whose arguments do not fit one another or this machine.

    Raises:
        ValueError: names the argument, its value and what is accepted.
    """
    precision, devices, strategy = spec.arm.precision, spec.devices, spec.strategy
    if precision not in PRECISIONS:
        raise ValueError(f"precision: got {precision!r}; accepted are {', '.join(PRECISIONS)}")
    for name in ("steps", "every", "devices"):
        value = getattr(spec, name)
        if type(value) is not int or value < 1:
            raise ValueError(f"{name}: got {value!r}; accepted is a whole number from 1")
    if spec.config.batch % devices:
        raise ValueError(f"devices: got {devices}; accepted are divisors of the batch, {spec.config.batch}")
    if started() not in (1, devices):
        words = f"accepted is {started()}, the processes that torchrun or srun started"
        raise ValueError(f"devices: got {devices}; {words}")
    if strategy not in ("ddp", "fsdp") or (strategy == "fsdp" and (devices == 1 or precision.startswith("16"))):
        condition = "and fsdp with several devices, not in FP16"
        raise ValueError(
            f"strategy: got {strategy!r} with devices = {devices}, {precision}; accepted: ddp, {condition}"
        )
    if spec.device not in ("cpu", "cuda") or (spec.device == "cuda" and torch.cuda.device_count() < devices // nodes()):
        available = f"cpu, and {torch.cuda.device_count()} of cuda"
        raise ValueError(f"device: got {devices} of {spec.device!r}; here are {available}")


def settings(spec: RunSpec, code: str) -> dict:
    """Build the settings that a run's folder keeps.

    Args:
        spec: of the run.
        code: version of the code.

    Returns:
        dict: the fields of the RunSpec, of its Arm and of its Config side by side, and version (of code and
        libraries).
    """
    version = [code, *(importlib.metadata.version(library) for library in LIBRARIES)]
    flat = {name: value for name, value in asdict(spec).items() if name not in ("arm", "config")}
    flat |= dict(source=str(spec.source), version=" ".join(version))
    return asdict(spec.arm) | asdict(spec.config) | flat


def check_kernel(name: str, kernel: Callable, config: Config, dtype: torch.dtype, device: str | torch.device) -> None:
    """Refuse a kernel that cannot do what the model will ask: self- and cross-attention, forward and backward.

    It is called on zeros: q (2, heads, tokens, head_dim); k and v the same, or (2, heads, text_bytes, head_dim).

    Raises:
        ValueError: the kernel raised; with the kernel's message.
    """
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
            call = f"{kind}-attention of {config.tokens} queries, {keys} keys, head_dim {config.head_dim}"
            raise ValueError(
                f"kernel: {name!r} cannot do what the model asks, {call}, {dtype} on {device}, "
                f"{'a' if masked else 'no'} mask: {error}"
            ) from error
