"""Whether the files of a data set are whole, and name nothing outside of it: shards and lists of captions.

What reads them, `datasets` over `tarfile`, ends a shard in silence at the first header that it cannot read.
"""

import json
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path

BLOCK = 512  # bytes, of a tar file
IMAGES = (".png", ".jpg", ".jpeg", ".webp")


def check_shard(path: str | Path) -> None:
    """Refuses a tar file that is not whole: a header whose checksum does not fit, a member cut short, no end or
    something behind it.

    Raises:
        ValueError: names the shard and the place.
    """
    path, at = Path(path), 0
    size = path.stat().st_size

    def refuse(problem):
        raise ValueError(f"data: the shard {path} is damaged: at byte {at} of {size} {problem}")

    with open(path, "rb") as file:
        while True:
            block = file.read(BLOCK)
            if len(block) < BLOCK:
                refuse("it ends, without the empty blocks that end a tar file")
            if not any(block):
                break
            try:
                member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            except tarfile.HeaderError as error:
                refuse(f"is no header of a member: {error}")
            after = at + BLOCK + -(-member.size // BLOCK) * BLOCK
            if member.size < 0 or after > size:
                refuse(f"the member {member.name!r} of {member.size} bytes is cut short")
            file.seek(at := after)
        if not at:
            refuse("it ends: it holds nothing")
        if any(any(rest) for rest in iter(lambda: file.read(1 << 20), b"")):
            refuse("it ends, and more follows")


def check_folder(folder: Path) -> None:
    """Refuses a folder of images whose metadata.jsonl are not whole: each line is one image of the folder and its
    caption, and no image is without a line. (A folder without any is refused by its reader.)

    Raises:
        ValueError: names the file and the line.
    """
    if other := [path for kind in ("csv", "parquet") for path in folder.rglob(f"metadata.{kind}")]:
        raise ValueError(f"data: got {other[0]}; accepted is metadata.jsonl")
    lists = sorted(folder.rglob("metadata.jsonl"))
    listed = {os.path.abspath(path) for each in lists for path in _listed(each)}
    images = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in IMAGES]
    if lists and (left := [path for path in images if os.path.abspath(path) not in listed]):
        raise ValueError(f"data: {left[0]} and {len(left) - 1} more have no line in a metadata.jsonl")


def _listed(path):
    """The images that a metadata.jsonl names."""
    lines, found = path.read_bytes().splitlines(), []
    if not any(line.strip() for line in lines):
        raise ValueError(f'data: {path} is empty; accepted are lines like {{"file_name": "0.png", "text": "a cat"}}')
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                found.append(_named(json.loads(line.decode("utf-8")), path.parent))
        except ValueError as error:  # UnicodeDecodeError and JSONDecodeError too
            why = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else error
            raise ValueError(f"data: {path}, line {number}: {why}") from None
    return found


def _named(row, folder):
    """The image of a line."""
    if not isinstance(row, dict):
        raise ValueError(f"got {row!r}; accepted is an object with file_name and text or caption")
    name = row.get("file_name")
    if not isinstance(name, str) or not name:
        raise ValueError(f"names no image: got {sorted(row)}; accepted is file_name, and a caption")
    if "image" in row:
        raise ValueError("has an 'image' of its own; accepted is file_name")
    if not inside(folder / name, [folder]):
        raise ValueError(f"file_name: got {name!r}; accepted are files in the folder {folder}")
    if not (folder / name).is_file():
        raise ValueError(f"file_name: got {name!r}, which there is not")
    return folder / name


def inside(path: str | Path, folders: Sequence[str | Path]) -> bool:
    """Whether a path lies in one of some folders, by its name: links are not followed."""
    return any(Path(os.path.abspath(path)).is_relative_to(os.path.abspath(folder)) for folder in folders)
