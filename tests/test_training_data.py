"""Captioned images: the drawn ones and their batches."""

import itertools

import torch

from fa_lib.training.data import SHAPES, batches, shapes


def first(batches, n):
    return [(images.sum().item(), captions) for images, captions in itertools.islice(batches, n)]


def test_shapes_are_what_their_captions_say():
    images, captions = shapes(200, 32, seed=0)
    assert images.shape == (200, 3, 32, 32) and images.dtype == torch.uint8
    sums = {}
    for image, caption in zip(images.double(), captions):
        size, color, shape, y, x = caption.split()
        lit = image.amax(0) > 60
        rows, columns = torch.where(lit)
        assert (rows.double().mean() < 16) == (y == "top") and (columns.double().mean() < 16) == (x == "left")
        mean = image[:, lit].mean(1).round()
        assert {"red": 0, "green": 1, "blue": 2, "yellow": 0}[color] == mean.argmax()
        assert (mean[1] > 150) == (color in ("yellow", "green"))
        sums.setdefault((size, shape), []).append(lit.sum().item())
    for shape in SHAPES:
        assert min(sums["large", shape]) > max(sums["small", shape])
    again, same = shapes(200, 32, seed=0)
    assert (again == images).all() and same == captions and shapes(200, 32, seed=1)[1] != captions


def test_batches_go_through_the_data_and_can_start_anywhere():
    ten = torch.arange(10, dtype=torch.uint8).reshape(10, 1, 1, 1), [str(i) for i in range(10)]
    sixteen = first(batches(*ten, 3, seed=1), 16)
    for epoch in range(4):
        seen = [c for _, captions in sixteen[3 * epoch : 3 * epoch + 3] for c in captions]
        assert len(set(seen)) == 9
    for start in (1, 3, 7):
        assert first(batches(*ten, 3, seed=1, start=start), 9) == sixteen[start : start + 9]
    assert first(batches(*ten, 3, seed=2), 16) != sixteen
