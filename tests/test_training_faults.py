"""Data sets on a disk with something wrong: each fault is named before the first step, or read in the way that the
documentation states."""

import io
import json
import tarfile

import numpy as np
import pytest
from PIL import Image
from runs import QUICK, run

from fa_lib.training.data import load

RNG = np.random.default_rng(0)
NOISE = Image.fromarray(RNG.integers(0, 256, (40, 40, 3), dtype=np.uint8))


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def encoded(picture=NOISE, fmt="PNG", **options):
    held = io.BytesIO()
    picture.save(held, fmt, **options)
    return held.getvalue()


def each(n):
    """n images, all different."""
    return [encoded(Image.new("RGB", (8, 8), (10 * i, 0, 0))) for i in range(n)]


def folder(path, images, captions=None, before=b""):
    path.mkdir()
    for i, held in enumerate(images):
        (path / f"{i}.png").write_bytes(held)
    rows = [{"file_name": f"{i}.png", "text": text} for i, text in enumerate(captions or ["a"] * len(images))]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (path / "metadata.jsonl").write_bytes(before + lines.encode() + b"\n")  # an empty last line is no fault
    return path


def shard(path, images, captions=None):
    with tarfile.open(path, "w") as tar:
        for i, both in enumerate(zip(images, captions or [b"a"] * len(images))):
            for end, held in zip(("png", "txt"), both):
                info = tarfile.TarInfo(f"{i}.{end}")
                info.size = len(held)
                tar.addfile(info, io.BytesIO(held))
    return path


def checked(source, streaming, batch=2, steps=9):
    """A data set as a run has it before its first step."""
    held = load(source, 8, streaming=streaming)
    held.check(batch, steps, seed=0)
    return held


def refused(source, message):
    for streaming in (False, True):
        with pytest.raises(ValueError, match=message):
            checked(source, streaming)


def flipped(held, at):
    return held[:at] + bytes([held[at] ^ 1]) + held[at + 1 :]


IMAGES = {
    "no image": (b"<html>not found</html>", "it is no PNG, JPEG or WebP file"),
    "empty": (b"", "it is no PNG, JPEG or WebP file"),
    "GIF": (encoded(fmt="GIF"), "it is no PNG, JPEG or WebP file"),
    "half a PNG": (encoded()[:2000], "it is damaged: "),
    "a PNG without its end": (encoded()[:-12], "it is damaged: "),
    "half a JPEG": (encoded(fmt="JPEG")[:1000], "it is damaged: .*truncated"),
    "half a WebP": (encoded(fmt="WEBP")[:400], "it is damaged: |it is no PNG, JPEG or WebP file"),
    "a PNG with a bit flipped": (flipped(encoded(), 2000), "it is damaged: "),
}


@pytest.mark.parametrize("fault", IMAGES)
def test_an_image_that_is_not_accepted_is_named_before_training(fault, tmp_path):
    held, message = IMAGES[fault]
    images = each(6)
    images[4] = held
    refused(folder(tmp_path / "set", images), rf"set, number \d \(.*4\.png\) is no image [^:]*: {message}")
    refused(shard(tmp_path / "0.tar", images), rf"0\.tar, number \d \(4\.png\) is no image [^:]*: {message}")


def test_a_run_whose_last_image_is_bad_takes_no_step(tmp_path):
    images = each(12)
    images[11] = b"no image"
    for streaming in (False, True):
        steps = []
        with pytest.raises(ValueError, match=r"number \d+ \(11.png\) is no image"):
            source = shard(tmp_path / "0.tar", images)
            run(tmp_path / "no", config=QUICK, source=source, streaming=streaming, watch=steps.append)
        assert not steps and not (tmp_path / "no").exists()


