"""Captioned images: shapes drawn from a seed, or any image-caption data set through Hugging Face `datasets`.

The paper's Shutterstock set is not public. Nothing here is downloaded unless a hub name is asked for.
"""

import glob
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from tqdm import tqdm

from fa_lib.training.integrity import CAPTIONS, check_list, check_shard, decoded, inside

SIZES = {"small": 0.16, "large": 0.26}  # half width, of the image's
COLORS = {"red": (220, 40, 40), "green": (40, 180, 60), "blue": (50, 80, 230), "yellow": (240, 210, 40)}
SHAPES = ("circle", "square", "triangle")
PLACES = {f"{y} {x}": (a, b) for y, b in (("top", 0.3), ("bottom", 0.7)) for x, a in (("left", 0.3), ("right", 0.7))}
IMAGES = ("image", "jpg", "jpeg", "png", "webp")  # columns an image may be in


def mixed(*numbers: int) -> int:
    """Make one seed of several whole numbers from 0. (Trailing zeros do not count: (1,) and (1, 0) are one seed.)"""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def generator(*numbers: int) -> torch.Generator:
    """Make a torch.Generator on the CPU, seeded by `mixed(*numbers)`."""
    return torch.Generator().manual_seed(mixed(*numbers))


class Captioned:
    """Images and captions in memory.

    Args:
        images: uint8 (n, 3, size, size). captions: n texts.
    """

    def __init__(self, images: torch.Tensor, captions: list[str]):
        self.images, self.captions = images, captions

    def check(self, batch: int, steps: int = 1, seed: int = 0) -> None:
        """Refuse a batch larger than the data. The images and captions themselves are checked already.

        Raises:
            ValueError: the batch is larger than the data.
        """
        if batch > len(self.captions):
            raise ValueError(f"batch: got {batch}; accepted is up to the {len(self.captions)} images of the data")

    def batches(self, batch: int, seed: int, start: int = 0) -> Iterator[tuple[torch.Tensor, list[str]]]:
        """Yield batches without end. Each epoch has another order, drawn from (seed, epoch), and leaves out the images
        that do not fill a batch.

        Args:
            batch: images in a batch.
            seed: of the orders.
            start: number of the first batch to yield.

        Yields:
            (images, uint8 (batch, 3, size, size); their captions).

        Raises:
            ValueError: the batch is larger than the data.
        """
        self.check(batch)
        n = len(self.captions)
        for number in itertools.count(start):
            epoch, i = divmod(number, n // batch)
            if i == 0 or number == start:
                order = torch.randperm(n, generator=generator(seed, epoch))
            at = order[i * batch : (i + 1) * batch]
            yield self.images[at], [self.captions[j] for j in at]


def pixels(picture: Image.Image, size: int) -> torch.Tensor:
    """uint8 (3, size, size): the central square of an RGB picture, resized."""
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    square = picture.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.asarray(square).copy()).permute(2, 0, 1)


def shapes(n: int, size: int, seed: int) -> Captioned:
    """Draw n images such as "small red circle top left", from a seed.

    Args:
        n: number of images.
        size: pixels of each side.
        seed: of sizes, colours, shapes and places.

    Returns:
        Captioned, images (n, 3, size, size).
    """
    rng = np.random.default_rng(seed)
    images, captions = torch.empty(n, 3, size, size, dtype=torch.uint8), []
    for i in range(n):
        width, color, shape, place = (
            list(options)[rng.integers(len(options))] for options in (SIZES, COLORS, SHAPES, PLACES)
        )
        r = SIZES[width] * size * 4  # drawn four times as large, and averaged down
        x, y = (4 * size * (at + rng.uniform(-0.04, 0.04)) for at in PLACES[place])
        picture = Image.new("RGB", (4 * size, 4 * size), tuple(int(c) for c in rng.integers(0, 30, 3)))
        pen = ImageDraw.Draw(picture)
        if shape == "circle":
            pen.ellipse((x - r, y - r, x + r, y + r), fill=COLORS[color])
        elif shape == "square":
            pen.rectangle((x - r, y - r, x + r, y + r), fill=COLORS[color])
        else:
            pen.polygon(((x, y - r), (x - r, y + r), (x + r, y + r)), fill=COLORS[color])
        images[i] = pixels(picture, size)
        captions.append(f"{width} {color} {shape} {place}")
    return Captioned(images, captions)


