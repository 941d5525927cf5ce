"""What a training run's folder holds: weights, checksums, run.json."""

import hashlib
import json
import math
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from fa_lib.execution.fingerprint import digest


def weights(folder: str | Path, step: int) -> Path:
    """Path of a run's weights after `step` steps, FP32, a safetensors file."""
    return Path(folder) / f"weights-{step:06d}.safetensors"


def steps_of(folder: str | Path) -> list[int]:
    """The steps of which a run's weights are there."""
    return sorted(int(path.stem.removeprefix("weights-")) for path in Path(folder).glob("weights-*.safetensors"))


def checkpoints(steps: int, every: int) -> list[int]:
    """After which steps a run leaves its weights: 0, then every so many and the last; and before the first of these
    the powers of two, since two runs that part do so at first."""
    early = [2**i for i in range(every.bit_length()) if 2**i < min(every, steps)]
    return sorted({*early, *range(0, steps + 1, every), steps})


def missing_of(folder: str | Path, result: dict) -> str:
    """Which weights of a run are gone, in words; "" where none is.

    Args:
        result: as in run.json, or of a run that is not at its end: settings, status, losses.
    """
    steps, every, count = result["settings"]["steps"], result["settings"]["every"], len(result["losses"])
    last = count - 1 if result["status"].startswith("diverged") else count  # the step that diverged left none
    due = [step for step in checkpoints(steps, every) if step <= last]
    gone = [path for path in (weights(folder, step) for step in due) if not path.exists()]
    return f"folder: {gone[0]} is gone; put it back, or remove the folder to train again" if gone else ""


def checksum(tensors: dict[str, torch.Tensor]) -> str:
    """SHA-256 of tensors by name, as a weights file carries it: safetensors itself has none."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        total.update(tensors[name].detach().cpu().contiguous().numpy().data)
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
        held = read_result(path)
        whole = not missing_of(folder, held)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"folder: {path} is damaged; remove it to start anew: {error}") from error
    refuse_another(held["settings"], settings, path)
    return held if whole else None


def write_result(path: Path, result: dict) -> None:
    """Write run.json, with a checksum. A loss that is not finite, which JSON has no number for, is null."""
    held = result | dict(losses=[loss if math.isfinite(loss) else None for loss in result["losses"]])
    path.write_text(json.dumps(held | dict(checksum=digest(held)), allow_nan=False))


def read_result(path: Path) -> dict:
    """What run.json holds: null among the losses is NaN.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is damaged.
    """
    held = json.loads(path.read_text())
    if held.pop("checksum") != digest(held):
        raise ValueError("its checksum does not fit")
    return held | dict(losses=[math.nan if loss is None else loss for loss in held["losses"]])


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


def last_good(folder: str | Path) -> Path | None:
    """The last weights file of a run that is whole and finite; None where there is none."""
    for path in sorted(Path(folder).glob("weights-*.safetensors"), reverse=True):
        try:
            if all(tensor.isfinite().all() for tensor in load_weights(path).values()):
                return path
        except ValueError:  # damaged
            continue
    return None
