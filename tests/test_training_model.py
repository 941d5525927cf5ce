"""The model of the study: its configurations, its masks, its noise, its products in FP16, its captioned images."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from runs import TINY

from fa_lib import kernels
from fa_lib.execution.paths import ROOT
from fa_lib.training.config import Config
from fa_lib.training.data import SHAPES, batches, shapes
from fa_lib.training.half_products import half_products
from fa_lib.training.model import TextToImage, noised


def test_half_products_are_rounded_once():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(64, 64, generator=generator).half().requires_grad_() for _ in range(2))
    with half_products(torch.float16, "cpu"):
        out = a @ b
        out.sum().backward()
    for got, exact in ((out, a.double() @ b.double()), (a.grad, b.double().sum(1).expand(64, 64))):
        assert got.dtype == torch.float16
        # sums of 64 terms in FP32 are off by 64 * 2**-24, a 128th of 2**-11: at most so many are tipped
        assert (got == exact.detach().half()).double().mean() > 1 - 1 / 128


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(layrs=2), r"^config: layrs: .*; accepted are attention_bias, batch"),
        (dict(layers=0), "config: layers: got 0; input should be greater than or equal to 1"),
        (dict(heads=2.5), "config: heads: got 2.5; input should be a valid int"),
        (dict(layers=True), "config: layers: got True; input should be a valid int"),
        (dict(lr="3e-4"), "config: lr: got '3e-4'; input should be a valid number"),
        (dict(lr=0.0), "config: lr: got 0.0; input should be greater than 0"),
        (dict(image_size=15), r"^config: image_size: got 15; .*patch_size"),
        (dict(batch=257), r"^config: batch: got 257; .*256 images"),
    ],
)
def test_bad_configurations_are_refused(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        Config.load("tiny", **changes)
    with pytest.raises(ValueError, match="config: got 'huge'; accepted are large, small, tiny, or a path"):
        Config.load("huge")
    (tmp_path / "own.yaml").write_text((ROOT / "fa_lib/training/tiny.yaml").read_text())
    assert Config.load(tmp_path / "own.yaml") == TINY


def test_the_noise_is_that_of_seed_and_step_and_the_caption_reaches_the_image():
    model = TextToImage(TINY, kernels.unfused, 0)
    images = torch.randint(256, (2, 3, 16, 16), dtype=torch.uint8)
    noisy, timesteps, velocity = noised(images, 0, 5)
    assert timesteps.dtype == torch.int64
    assert all(map(torch.equal, noised(images, 0, 5), (noisy, timesteps, velocity)))
    assert not torch.equal(noised(images, 0, 6)[0], noisy)
    sigma = (timesteps.double() / 1000)[:, None, None, None]
    x = images.double() / 127.5 - 1
    # the timestep is handed on as a whole number
    assert ((noisy.double() - x - sigma * velocity.double()).abs() <= velocity.double().abs() * 1e-3 + 1e-5).all()
    tokens = model.tokens(["red", "a large blue square"])
    assert not torch.equal(model(noisy, timesteps, tokens), model(noisy, timesteps, tokens.flip(0)))


def test_the_model_has_no_key_bias_and_the_warning_one_has():
    names = [n for n, _ in TextToImage(TINY, kernels.unfused, 0).named_parameters()]
    biased = [n for n, _ in TextToImage(replace(TINY, attention_bias=True), kernels.unfused, 0).named_parameters()]
    assert not any(n.endswith("to_k.bias") for n in names)
    assert sum(n.endswith("to_k.bias") for n in biased) == 2 * TINY.layers
    assert Path(ROOT / "fa_lib/training/small.yaml").read_text().count("attention_bias: false") == 1


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