def load(source: str | Path, size: int, *, streaming: bool = False, split: str = "train") -> "Captioned | Stream":
    """Load an image-caption data set.

    Args:
        source: a folder of images with metadata.jsonl (file_name, and text or caption), a folder or pattern of
            webdataset shards (.tar: png or jpg, and txt), or a name on the Hugging Face hub.
        size: pixels; images are cropped to their central square and resized.
        streaming: images are read as they come and never held, for what fits no memory or no disk; `Stream.check`
            reads them before training. Otherwise all are read here, into 3 size² bytes each.
        split: of the data set.

    Returns:
        Captioned, or Stream.

    Raises:
        ValueError: no captions or no images; a damaged shard; a line of metadata.jsonl that does not name an image and
            its caption; an image that `integrity.decoded` does not accept or that lies elsewhere, or an empty caption,
            with its number.
        FileNotFoundError: there is nothing at `source`.
    """
    from datasets import Image as Encoded
    from datasets import load_dataset
    from datasets.config import DOWNLOADED_DATASETS_PATH, HF_DATASETS_CACHE
    from huggingface_hub.constants import HF_HUB_CACHE

    if not str(source).strip():
        raise ValueError(f"data: got {str(source)!r}; accepted are shapes, a folder, shards, or a name on the hub")
    path = Path(source)
    shards = sorted(str(p) for p in path.glob("*.tar")) if path.is_dir() else str(source)
    options: dict[str, Any] = dict(path=str(source))
    if path.is_dir() and not shards:
        options = dict(path="imagefolder", data_dir=str(path))
    elif path.suffix == ".tar" or path.is_dir():
        options = dict(path="webdataset", data_files={split: shards})
    for shard in glob.glob(str(source)) if path.suffix == ".tar" else shards if path.is_dir() else ():
        check_shard(shard)
    for lines in sorted(path.rglob("metadata.jsonl")) if path.is_dir() and not shards else ():
        check_list(lines)
    own = [path] if path.is_dir() else [HF_DATASETS_CACHE, DOWNLOADED_DATASETS_PATH, HF_HUB_CACHE]
    with _reading(source):
        rows: Any = load_dataset(**options, split=split, streaming=streaming)  # a Dataset, or an IterableDataset
        names = rows.column_names or list(next(iter(rows)))
    image, caption = (next((n for n in columns if n in names), None) for columns in (IMAGES, CAPTIONS))
    if image is None or caption is None:
        missing, accepted = ("images", IMAGES) if image is None else ("captions", CAPTIONS)
        raise ValueError(
            f"data: {source} has no {missing}, only the columns {', '.join(names)}; accepted are {', '.join(accepted)}"
        )
    rows = rows.cast_column(image, Encoded(decode=False))  # decoded here, so that what fails can be named

    def read(number, row):
        entry = row[image] or {}
        file, content = entry.get("path") or row.get("__key__"), entry.get("bytes")
        name = f"{source}, number {number} ({file})"
        if content is None and not entry.get("path"):
            raise ValueError(f"data: {name} has no image")
        if content is None and not inside(entry["path"], own):
            raise ValueError(f"data: {name} is not in {own[0]}; accepted are images of the data set")
        try:
            content = Path(entry["path"]).read_bytes() if content is None else content
            tensor = pixels(decoded(content), size)
        except (OSError, ValueError) as error:
            raise ValueError(f"data: {name} is no image that can be read: {error}") from error
        try:
            return tensor, _text(row[caption])
        except ValueError as error:
            raise ValueError(f"data: {name} {error}") from None

    if streaming:
        return Stream(rows, read, source)
    if not len(rows):
        raise ValueError(f"data: {source} holds no images")
    pairs = [read(i, row) for i, row in enumerate(tqdm(rows, desc="reading images", unit="image"))]
    return Captioned(torch.stack([tensor for tensor, _ in pairs]), [text for _, text in pairs])


class Stream:
    """Images and captions read as they come.

    Args:
        rows: a `datasets.IterableDataset`.
        read: a function; read(number, row) returns a row's pixels, uint8 (3, size, size), and its text.
        source: the data set's name in messages.
        buffer: number of rows that are shuffled with one another.
    """

    def __init__(self, rows, read: Callable, source: str | Path, buffer: int = 1000):
        self.rows, self.read, self.source, self.buffer = rows, read, source, buffer

    def check(self, batch: int, steps: int = 1, seed: int = 0) -> None:
        """Read all images of the first `steps` batches once, before training, and keep none of them.

        Raises:
            ValueError: an image or a caption is not accepted; the batch is larger than the data.
        """
        count = 0
        rows = itertools.islice(self._epoch(seed, 0), batch * steps)  # a second epoch has the images of the first
        for count, row in enumerate(tqdm(rows, desc="checking images", unit="image"), 1):
            self.read(count - 1, row)
        if count < batch:
            raise ValueError(f"batch: got {batch}; accepted is up to the {count} images of the data")

    def batches(self, batch: int, seed: int, start: int = 0) -> Iterator[tuple[torch.Tensor, list[str]]]:
        """Yield batches as `Captioned.batches` does, shuffled within a buffer. The batches before `start` are skipped
        without decoding their images, so an interrupted run goes on in the same order.

        Raises:
            ValueError: the batch is larger than the data, or an image or a caption is not accepted.
        """
        number, skip = 0, start
        for epoch in itertools.count():
            rows, empty = [], True
            for row in self._epoch(seed, epoch):
                empty = False
                rows.append(row)
                if len(rows) < batch:
                    continue
                if skip:
                    skip -= 1
                else:
                    pairs = [self.read(number * batch + i, row) for i, row in enumerate(rows)]
                    yield torch.stack([tensor for tensor, _ in pairs]), [text for _, text in pairs]
                rows, number = [], number + 1
            if empty or (epoch == 0 and number == 0):
                raise ValueError(f"batch: got {batch}; accepted is up to the {len(rows)} images of the data")

    def _epoch(self, seed, epoch):
        """The rows of an epoch, in its order."""
        rows = self.rows.shuffle(seed=seed, buffer_size=self.buffer)
        rows.set_epoch(epoch)
        with _reading(self.source):
            yield from rows


def _text(caption):
    """A caption without a byte-order mark and white space around it."""
    try:
        text = caption.decode() if isinstance(caption, bytes) else caption
    except UnicodeDecodeError:
        raise ValueError("has a caption that is not UTF-8") from None
    text = text.removeprefix("\ufeff").strip() if isinstance(text, str) else None
    if not text:
        raise ValueError(f"has an empty caption, or none that is a text: {caption!r}")
    return text


@contextmanager
def _reading(source):
    """An error of `datasets`, or of what it reads with, names the data set."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:  # pyarrow and tarfile have their own
        raise ValueError(f"data: {source} cannot be read: {error.__cause__ or error}") from error
