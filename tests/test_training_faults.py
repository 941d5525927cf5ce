"""Data sets on a disk with something wrong: each fault is named before the first step, or read in the way that the
documentation states."""

import io
import json
import tarfile
import warnings

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
    (path / "metadata.jsonl").write_bytes(before + lines.encode())
    return path


def shard(path, images, captions=None):
    texts = captions or [b"a"] * len(images)
    members = [
        (f"{i}.{end}", held) for i, both in enumerate(zip(images, texts)) for end, held in zip(("png", "txt"), both)
    ]
    return packed(path, members)


def packed(path, members):
    with tarfile.open(path, "w") as tar:
        for name, held in members:
            info = tarfile.TarInfo(name)
            if held is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/hostname"
            info.size = len(held or b"")
            tar.addfile(info, io.BytesIO(held or b""))
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


def frames(fmt):
    return encoded(NOISE, fmt, save_all=True, append_images=[NOISE.rotate(90)])


def flipped(held, at):
    return held[:at] + bytes([held[at] ^ 1]) + held[at + 1 :]


ACCEPTED = "accepted are .*PNG, JPEG and WebP"
IMAGES = {
    "no image": (b"<html>not found</html>", f".*no accepted format; {ACCEPTED}"),
    "empty": (b"", f"the file is empty; {ACCEPTED}"),
    "half a PNG": (encoded()[:2000], f".*; {ACCEPTED}"),
    "half a JPEG": (encoded(fmt="JPEG")[:1000], f".*truncated.*; {ACCEPTED}"),
    "half a WebP": (encoded(fmt="WEBP")[:400], f".*; {ACCEPTED}"),
    "a PNG with a bit flipped": (flipped(encoded(), 2000), f".*; {ACCEPTED}"),
    "animated PNG": (frames("PNG"), f".*animated, with 2 frames; {ACCEPTED}"),
    "animated WebP": (frames("WEBP"), f".*animated, with 2 frames; {ACCEPTED}"),
    "GIF": (frames("GIF"), f".*no accepted format; {ACCEPTED}"),
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
    "two pictures": (
        encoded(CMYK.convert("RGB"), "MPO", save_all=True, append_images=[NOISE], quality=100),
        (255, 0, 0),
    ),
}


@pytest.mark.parametrize("streaming", [False, True])
def test_other_images_become_rgb_as_documented(streaming, tmp_path):
    source = folder(tmp_path / "set", [held for held, _ in CONVERTED.values()], list(CONVERTED))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        images, captions = next(checked(source, streaming, len(CONVERTED), 1).batches(len(CONVERTED), 0))
    assert sorted(captions) == sorted(CONVERTED)
    for image, caption in zip(images, captions):
        wanted = np.broadcast_to(CONVERTED[caption][1], (8, 8, 3)).astype(int)
        assert abs(image.permute(1, 2, 0).numpy().astype(int) - wanted).max() <= (2 if caption[0] in "Ct" else 0), (
            caption
        )


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
    refused(source, r"^data: .*0\.tar: .*'1\.txt' is not UTF-8")


TEXTS = {"": "1.png has an empty caption", "\ufeff ": "number \\d .*1.png.* has an empty caption", 3: "text is 3"}


@pytest.mark.parametrize("text", TEXTS)
def test_a_caption_that_is_none_is_named(text, tmp_path):
    refused(folder(tmp_path / "set", each(3), ["a", text, "c"]), TEXTS[text])


def test_lists_that_do_not_fit_together_are_named(tmp_path):
    source = folder(tmp_path / "set", each(3))
    rows = [{"file_name": f"{i}.png", "text": "a", "more": more} for i, more in enumerate((1, "b", 2))]
    (source / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    refused(source, f"data: {source} cannot be read: .*more")


def test_a_line_that_is_there_twice_is_refused_and_a_second_caption_is_told(tmp_path):
    source = folder(tmp_path / "set", each(3))
    lists, again = source / "metadata.jsonl", {"file_name": "1.png", "text": "a"}
    right = lists.read_text()
    lists.write_text(right + json.dumps(again) + "\n")
    refused(source, r"jsonl, line 4: .*1\.png .*metadata\.jsonl, line 2, .*same caption")
    lists.write_text(right + json.dumps(again | {"text": "b"}) + "\n")
    for streaming in (False, True):
        with pytest.warns(UserWarning, match=r"^data: .*: 1; the first: .*1\.png, as .*1\.png"):
            checked(source, streaming)


@pytest.mark.parametrize("streaming", [False, True])
def test_images_with_the_same_bytes_are_told(streaming, tmp_path):
    first, second, third = each(3)
    for source in (
        folder(tmp_path / "set", [first, second, first, third, first]),
        shard(tmp_path / "0.tar", [first, second, first, third, first]),
    ):
        with pytest.warns(UserWarning, match=rf"^data: {source}: .*: 2; the first: .*[024]\.png, as "):
            held = checked(source, streaming)
        assert len({*next(held.batches(5, 0))[0].flatten(1).sum(1).tolist()}) == 3  # trained on as they are
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        checked(folder(tmp_path / "other", each(5)), streaming)


def test_a_shard_with_a_name_twice_or_a_link_is_refused(tmp_path):
    pairs = [(f"{i}.{end}", held) for i, image in enumerate(each(3)) for end, held in (("png", image), ("txt", b"a"))]
    path = tmp_path / "0.tar"
    hidden = [("._0.txt", b"\xff\xfe"), ("._0.txt", b"\xff\xfe")]  # as macOS writes them; not read
    checked(packed(path, pairs + hidden), False)
    refused(packed(path, [*pairs, pairs[0], pairs[1]]), rf"{path} holds '0\.png' twice")
    refused(packed(path, [pairs[0], *pairs]), rf"{path} holds '0\.png' twice")
    refused(
        packed(path, [*pairs, ("3.png", None), ("3.txt", b"a")]), f"{path}: got the link '3.png'; accepted are files"
    )


def test_a_shard_that_is_cut_short_and_a_path_elsewhere_are_refused(tmp_path):
    path = shard(tmp_path / "0.tar", each(6))
    path.write_bytes(path.read_bytes()[:3000])
    refused(path, rf"{path} is damaged: at byte \d")
    source = folder(tmp_path / "set", each(3))
    (tmp_path / "secret.png").write_bytes(each(1)[0])
    lists = source / "metadata.jsonl"
    lists.write_text(lists.read_text().replace("1.png", "../secret.png"))
    refused(source, rf"metadata\.jsonl, line 2: file_name: got '\.\./secret\.png'; .*{source}")
