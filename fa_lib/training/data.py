"""Captioned images: shapes drawn from a seed. (The paper's Shutterstock set is not public.)"""

import itertools
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch
from PIL import Image, ImageDraw

SIZES = {"small": 0.16, "large": 0.26}  # half width, of the image's
COLORS = {"red": (220, 40, 40), "green": (40, 180, 60), "blue": (50, 80, 230), "yellow": (240, 210, 40)}
SHAPES = ("circle", "square", "triangle")
PLACES = {f"{y} {x}": (a, b) for y, b in (("top", 0.3), ("bottom", 0.7)) for x, a in (("left", 0.3), ("right", 0.7))}


def mixed(*numbers: int) -> int:
    """Make one seed of several whole numbers from 0. (Trailing zeros do not count: (1,) and (1, 0) are one seed.)"""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def generator(*numbers: int) -> torch.Generator:
    """Make a torch.Generator on the CPU, seeded by `mixed(*numbers)`."""
    return torch.Generator().manual_seed(mixed(*numbers))


@lru_cache(2)  # the arms of a study share their images
def shapes(n: int, size: int, seed: int) -> tuple[torch.Tensor, list[str]]:
    """Draw n images such as "small red circle top left", from a seed.

    Args:
        n: number of images. size: pixels of each side. seed: of sizes, colours, shapes and places.

    Returns:
        (images, uint8 (n, 3, size, size); their n captions).
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
        small = np.array(picture.resize((size, size), Image.Resampling.LANCZOS))
        images[i] = torch.from_numpy(small).permute(2, 0, 1)
        captions.append(f"{width} {color} {shape} {place}")
    return images, captions


def batches(images: torch.Tensor, captions: list[str], batch: int, seed: int,
            start: int = 0) -> Iterator[tuple[torch.Tensor, list[str]]]:  # fmt: skip
    """Yield batches without end. Each epoch has another order, drawn from (seed, epoch), and leaves out the images that
    do not fill a batch.

    Args:
        images: uint8 (n, 3, size, size). captions: n texts.
        batch: images in a batch, up to n. seed: of the orders. start: number of the first batch to yield.

    Yields:
        (images, uint8 (batch, 3, size, size); their captions).
    """
    n = len(captions)
    for number in itertools.count(start):
        epoch, i = divmod(number, n // batch)
        if i == 0 or number == start:
            order = torch.randperm(n, generator=generator(seed, epoch))
        chosen = order[i * batch : (i + 1) * batch]
        yield images[chosen], [captions[j] for j in chosen]
