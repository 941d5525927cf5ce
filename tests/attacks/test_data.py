"""Data sets that are damaged, or name what is not theirs: each is refused, with the file and the place."""

import io
import json
import tarfile

import pytest
from PIL import Image

from fa_lib.training.data import load


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def picture(fmt="PNG", color="red"):
    held = io.BytesIO()
    Image.new("RGB", (20, 20), color).save(held, fmt)
    return held.getvalue()


def shard(path, n=20):
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for i in range(n):
            for suffix, held in (("png", picture()), ("txt", b"a picture")):
                info = tarfile.TarInfo(f"{i:04d}.{suffix}")
                info.size = len(held)
                tar.addfile(info, io.BytesIO(held))
    return path.read_bytes()


def folder(path, rows, images=3):
    path.mkdir()
    for i in range(images):
        (path / f"{i}.png").write_bytes(picture())
    text = rows if isinstance(rows, bytes) else "".join(json.dumps(row) + "\n" for row in rows).encode()
    (path / "metadata.jsonl").write_bytes(text)
    return path


def first(source, streaming):
    held = load(source, 16, streaming=streaming)
    return next(held.batches(2, 0))


def test_a_damaged_shard_is_refused_wherever_it_is_damaged(tmp_path):
    path = tmp_path / "0.tar"
    whole = shard(path)
    with tarfile.open(path) as tar:
        starts = [member.offset for member in tar.getmembers()]
    assert len(load(path, 16).captions) == 20
    flipped = [(whole[: at + bit] + bytes([whole[at + bit] ^ 1]) + whole[at + bit + 1 :])
               for at in (starts[0], starts[21], starts[-1]) for bit in (0, 3, 130, 150, 300)]  # fmt: skip
    cut = [whole[: starts[20]], whole[: starts[20] + 100], whole[: starts[-1] + 513], whole[: starts[1]], b""]
    for damaged in [*flipped, *cut, whole + whole]:
        path.write_bytes(damaged)
        for source in (path, tmp_path, tmp_path / "*.tar"):
            for streaming in (False, True):
                with pytest.raises(ValueError, match=f"the shard {path} is damaged: at byte"):
                    load(source, 16, streaming=streaming)


ELSEWHERE = {
    "image": r"metadata.jsonl, line 2: (has an 'image'|names no image)",
    "file_name": r"metadata.jsonl, line 2: file_name: got '.*secret.png';",
}


@pytest.mark.parametrize("column", ELSEWHERE)
@pytest.mark.parametrize("way", ["up", "absolute"])
def test_an_image_elsewhere_on_the_disk_is_refused(column, way, tmp_path):
    (tmp_path / "secret.png").write_bytes(picture())
    named = "../secret.png" if way == "up" else str(tmp_path / "secret.png")
    source = folder(tmp_path / "set", [dict(file_name="0.png", text="a"), {column: named, "text": "b"}])
    for streaming in (False, True):
        with pytest.raises(ValueError, match=ELSEWHERE[column]):
            first(source, streaming)


def test_another_kind_of_list_is_refused(tmp_path):
    (tmp_path / "secret.png").write_bytes(picture())
    source = tmp_path / "set"
    source.mkdir()
    (source / "0.png").write_bytes(picture())
    (source / "metadata.csv").write_text(f"file_name,image,text\n0.png,{tmp_path}/secret.png,a\n")
    with pytest.raises(ValueError, match="metadata.csv; accepted is metadata.jsonl"):
        load(source, 16)


def test_an_image_without_a_line_is_not_left_out_in_silence(tmp_path):
    source = folder(tmp_path / "set", [dict(file_name="0.png", text="a")], images=3)
    with pytest.raises(ValueError, match=r"1\.png and 1 more .* metadata\.jsonl"):
        load(source, 16)


@pytest.mark.parametrize("fmt", ["EPS", "BMP", "TIFF", "PPM"])
def test_only_png_jpeg_and_webp_are_decoded(fmt, tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *words: started.append(words))
    source = folder(tmp_path / "set", [dict(file_name=f"{i}.png", text="a") for i in range(3)])
    for accepted in ("JPEG", "WEBP"):
        (source / "1.png").write_bytes(picture(accepted))
        assert len(load(source, 16).captions) == 3
    (source / "1.png").write_bytes(picture(fmt))
    for streaming in (False, True):
        with pytest.raises(ValueError, match=r"1.png\) is no image"):
            next(load(source, 16, streaming=streaming).batches(3, 0))
    assert not started  # a program, on a stranger's file


GOOD = b'{"file_name": "0.png", "text": "a"}\n'
LISTS = {
    b"": "metadata.jsonl is empty;",
    b"\n\n": "metadata.jsonl is empty;",
    GOOD + '{"file_name": "1.png", "text": "café"}\n'.encode("latin-1"): "metadata.jsonl, line 2: is not UTF-8",
    GOOD
    + b'{"file_name": "9.png", "text": "b"}\n': "metadata.jsonl, line 2: file_name: got '9.png', which there is not",
    GOOD + b'{"text": "b"}\n': "metadata.jsonl, line 2: names no image",
    GOOD + b'{"file_name": "1.p': "metadata.jsonl, line 2: ",
    GOOD + b'"1.png"\n': "metadata.jsonl, line 2: got '1.png'; accepted is an object",
    GOOD + b'{"file_name": "1.png"}\n': "has an empty caption",
}


@pytest.mark.parametrize("number", range(len(LISTS)))
def test_a_list_of_captions_that_is_none_is_refused_with_its_line(number, tmp_path):
    text, message = list(LISTS.items())[number]
    source = folder(tmp_path / "set", text, images=2)
    for streaming in (False, True):
        with pytest.raises(ValueError, match=f"(?s)data: .*{message}"):
            first(source, streaming)


def test_a_sample_of_a_shard_without_an_image_is_named(tmp_path):
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        for i in range(8):
            for suffix, held in (("png", picture()), ("txt", b"a picture")):
                if (i, suffix) != (6, "png"):  # past the first, by which `datasets` guesses the columns
                    info = tarfile.TarInfo(f"{i:04d}.{suffix}")
                    info.size = len(held)
                    tar.addfile(info, io.BytesIO(held))
    for streaming in (False, True):
        with pytest.raises(ValueError, match=r"number \d \(0006\) has no image"):
            held = load(tmp_path / "0.tar", 16, streaming=streaming)
            list(zip(range(4), held.batches(2, 0)))


@pytest.mark.parametrize("source", ["", " "])
def test_no_data_is_not_the_current_folder(source, tmp_path, monkeypatch):
    monkeypatch.chdir(folder(tmp_path / "set", [dict(file_name=f"{i}.png", text="a") for i in range(3)]))
    with pytest.raises(ValueError, match=f"^data: got {source!r}; accepted are shapes,"):
        load(source, 16)
