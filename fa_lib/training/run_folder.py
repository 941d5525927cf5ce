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
    """Return the path of a run's weights after `step` steps, a safetensors file of FP32."""
    return Path(folder) / f"weights-{step:06d}.safetensors"


def steps_of(folder: str | Path) -> list[int]:
    """List the steps whose weights files are in a run's folder, in order."""
    return sorted(int(path.stem.removeprefix("weights-")) for path in Path(folder).glob("weights-*.safetensors"))


def checkpoints(steps: int, every: int) -> list[int]:
    """List the steps after which a run saves its weights: 0, each multiple of `every` and the last; and, before the
    first multiple, the powers of two, since two runs move apart fastest at first."""
    early = [2**i for i in range(every.bit_length()) if 2**i < min(every, steps)]
    return sorted({*early, *range(0, steps + 1, every), steps})


def missing_of(folder: str | Path, result: dict) -> str:
    """Say in one sentence which weights file of a run is gone; "" where none is.

    Args:
        folder: of the run.
        result: as in run.json, or of a run that is not at its end: settings, status, losses.
    """
    steps, every, count = result["settings"]["steps"], result["settings"]["every"], len(result["losses"])
    last = count - 1 if result["status"].startswith("diverged") else count  # the step that diverged left none
    due = [step for step in checkpoints(steps, every) if step <= last]
    missing = [path for path in (weights(folder, step) for step in due) if not path.exists()]
    return f"folder: {missing[0]} is gone; put it back, or remove the folder to train again" if missing else ""


def checksum(tensors: dict[str, torch.Tensor]) -> str:
    """Compute the SHA-256 of tensors, name -> tensor of any shape. A weights file carries it, since safetensors itself
    has no checksum."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        total.update(tensors[name].detach().cpu().contiguous().numpy().data)
    return total.hexdigest()


def finished(folder: str | Path, settings: dict) -> dict | None:
    """Return the result, a dict as of `run.train`, of a run that has ended in `folder` with all its weights, or None.

    Raises:
        ValueError: the folder holds another run, or run.json is damaged.
    """
    path = Path(folder) / "run.json"
    if not path.exists():
        return None
    try:
        result = read_result(path)
        complete = not missing_of(folder, result)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"folder: {path} is damaged; remove it to start anew: {error}") from error
    refuse_another(result["settings"], settings, path)
    return result if complete else None


def write_result(path: Path, result: dict) -> None:
    """Write run.json, with a checksum. A loss that is not finite, which JSON has no number for, is null."""
    record = result | dict(losses=[loss if math.isfinite(loss) else None for loss in result["losses"]])
    path.write_text(json.dumps(record | dict(checksum=digest(record)), allow_nan=False))


def read_result(path: Path) -> dict:
    """Read run.json, a dict as of `run.train`; null among the losses becomes NaN.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is damaged.
    """
    record = json.loads(path.read_text())
    if record.pop("checksum") != digest(record):
        raise ValueError("its checksum does not fit")
    return record | dict(losses=[math.nan if loss is None else loss for loss in record["losses"]])


def refuse_another(held: dict, settings: dict, path: Path) -> None:
    """Refuse to mix two runs in one folder.

    Args:
        held: settings of the run in the folder.
        settings: of the run to be made.
        path: of the file that holds them, for the message.

    Raises:
        ValueError: the run in the folder has other settings.
    """
    for name in settings:
        if held.get(name) != settings[name]:
            raise ValueError(
                f"folder: {path} is of another run, {name} = {held.get(name)!r} and not {settings[name]!r}; "
                "accepted is a folder of its own"
            )


def load_weights(path: str | Path) -> dict[str, torch.Tensor]:
    """Read a weights file and check its checksum.

    Returns:
        dict of name -> tensor, each of its parameter's shape.

    Raises:
        ValueError: the file is missing or damaged.
    """
    try:
        tensors = load_file(path)
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
        if metadata.get("sha256") != checksum(tensors):
            raise ValueError("its checksum does not fit")
        return tensors
    except Exception as error:
        raise ValueError(f"weights: {path} is damaged; remove its folder to train again: {error}") from error
