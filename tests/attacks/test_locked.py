"""What `make` installs: every archive has a hash, and one with another is not installed."""

import importlib.util
import re
from pathlib import Path

import pytest

from fa_lib.execution.paths import ROOT


@pytest.fixture(scope="module")
def locked():
    spec = importlib.util.spec_from_file_location("install_locked", ROOT / "install_locked.py")
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    return module


def chosen(name, version, sha):
    return dict(
        metadata=dict(name=name, version=version), download_info=dict(archive_info=dict(hashes=dict(sha256=sha)))
    )


def recorded(locked, found, monkeypatch):
    """The calls of a pip that installs nothing, and would choose what was found."""
    calls = []

    def pip(*words, **options):
        calls.append(words)
        return type("Done", (), dict(stdout=locked.json.dumps(dict(install=found))))

    monkeypatch.setattr(locked, "pip", pip)
    monkeypatch.setattr(locked.importlib.metadata, "version", lambda name: pinned(locked, name))
    return calls


def pinned(locked, name):
    return locked.hashed()[name].split()[0].partition("==")[2]


def test_every_version_is_exact_and_has_hashes_and_the_build_backend_is_pinned(locked):
    known = locked.hashed()
    for name, entry in known.items():
        assert name == locked.normal(name) and re.match(rf"{name}==[\w.!]+ ", entry), name
        assert re.findall("--hash=sha256:[0-9a-f]{64}(?: |$)", entry, flags=re.M), name
    assert all(f"{each} " in " ".join(known.values()) for each in locked.asked("")[:2])  # the build backend


def test_the_gallerys_packages_have_hashes_too(locked, monkeypatch):
    """Each that requirements.txt pins has its entry, and pip is asked for hashes of them."""
    folder = ROOT / "instruments/attention_gallery"
    known = locked.hashed(folder)
    for line in (folder / "requirements.txt").read_text().splitlines():
        if not line.startswith("#"):
            name, version = re.fullmatch(r"([\w.-]+)(?:\[\w+\])?==(\S+)", line).groups()
            assert known[locked.normal(name)].startswith(f"{locked.normal(name)}=={version} ")
    assert all(re.search("--hash=sha256:[0-9a-f]{64}", entry) for entry in known.values())
    sha = re.search("sha256:([0-9a-f]{64})", known["einops"])[1]
    found = [chosen("einops", known["einops"].split()[0].partition("==")[2], sha)]

    calls = recorded(locked, found, monkeypatch)
    locked.main("", folder)
    assert str(folder / "requirements.txt") in calls[0] and "--require-hashes" in calls[1] and len(calls) == 3


def test_an_archive_of_another_hash_is_refused(locked):
    known = locked.hashed()
    sha = re.search("sha256:([0-9a-f]{64})", known["numpy"])[1]
    version = pinned(locked, "numpy")
    assert locked.split([chosen("NumPy", version, sha)], known) == ([known["numpy"]], [])
    for name, other in (("numpy", "0" * 64), ("numpy", sha[:-1] + "x"), ("never-heard-of", sha)):
        with pytest.raises(SystemExit, match=f"{name} {version}: its archive is none of requirements.hashes"):
            locked.split([chosen(name, version, other)], known)


def test_another_build_of_torch_is_told(locked):
    known = locked.hashed()
    version = pinned(locked, "torch")
    assert locked.split([chosen("torch", f"{version}+cpu", "0" * 64)], known) == ([], [f"torch=={version}+cpu"])
    with pytest.raises(SystemExit, match="torch 1.0: its archive"):
        locked.split([chosen("torch", "1.0", "0" * 64)], known)


def test_pip_is_asked_for_hashes_of_all_but_other_builds(locked, monkeypatch):
    """And nothing is installed before all of it is known."""
    known = locked.hashed()
    sha = re.search("sha256:([0-9a-f]{64})", known["numpy"])[1]
    found = [chosen("numpy", pinned(locked, "numpy"), sha)]

    calls = recorded(locked, found, monkeypatch)
    locked.main("test")
    assert "--dry-run" in calls[0] and {"--require-hashes", "--no-deps"} <= set(calls[1])
    assert {"--no-deps", "--no-build-isolation"} <= set(calls[2]) and len(calls) == 3
    found.append(chosen("numpy", "0", "0" * 64))
    with pytest.raises(SystemExit):
        locked.main("test")
    assert len(calls) == 4


def test_an_older_pip_is_replaced_by_hash(locked, monkeypatch):
    known, installed = locked.hashed(), []
    monkeypatch.setattr(locked, "pip", lambda *words: installed.append(Path(words[-1]).read_text()))
    monkeypatch.setattr(locked.importlib.metadata, "version", lambda name: "23.2.1")
    locked.renew_pip(known)
    assert installed == [known["pip"]]
    monkeypatch.setattr(locked.importlib.metadata, "version", lambda name: pinned(locked, name))
    locked.renew_pip(known)
    assert installed == [known["pip"]]
