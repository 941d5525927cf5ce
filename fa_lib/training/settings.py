"""What a training run is made of, what its folder holds, and what is refused before it starts."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import diffusers
import lightning_fabric
import torch
import transformers

from fa_lib import kernels
from fa_lib.sweep import code_version, digest

LIBRARIES = (diffusers, transformers, lightning_fabric)

# What torchrun or srun started: so many processes, on so many machines.
STARTED = int(os.environ.get("WORLD_SIZE") or os.environ.get("SLURM_STEP_NUM_TASKS") or 1)
NODES = int(os.environ.get("GROUP_WORLD_SIZE") or os.environ.get("SLURM_STEP_NUM_NODES") or 1)

# The dtype attention then runs in. "16-mixed-unscaled" is Fabric's 16-mixed without loss scaling.
PRECISIONS = {
    "64-true": torch.float64,
    "32-true": torch.float32,
    "bf16-mixed": torch.bfloat16,
    "16-mixed": torch.float16,
    "16-mixed-unscaled": torch.float16,
}


@dataclass(frozen=True)
class Arm:
    """What a run does. Two arms that differ in one field differ in one thing.

    Attributes:
        kernel: of every attention call, a name for `kernels.get`.
        precision: a key of PRECISIONS.
        init, order: which initial weights, which order of the data.
        perturb: every initial weight is moved by this, relative, times a standard normal number.
    """

    kernel: str = "unfused"
    precision: str = "bf16-mixed"
    init: int = 0
    order: int = 0
    perturb: float = 0.0


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


def weights(folder, step):
    """Path of a run's weights after `step` steps, FP32, a safetensors file."""
    return Path(folder) / f"weights-{step:06d}.safetensors"


def checksum(tensors):
    """SHA-256 of tensors by name, as a weights file carries it: safetensors itself has none."""
    whole = hashlib.sha256()
    for name in sorted(tensors):
        whole.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        whole.update(tensors[name].detach().cpu().contiguous().numpy())
    return whole.hexdigest()


def finished(folder, settings):
    """The result of a run that has ended in `folder` with all its weights, or None.

    Raises:
        ValueError: the folder holds another run, or run.json is damaged.
    """
    path = Path(folder) / "run.json"
    if not path.exists():
        return None
    try:
        held = json.loads(path.read_text())
        if held.pop("checksum") != digest(held):
            raise ValueError("its checksum does not fit")
        steps = {*range(0, len(held["losses"]), settings["every"])}
        steps |= {settings["steps"]} if held["status"] == "done" else set()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"folder: {path} is damaged; remove it to start anew: {error}") from error
    same(held["settings"], settings, path)
    return held if all(weights(folder, step).exists() for step in steps) else None


def same(held, settings, path):
    """Refuses to mix two runs in one folder."""
    for name in settings:
        if held.get(name) != settings[name]:
            raise ValueError(
                f"folder: {path} is of another run, {name} = {held.get(name)!r} and not {settings[name]!r}; "
                "accepted is a folder of its own"
            )


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
