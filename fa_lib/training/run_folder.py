"""What a training run's folder holds: weights, checksums, run.json."""

import hashlib
import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from fa_lib.execution.fingerprint import digest


def weights(folder: str | Path, step: int) -> Path:
    """Path of a run's weights after `step` steps, FP32, a safetensors file."""
    return Path(folder) / f"weights-{step:06d}.safetensors"


def checksum(tensors: dict[str, torch.Tensor]) -> str:
    """SHA-256 of tensors by name, as a weights file carries it: safetensors itself has none."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        total.update(tensors[name].detach().cpu().contiguous().numpy())
    return total.hexdigest()


def finished(folder: str | Path, settings: dict) -> dict | None:
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
    refuse_another(held["settings"], settings, path)
    return held if all(weights(folder, step).exists() for step in steps) else None


def refuse_another(held: dict, settings: dict, path: Path) -> None:
    """Refuses to mix two runs in one folder.

    Raises:
        ValueError: what the folder holds has other settings.
    """
    for name in settings:
        if held.get(name) != settings[name]:
            raise ValueError(
                f"folder: {path} is of another run, {name} = {held.get(name)!r} and not {settings[name]!r}; "
                "accepted is a folder of its own"
            )


def load_weights(path: str | Path) -> dict[str, torch.Tensor]:
    """name -> tensor.

    Raises:
        ValueError: the file is missing or damaged.
    """
    try:
        held = load_file(path)
        with safe_open(path, "pt") as file:
            kept = file.metadata() or {}
        if kept.get("sha256") != checksum(held):
            raise ValueError("its checksum does not fit")
        return held
    except Exception as error:
        raise ValueError(f"weights: {path} is damaged; remove its folder to train again: {error}") from error
