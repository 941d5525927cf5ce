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
    end = starts[-1] + 1024  # where two empty blocks begin
    cut = [whole[:at] for at in (0, starts[1], starts[20], starts[20] + 100, end - 511, end, end + 512, end + 1023)]
    path.write_bytes(whole[: end + 1024])
    assert len(load(path, 16).captions) == 20
    for damaged in [*flipped, *cut, whole + whole]:
        path.write_bytes(damaged)
        for source in (path, tmp_path, tmp_path / "*.tar"):
            for streaming in (False, True):
                with pytest.raises(ValueError, match=f"the shard {path} is damaged: "):
                    load(source, 16, streaming=streaming)


@pytest.mark.parametrize("way", ["up", "absolute"])
@pytest.mark.parametrize("kind", ["file_name", "image", "csv"])
def test_an_image_elsewhere_on_the_disk_is_refused(kind, way, tmp_path):
    (tmp_path / "secret.png").write_bytes(picture())
    named = "../secret.png" if way == "up" else str(tmp_path / "secret.png")
    rows = [dict(file_name="0.png", text="a"), dict(file_name=named, text="b")]
    if kind == "image":
        rows = [dict(file_name=f"{i}.png", image=named, text="a") for i in range(2)]
    source = folder(tmp_path / "set", rows)
    if kind == "csv":
        (source / "metadata.jsonl").unlink()
        (source / "metadata.csv").write_text(f"file_name,image,text\n0.png,{named},a\n1.png,{named},b\n")
    for streaming in (False, True):
        with pytest.raises(ValueError, match="data: .*(Invalid metadata file_name|secret.png\\) is not in )"):
            first(source, streaming)


def test_an_image_that_starts_a_program_is_not_decoded(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *words: started.append(words))
    source = folder(tmp_path / "set", [dict(file_name=f"{i}.png", text="a") for i in range(3)])
    (source / "1.png").write_bytes(picture("EPS"))
    for streaming in (False, True):
        with pytest.raises(ValueError, match=r"1.png\) is no image that can be read"):
            next(load(source, 16, streaming=streaming).batches(3, 0))
    assert not started  # Ghostscript, on a stranger's file


GOOD = b'{"file_name": "0.png", "text": "a"}\n'
LISTS = {
    b"": "metadata.jsonl, line 1: got b''",
    b"\n\n": "metadata.jsonl, line 1: got b''",
    GOOD + '{"file_name": "1.png", "text": "café"}\n'.encode("latin-1"): "metadata.jsonl, line 2: got b'{",
    GOOD + b'{"text": "b"}\n': "metadata.jsonl, line 2: .*accepted is an object with file_name, and text or caption",
    GOOD + b'{"file_name": "1.p': "metadata.jsonl, line 2: got",
    GOOD + b'"1.png"\n': "metadata.jsonl, line 2: got",
    GOOD + b'{"file_name": "1.png"}\n': "metadata.jsonl, line 2: got",
    GOOD + b'{"file_name": "1.png", "text": ""}\n': "metadata.jsonl, line 2: got",
    GOOD + b'{"file_name": "1.png", "text": " "}\n': r"number \d \(.*1.png\) has an empty caption",
    GOOD + b'{"file_name": "1.png", "caption": "b"}\n': r"number \d \(.*1.png\) has an empty caption",
    GOOD + b'{"file_name": "9.png", "text": "b"}\n': r"number \d \(.*9.png\) is no image that can be read",
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
    with pytest.raises(ValueError, match=f"data: got {source!r}; accepted are shapes, a folder"):
        load(source, 16)
