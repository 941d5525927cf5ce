"""Tensors read from files, without pickle: Q, K and V of a call, and what else a file names."""

import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

LARGE = 2 << 30  # bytes of tensors


def load(path: str | Path) -> tuple[Tensor, Tensor, Tensor]:
    """Read Q, K, V from a file: the tensors of these names, each (batch, heads, sequence, head_dim) or with any leading
    dimensions, in the file's dtype. Errors as of `tensors`, and a ValueError where one of the three is missing."""
    contents = tensors(path)
    try:
        require(contents, contents)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return contents["q"], contents["k"], contents["v"]


def tensors(path: str | Path, allow_large: bool = False) -> dict[str, Tensor]:
    """Read the tensors of a file: .safetensors, .npz, or .pt without pickle.

    Args:
        allow_large: read more than LARGE bytes too. Sizes are looked at before anything is unpacked.

    Returns:
        name -> tensor, in the file's shape and dtype.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file's kind, content or size is not accepted; it names the path.
    """
    path = Path(path)
    if not allow_large and path.exists():
        _refuse_large(path, _unpacked(path))
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            contents = load_file(path)
        elif path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                contents = {name: torch.from_numpy(archive[name]) for name in archive.files}
        elif path.suffix == ".pt":
            contents = torch.load(path, weights_only=True, map_location="cpu")
        else:
            raise ValueError("accepted are .safetensors, .npz and .pt")
    except FileNotFoundError:
        raise
    except Exception as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"{path}: cannot be read without pickle, which could run anything: {why}; safetensors.torch.save_file "
            "writes tensors alone"
        ) from error
    if not isinstance(contents, dict) or not all(isinstance(x, torch.Tensor) for x in contents.values()):
        raise ValueError(f"{path}: holds {type(contents).__name__}; accepted are named tensors, q, k and v among them")
    if not allow_large:  # of few numbers in a file a view may make many
        _refuse_large(path, sum(x.numel() * x.element_size() for x in contents.values()))
    return contents


def require(tensors: Mapping[str, Tensor], there: Iterable[str], needed: str = "qkv") -> None:
    """Raise a ValueError where a tensor is missing: there: the names that are in the file, for the message."""
    for name in needed:
        if name not in tensors:
            raise ValueError(f"holds no tensor named {name!r}, but {', '.join(there)}; needed are {', '.join(needed)}")


def _refuse_large(path, size):
    if size > LARGE:
        words = f"accepted are {LARGE / 2**30:g} GiB; --allow-large (allow_large=True) reads it all the same"
        raise ValueError(f"{path}: holds {size / 2**30:.1f} GiB of tensors; {words}")


def _unpacked(path):
    """Return the bytes that a file says it takes in memory: the unpacked size of a zip file, such as .npz."""
    try:
        with zipfile.ZipFile(path) as archive:
            return sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, OSError):
        return path.stat().st_size
