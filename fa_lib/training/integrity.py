"""Whether the files of a data set are whole, and name nothing outside of it: shards and lists of captions.

What reads them, `datasets` over `tarfile`, ends a shard in silence at the first header that it cannot read.
"""

import codecs
import hashlib
import json
import os
import tarfile
import warnings
from collections.abc import Sequence
from pathlib import Path

BLOCK = 512  # bytes, of a tar file
IMAGES = (".png", ".jpg", ".jpeg", ".webp")
CAPTIONS = ("text", "caption", "txt")  # columns a caption may be in, and endings of its file in a shard


def check_shard(path: str | Path) -> None:
    """Refuse a tar file that is damaged or that has a member which cannot be used.

    Raises:
        ValueError: a header's checksum does not fit, a member is cut short, the end is missing or more follows it; a
            name is there twice, a member is a link, or a caption is not UTF-8. It names the shard and the place.
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
    _check_members(path)


def _check_members(path):
    """Of a shard that is whole. Files whose names begin with a dot or with __ are not read."""
    names = set()
    with tarfile.open(path) as shard:
        for member in shard:
            base = member.name.rpartition("/")[2]
            if member.isdir() or base.startswith((".", "__")):
                continue
            if not member.isreg():
                raise ValueError(f"data: the shard {path}: got the link {member.name!r}; accepted are files")
            if member.name in names:
                raise ValueError(f"data: the shard {path} holds {member.name!r} twice; accepted is once")
            names.add(member.name)
            if base.rpartition(".")[2].lower() in CAPTIONS:
                caption = shard.extractfile(member)
                assert caption is not None  # of a regular file there is one
                try:
                    caption.read().decode("utf-8")
                except UnicodeDecodeError:
                    raise ValueError(f"data: the shard {path}: the caption {member.name!r} is not UTF-8") from None


def check_folder(folder: Path) -> None:
    """Refuse a folder of images whose metadata.jsonl files are damaged or incomplete.

    Each line must name one image of the folder and its caption, no line may be there twice, and each image needs a
    line. An image may have several captions, each on another line. (The reader refuses a folder without such a file.)

    Raises:
        ValueError: a line does not fit, or an image has none. It names the file and the line.
    """
    if wrong_lists := [path for kind in ("csv", "parquet") for path in folder.rglob(f"metadata.{kind}")]:
        raise ValueError(f"data: got {wrong_lists[0]}; accepted is metadata.jsonl")
    lists, places = sorted(folder.rglob("metadata.jsonl")), {}
    for path in lists:
        for place, sample in _listed(path):
            if (before := places.setdefault(sample, place)) != place:
                raise ValueError(f"data: {place}: the image {sample[0]} is on {before}, with the same caption")
    listed_images = {image for image, _ in places}
    images = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in IMAGES]
    if lists and (unlisted := [path for path in images if os.path.abspath(path) not in listed_images]):
        raise ValueError(f"data: {unlisted[0]} and {len(unlisted) - 1} more have no line in a metadata.jsonl")


def _listed(path):
    """(place, (image, caption)) of each line of a metadata.jsonl, which may begin with a byte-order mark."""
    lines, samples = path.read_bytes().removeprefix(codecs.BOM_UTF8).splitlines(), []
    if not any(line.strip() for line in lines):
        raise ValueError(f'data: {path} is empty; accepted are lines like {{"file_name": "0.png", "text": "a cat"}}')
    for number, line in enumerate(lines, 1):
        place = f"{path}, line {number}"
        try:
            if line.strip():
                samples.append((place, _sample(json.loads(line.decode("utf-8")), path.parent)))
        except ValueError as error:  # UnicodeDecodeError and JSONDecodeError too
            why = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else error
            raise ValueError(f"data: {place}: {why}") from None
    return samples


def _sample(row, folder):
    """The image of a line, and its caption: None where it names none."""
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
    column = next((column for column in CAPTIONS if column in row), None)
    if column and not (isinstance(row[column], str) and row[column].strip()):
        raise ValueError(f"{name} has an empty caption, or none that is a text: {column} is {row[column]!r}")
    return os.path.abspath(folder / name), row.get(column)


class Repeats:
    """How many images have the same bytes as an earlier one."""

    def __init__(self):
        self._names, self._count, self._first = {}, 0, ""

    def add(self, name: str, held: bytes) -> None:
        """Count one more image.

        Args:
            name: of its file.
            held: content of its file.
        """
        digest = hashlib.blake2b(held, digest_size=16).digest()
        if digest in self._names:
            self._count += 1
            self._first = self._first or f"{name}, as {self._names[digest]}"
        else:
            self._names[digest] = name

    def tell(self, source: str | Path) -> None:
        """Warn where images repeat earlier ones.

        Warns:
            UserWarning: images of the data set `source` have the same bytes.
        """
        if self._count:
            words = f"data: {source}: images with the bytes of an earlier one, trained on like any other: {self._count}"
            warnings.warn(f"{words}; the first: {self._first}", stacklevel=3)


def inside(path: str | Path, folders: Sequence[str | Path]) -> bool:
    """Return whether a path lies in one of `folders`, by its name: links are not followed."""
    return any(Path(os.path.abspath(path)).is_relative_to(os.path.abspath(folder)) for folder in folders)
