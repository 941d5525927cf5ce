"""What `make` installs: every archive has a hash, and one with another is not installed."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import install_locked


def archive(name, version, sha):
    return dict(
        metadata=dict(name=name, version=version), download_info=dict(archive_info=dict(hashes=dict(sha256=sha)))
    )


def test_pip_installs_by_hash_all_but_another_build_of_torch(monkeypatch, capsys):
    known = install_locked.hashed()
    chosen = [archive("NumPy", "1", "0" * 64), archive("torch", "2+cpu", "0" * 64), archive("never.heard_of", "1", "x")]
    calls, files = [], []

    def pip(*words, **options):
        calls.append(words)
        files.append(Path(words[-1]).read_text() if "--require-hashes" in words else "")
        return SimpleNamespace(stdout=json.dumps(dict(install=chosen)))

    monkeypatch.setattr(install_locked, "pip", pip)
    install_locked.main("test")
    by_hash = [text for text in files if text]
    assert by_hash == [known["pip"], f"{known['numpy']}\nnever-heard-of\n"]  # which pip refuses: it has no hash
    assert ("--no-deps", "torch==2+cpu") in calls and "torch 2+cpu: another build" in capsys.readouterr().err
    assert all("--no-deps" in words for words in calls if "--dry-run" not in words)
    sha = re.search("sha256:([0-9a-f]{64})", known["torch"])[1]
    chosen[1] = archive("torch", "2", sha)
    install_locked.main("test")
    assert known["torch"] in files[-2]
