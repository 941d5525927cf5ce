"""Install this checkout and what it needs, each archive with the SHA-256 of requirements.hashes: `make` runs it.

    python install_locked.py figures,test         # extras of pyproject.toml; none is the library alone
    python install_locked.py "" FOLDER            # and the requirements.txt of a folder, by the hashes beside it

One archive may have another hash: torch's, where an index or a folder of the reader's has another build of the same
version, one without CUDA for instance. It is then installed by its version, and this is said.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent


def hashed(folder: Path = ROOT) -> dict[str, str]:
    """Read name -> its lines of the folder's requirements.hashes: version, platform, hashes."""
    text = (folder / "requirements.hashes").read_text()
    return {entry.partition("==")[0]: entry for entry in re.findall(r"^[\w.-]+==.*(?:\n .*)*", text, re.MULTILINE)}


def versions(known: dict[str, str]) -> str:
    """Write the lines of `hashed` without their hashes, as pip takes constraints."""
    return "".join(entry.split(" \\")[0] + "\n" for entry in known.values())


def asked(extras: str) -> list[str]:
    """List the requirements of pyproject.toml: its build backend, its own, those of some extras."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    optional = settings["project"]["optional-dependencies"]
    of_extras = [spec for extra in filter(None, extras.split(",")) for spec in optional[extra]]
    return settings["build-system"]["requires"] + settings["project"]["dependencies"] + of_extras


def pip(*words, **options) -> subprocess.CompletedProcess:
    words = [sys.executable, "-m", "pip", "install", "--quiet", *map(str, words)]
    return subprocess.run(words, check=True, **options)


def main(extras: str = "", more: str = "") -> None:
    known, wanted = hashed(), asked(extras)
    if more:
        known |= hashed(Path(more))
        wanted += ["--requirement", Path(more) / "requirements.txt"]
    with tempfile.TemporaryDirectory() as folder:
        constraints, lines = Path(folder, "versions.txt"), Path(folder, "lines.txt")
        lines.write_text(known["pip"])  # an older one may take three times as long to choose
        pip("--no-deps", "--require-hashes", "--requirement", lines)
        constraints.write_text(versions(known))
        options = "--dry-run", "--report", "-", "--constraint", constraints
        chosen = json.loads(pip(*options, *wanted, stdout=subprocess.PIPE).stdout)["install"]
        names = [re.sub(r"[-_.]+", "-", each["metadata"]["name"]).lower() for each in chosen]
        for name, each in [*zip(names, chosen)]:
            sha = each["download_info"]["archive_info"]["hashes"]["sha256"]
            if name == "torch" and f"sha256:{sha}" not in known[name]:
                names.remove(name)
                print(f"torch {each['metadata']['version']}: another build, without a known hash", file=sys.stderr)
                pip("--no-deps", f"torch=={each['metadata']['version']}")
        lines.write_text("\n".join(known.get(name, name) for name in names) + "\n")
        pip("--no-deps", "--require-hashes", "--requirement", lines)  # a name that is not known has no hash: refused
    pip("--no-deps", "--no-build-isolation", "--editable", ROOT)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
