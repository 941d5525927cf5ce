"""Checks of a data set's files: shards, lists of captions, images, and paths that leave its folder."""

import io
import json
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

CAPTIONS = ("text", "caption", "txt")  # columns a caption may be in
FORMATS = ("PNG", "JPEG", "WEBP")  # Pillow would start a program to decode others, such as EPS


def check_shard(path: str | Path) -> None:
    """Raise a ValueError with the path of a tar file that is damaged or cut short. (`datasets` reads with `tarfile`,
    which takes a damaged header, after the first one, for the end of the file.)"""
    try:
        with open(path, "rb") as file, tarfile.open(fileobj=file, mode="r:") as shard:
            shard.getmembers()
            file.seek(shard.offset)  # here `tarfile` stopped; a whole file has two or more empty blocks from here on
            short = os.path.getsize(path) < shard.offset + 2 * tarfile.BLOCKSIZE
            if short or any(map(any, iter(lambda: file.read(1 << 20), b""))):
                raise tarfile.ReadError(f"at byte {shard.offset} neither a file begins nor the end")
    except tarfile.TarError as error:
        raise ValueError(f"data: the shard {path} is damaged: {error}") from error


def check_list(path: Path) -> None:
    """Raise a ValueError with the line of a metadata.jsonl that does not name an image and its caption."""
    lines = path.read_bytes().rstrip().splitlines()
    for number, line in enumerate(lines or [b""], 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not (isinstance(row, dict) and row.get("file_name") and any(row.get(column) for column in CAPTIONS)):
            accepted = "accepted is an object with file_name, and text or caption"
            raise ValueError(f"data: {path}, line {number}: got {line[:100]!r}; {accepted}")


def decoded(content: bytes) -> Image.Image:
    """Decode the content of an image file to an RGB picture. Of 16 bits a channel the upper 8 are taken.

    Raises:
        ValueError: it is no PNG, JPEG or WebP file, is damaged or cut short.
    """
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as picture:
            picture.verify()  # the checksums of a PNG; a verified picture cannot be read on
        with Image.open(io.BytesIO(content), formats=FORMATS) as picture:
            if picture.mode.startswith("I"):  # grey in 16 bits; Pillow would make 255 of all above 255
                return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8)).convert("RGB")
            return picture.convert("RGB")
    except Image.UnidentifiedImageError:
        raise ValueError("it is no PNG, JPEG or WebP file") from None
    except Exception as error:  # decoders raise all kinds
        raise ValueError(f"it is damaged: {error}") from error


def inside(path: str | Path, folders: Sequence[str | Path]) -> bool:
    """Return whether a path lies in one of some folders, by its name: links are not followed."""
    return any(Path(os.path.abspath(path)).is_relative_to(os.path.abspath(folder)) for folder in folders)
