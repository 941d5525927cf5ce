"""Install this checkout and what it needs, each archive with the SHA-256 of requirements.hashes: `make` runs it.

    python install_locked.py figures,test         # extras of pyproject.toml; none is the library alone
    python install_locked.py "" FOLDER            # and the requirements.txt of a folder, by the hashes beside it

pip comes first: the one that Python brings may take three times as long to choose among all versions there are.

One archive may have another hash: torch's, where an index or a folder of the reader's has another build of the same
version, one without CUDA for instance. It is then installed by its version, and this is said.
"""

import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent
OTHER_BUILDS = ("torch",)
SHARES, AT_ONCE = 4, 2  # of the packages, each installed by a pip of its own, which keeps one core busy


def hashed(folder: Path = ROOT) -> dict[str, str]:
    """name -> its lines of the folder's requirements.hashes: version, platform, hashes."""
    lines = [line for line in (folder / "requirements.hashes").read_text().splitlines() if not line.startswith("#")]
    entries = re.split(r"\n(?=\S)", "\n".join(lines).strip())
    return {re.match(r"[\w.-]+", entry)[0]: entry for entry in entries}


def versions(known: dict[str, str]) -> str:
    """The lines of `hashed` without their hashes, as pip takes constraints."""
    return "".join(entry.split(" \\")[0] + "\n" for entry in known.values())


def normal(name: str) -> str:
    """A package's name as an index has it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def asked(extras: str) -> list[str]:
    """The requirements of pyproject.toml: its own, those of some extras, and its build backend."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, found = settings["project"], list(settings["build-system"]["requires"])
    for extra in filter(None, extras.split(",")):
        found += project["optional-dependencies"][extra]
    return found + project["dependencies"]


def split(chosen: list[dict], known: dict[str, str]) -> tuple[list[str], list[str]]:
    """(lines for pip with hashes, requirements whose archive has another hash) of what pip would install.

    Args:
        chosen: "install" of pip's report. known: `hashed`.
    """
    lines, others = [], []
    for each in chosen:
        name, version = normal(each["metadata"]["name"]), each["metadata"]["version"]
        found = each["download_info"]["archive_info"]["hashes"]["sha256"]
        entry = known.get(name, "")
        if f"sha256:{found}" in entry:
            lines.append(entry)
        elif name in OTHER_BUILDS and f"{name}=={version.split('+')[0]}" in entry:
            others.append(f"{name}=={version}")
        else:
            sys.exit(
                f"{name} {version}: its archive is none of requirements.hashes, SHA-256 {found}: it is not installed"
            )
    return lines, others


def pip(*words, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "pip", *map(str, words)], check=True, **options)


def renew_pip(known: dict[str, str]) -> None:
    """Make this environment's pip the one of requirements.hashes."""
    if not known["pip"].startswith(f"pip=={importlib.metadata.version('pip')} "):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(known["pip"])
            file.flush()
            pip("install", "--quiet", "--no-deps", "--require-hashes", "--requirement", file.name)


def main(extras: str = "", more: str = "") -> None:
    known, wanted = hashed(), asked(extras)
    renew_pip(known)
    if more:
        known |= hashed(Path(more))
        wanted += ["--requirement", str(Path(more) / "requirements.txt")]
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text(versions(known))
        install = ["install", "--quiet"]
        told = pip(*install, "--dry-run", "--report", "-", "--constraint", constraints, *wanted, stdout=subprocess.PIPE)
        lines, others = split(json.loads(told.stdout)["install"], known)
        for other in others:
            print(f"{other}: another build than PyPI's, installed without a hash", file=sys.stderr)
        shares = [["--no-deps", other] for other in others]
        for i in range(min(SHARES, len(lines))):
            share = Path(folder) / f"share{i}.txt"
            share.write_text("\n".join(lines[i::SHARES]) + "\n")
            shares.append(["--no-deps", "--require-hashes", "--requirement", share])
        with ThreadPoolExecutor(AT_ONCE) as pool:  # none needs another one in order to be installed
            list(pool.map(lambda share: pip(*install, *share), shares))
        pip(*install, "--no-deps", "--no-build-isolation", "--editable", ROOT)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