def test_a_stream_is_checked_as_far_as_a_run_goes(tmp_path):
    images = each(6)
    images[4] = b"no image"
    source = shard(tmp_path / "0.tar", images)
    found = []
    for steps in (1, 2, 3, 4):
        bad = ""
        try:
            checked(source, True, batch=2, steps=steps)
        except ValueError as error:
            bad = str(error)
        batches, trained = load(source, 8, streaming=True).batches(2, seed=0), ""
        try:
            for _ in range(steps):
                next(batches)
        except ValueError as error:
            trained = str(error)
        assert bad == trained
        found.append(bool(bad))
    assert found[-1] and found != [True] * 4


GREY = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1024
CMYK = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
GLASS = Image.new("RGBA", (8, 8), (250, 0, 0, 0))
CONVERTED = {
    "CMYK": (encoded(CMYK, "JPEG", quality=100), (255, 0, 0)),
    "palette": (encoded(Image.new("RGB", (8, 8), (0, 200, 0)).quantize()), (0, 200, 0)),
    "palette, transparent": (encoded(GLASS.quantize(), transparency=b"\0" * 8), (250, 0, 0)),
    "transparent": (encoded(GLASS), (250, 0, 0)),
    "grey": (encoded(Image.new("L", (8, 8), 77)), (77, 77, 77)),
    "black and white": (encoded(Image.new("1", (8, 8), 1)), (255, 255, 255)),
    "16 bits": (encoded(Image.fromarray(GREY)), (GREY >> 8)[..., None]),
    "WebP": (encoded(CMYK.convert("RGB"), "WEBP", lossless=True), (255, 0, 0)),
}


@pytest.mark.parametrize("streaming", [False, True])
def test_other_images_become_rgb_as_documented(streaming, tmp_path):
    source = folder(tmp_path / "set", [held for held, _ in CONVERTED.values()], list(CONVERTED))
    images, captions = next(checked(source, streaming, len(CONVERTED), 1).batches(len(CONVERTED), 0))
    assert sorted(captions) == sorted(CONVERTED)
    for image, caption in zip(images, captions):
        wanted = np.broadcast_to(CONVERTED[caption][1], (8, 8, 3)).astype(int)
        off = abs(image.permute(1, 2, 0).numpy().astype(int) - wanted).max()
        assert off <= (2 if caption == "CMYK" else 0), caption


@pytest.mark.parametrize("streaming", [False, True])
def test_captions_are_read_without_a_byte_order_mark(streaming, tmp_path):
    bom, texts = "\ufeff".encode(), ["ein Käfer", "b", "c"]
    for source in (
        folder(tmp_path / "set", each(3), texts, before=bom),
        folder(tmp_path / "each", each(3), [f"\ufeff{text}" for text in texts]),
        shard(tmp_path / "0.tar", each(3), [bom + text.encode() for text in texts]),
    ):
        _, captions = next(checked(source, streaming).batches(3, 0))
        assert sorted(captions) == sorted(texts)


CAPTIONS = {"utf-16": "ein Käfer".encode("utf-16"), "latin-1": "ein Käfer".encode("latin-1")}


@pytest.mark.parametrize("encoding", CAPTIONS)
def test_a_caption_that_is_not_utf_8_is_named(encoding, tmp_path):
    source = shard(tmp_path / "0.tar", each(3), [b"a", CAPTIONS[encoding], b"c"])
    refused(source, r"^data: .*0\.tar cannot be read: 'utf-8' codec")


@pytest.mark.parametrize("text", ["\ufeff ", 3])
def test_a_caption_that_is_none_is_named(text, tmp_path):
    refused(folder(tmp_path / "set", each(3), [text] * 3), r"number \d .*\d\.png.* has an empty caption")


def test_lists_that_do_not_fit_together_are_named(tmp_path):
    source = folder(tmp_path / "set", each(3))
    rows = [{"file_name": f"{i}.png", "text": "a", "more": more} for i, more in enumerate((1, "b", 2))]
    (source / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    refused(source, f"data: {source} cannot be read: .*more")
