"""Captioned images: drawn ones, and any image-caption data set, on small sets written here."""

import io
import itertools
import json
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image
from runs import QUICK, run, same_weights

from fa_lib.training import data
from fa_lib.training.data import Captioned, load, shapes

WORDS = ("red", "green", "blue", "black", "white")


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def picture(color, size=(40, 30)):
    held = io.BytesIO()
    Image.new("RGB", size, color).save(held, "PNG")
    return held.getvalue()


def image_folder(folder, captions, column="text"):
    folder.mkdir()
    for i in range(len(captions)):
        (folder / f"{i}.png").write_bytes(picture(WORDS[i % 5]))
    rows = [{"file_name": f"{i}.png", column: caption} for i, caption in enumerate(captions)]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def shard(path, captions):
    with tarfile.open(path, "w") as tar:
        for i, caption in enumerate(captions):
            for suffix, held in (("png", picture(WORDS[i % 5])), ("txt", caption.encode())):
                info = tarfile.TarInfo(f"{i:04d}.{suffix}")
                info.size = len(held)
                tar.addfile(info, io.BytesIO(held))
    return path


def first(batches, n):
    return [(images.sum().item(), captions) for images, captions in itertools.islice(batches, n)]


def test_shapes_are_what_their_captions_say():
    drawn = shapes(200, 32, seed=0)
    assert drawn.images.shape == (200, 3, 32, 32) and drawn.images.dtype == torch.uint8
    sums = {}
    for image, caption in zip(drawn.images.double(), drawn.captions):
        size, color, shape, y, x = caption.split()
        lit = image.amax(0) > 60
        rows, columns = torch.where(lit)
        assert (rows.double().mean() < 16) == (y == "top") and (columns.double().mean() < 16) == (x == "left")
        mean = image[:, lit].mean(1).round()
        assert {"red": 0, "green": 1, "blue": 2, "yellow": 0}[color] == mean.argmax()
        assert (mean[1] > 150) == (color in ("yellow", "green"))
        sums.setdefault((size, shape), []).append(lit.sum().item())
    for shape in data.SHAPES:
        assert min(sums["large", shape]) > max(sums["small", shape])
    assert (shapes(200, 32, seed=0).images == drawn.images).all() and shapes(200, 32, 0).captions == drawn.captions
    assert shapes(200, 32, seed=1).captions != drawn.captions


def test_batches_go_through_the_data_and_can_start_anywhere():
    held = Captioned(torch.arange(10, dtype=torch.uint8).reshape(10, 1, 1, 1), [str(i) for i in range(10)])
    sixteen = first(held.batches(3, seed=1), 16)
    for epoch in range(4):
        seen = [c for _, captions in sixteen[3 * epoch : 3 * epoch + 3] for c in captions]
        assert len(set(seen)) == 9
    for start in (1, 3, 7):
        assert first(held.batches(3, seed=1, start=start), 9) == sixteen[start : start + 9]
    assert first(held.batches(3, seed=2), 16) != sixteen
    with pytest.raises(ValueError, match=r"^batch: got 11; .*\b10 images"):
        next(held.batches(11, seed=0))


@pytest.mark.parametrize("kind", ["imagefolder", "caption column", "shard", "folder of shards"])
def test_real_data_sets_are_read(kind, tmp_path):
    captions = [f"a {word} picture" for word in WORDS]
    if "shard" in kind:
        (tmp_path / "set").mkdir()
        source = shard(tmp_path / "set" / "0.tar", captions)
        source = source.parent if "folder" in kind else source
    else:
        source = image_folder(tmp_path / "set", captions, "caption" if "column" in kind else "text")
    held = load(source, 16)
    assert sorted(held.captions) == sorted(captions) and held.images.shape == (5, 3, 16, 16)
    for image, caption in zip(held.images, held.captions):
        wanted = np.array(Image.new("RGB", (1, 1), caption.split()[1]))[0, 0]
        assert image.flatten(1).float().mean(1).tolist() == wanted.tolist()
    stream = load(source, 16, streaming=True)
    ten = first(stream.batches(2, seed=3), 10)
    assert all(len(set(a + b)) == 4 for (_, a), (_, b) in zip(ten[::2], ten[1::2]))  # four of five in each epoch
    for start in (1, 2, 5):
        assert first(load(source, 16, streaming=True).batches(2, seed=3, start=start), 5) == ten[start : start + 5]
    for data_set in (held, stream):
        with pytest.raises(ValueError, match=r"^batch: got 6; .*\b5\b"):
            data_set.check(6)


def test_what_cannot_be_trained_on_is_named(tmp_path):
    folder = image_folder(tmp_path / "bare", WORDS)
    (folder / "metadata.jsonl").unlink()
    with pytest.raises(ValueError, match=r"bare has no captions, .*\bimage\b.*accepted are text, caption, txt"):
        load(folder, 16)
    folder = image_folder(tmp_path / "torn", WORDS)
    (folder / "2.png").write_bytes(picture("red")[:50])
    for streaming in (False, True):
        with pytest.raises(ValueError, match=r"torn, number \d \(.*2\.png\) is no image"):
            held = load(folder, 16, streaming=streaming)
            next(held.batches(5, 0))
    folder = image_folder(tmp_path / "dumb", ["one", "two", " "])
    with pytest.raises(ValueError, match=r"dumb, number 2 \(.*2\.png\) has an empty caption"):
        load(folder, 16)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load(tmp_path / "nowhere", 16)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_model_trains_on_them_and_goes_on_where_it_was(streaming, tmp_path):
    folder = image_folder(tmp_path / "set", [f"a {word} picture" for word in WORDS * 2])
    options = dict(config=QUICK, steps=5, every=1, source=folder, streaming=streaming)

    def stop(step):
        if step == 3:
            raise KeyboardInterrupt

    undisturbed = run(tmp_path / "undisturbed", **options)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "stopped", watch=stop, **options)
    resumed = run(tmp_path / "stopped", **options)
    assert not (tmp_path / "stopped" / "resume.ckpt").exists()
    assert len(set(undisturbed["losses"])) == 5 and resumed["losses"] == undisturbed["losses"]
    assert same_weights(tmp_path / "undisturbed", tmp_path / "stopped", 5)
    (folder / "metadata.jsonl").unlink()
    with pytest.raises(ValueError, match="has no captions"):
        run(tmp_path / "no", **options)
    assert not (tmp_path / "no").exists()
