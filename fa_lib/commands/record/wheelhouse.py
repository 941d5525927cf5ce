"""Wheels for a machine without a network: what this project needs and that machine lacks, in one folder."""

import email.parser
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from fa_lib.execution.files import locked_folder
from fa_lib.execution.paths import CHECKOUT

THERE = Path(__file__).with_name("there.txt")
EXTRAS = ("notebooks", "train", "test", "cluster")  # of pyproject.toml, all but these packages:
NOT_NEEDED = "jupyterlab ipywidgets ruff basedpyright check-jsonschema nbstripout".split()
SOURCES = {"flash-attn": ("flash-attn==2.8.*", {"FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE"})}
OPTIONAL = {name: Requirement(spec) for name, spec in (  # kernels of the gallery that a GPU alone can run
    ("xformers", "xformers==0.0.35"),  # needs torch 2.10 or later
    ("sageattention", "sageattention==1.0.6"),  # the last one in Triton alone
)}  # fmt: skip
GLIBC = 28  # the newest 2.x that a wheel may ask for
MEGABYTES = 50
INSTALL = "install --no-index --no-deps --no-compile --no-cache-dir --upgrade"

Has = dict[str, Version | None]  # a package's version, None where it is not known


def there(path: Path = THERE) -> Has:
    """The packages that the machine has, from a file of `name` and `name==version`, one a line."""
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    pairs = (line.partition("==") for line in lines if line)
    return {canonicalize_name(name): Version(version) if version else None for name, _, version in pairs}


def needed() -> list[Requirement]:
    """What a record needs: the project's own dependencies and EXTRAS, without NOT_NEEDED.

    Raises:
        ValueError: there is no checkout here, whose pyproject.toml says it.
    """
    project = tomllib.loads((_checkout() / "pyproject.toml").read_text())["project"]
    extras = (spec for extra in EXTRAS for spec in project["optional-dependencies"][extra])
    wanted = (Requirement(spec) for spec in (*project["dependencies"], *extras))
    return [requirement for requirement in wanted if requirement.name not in NOT_NEEDED]


def fill(
    folder: str | Path,
    python: str = "3.12",
    has: Has | None = None,
    *,
    sources: Iterable[str] = (),
    more: Iterable[str] = (),
    say: Callable[[str], None] = print,
) -> Path:
    """Download the wheels that a record needs and the machine lacks, in the versions of requirements.lock.

    What is in the folder already is kept: interrupted and started again, it goes on.

    Args:
        python: of the machine, such as "3.12"; the Python that runs this may be another one.
        has: what the machine has; `there()` where None.
        sources: packages, of SOURCES, of which the source package is taken too.
        more: packages of OPTIONAL that are taken too.
        say: gets one line for each download.

    Raises:
        ValueError: an argument does not fit, or another process fills the folder.
        RuntimeError: pip cannot download a package; with pip's last line.
    """
    (environment, _), more = _machine(python), list(more)
    for name in sources:
        if name not in SOURCES:
            raise ValueError(f"source: got {name!r}; accepted are {', '.join(SOURCES)}")
    for name in more:
        if name not in OPTIONAL:
            raise ValueError(f"more: got {name!r}; accepted are {', '.join(OPTIONAL)}")
    folder, has, pins = Path(folder), there() if has is None else has, _pins()
    with locked_folder(folder):
        folder.mkdir(exist_ok=True)
        roots = [*_roots(has), *(OPTIONAL[name] for name in more)]
        while lacking := _lacking(_wheels(folder), has, roots, environment):
            for name, specifier in lacking.items():
                pin = SpecifierSet(f"=={pins[name]}") if name in pins else specifier
                _download(folder, f"{name}{pin}", ["--only-binary=:all:", *_platform(python)], {}, say)
        for name in sources:
            spec, settings = SOURCES[name]
            if not list(folder.glob(f"{name.replace('-', '_')}-*.tar.gz")):
                # pip runs a source package's setup.py to learn its name: in this environment, which has torch
                _download(folder, spec, ["--no-build-isolation", f"--no-binary={name}"], settings, say)
    return folder


def check(folder: str | Path, python: str = "3.12", has: Has | None = None, roots=()) -> list[str]:
    """What is wrong with a folder of wheels, a sentence each; nothing where all of it can be installed.

    Every wheel has to fit the machine, once in one version, and what it needs (its METADATA, with the markers as they
    are on the machine) has to be in the folder or on the machine, in a version that fits.

    Args:
        roots: requirements that have to be met besides those of the wheels.

    Raises:
        ValueError: `python` is not a version, the folder has no wheel, or a file is no wheel.
    """
    environment, tags = _machine(python)
    folder, has = Path(folder), there() if has is None else has
    wheels, problems = _wheels(folder), []
    if not wheels:
        raise ValueError(f"folder: {folder} holds no wheel; accepted is a folder that `fa-lib dev wheelhouse` filled")
    for name, found in wheels.items():
        if len(found) > 1:
            problems.append(f"{name}: the versions {' and '.join(str(w.version) for w in found)} are both there")
        for wheel in found:
            if wheel.tags.isdisjoint(tags):
                problems.append(f"{wheel.path.name} is not for Python {python} on x86-64 Linux")
            if python not in wheel.python:
                problems.append(f"{wheel.path.name} needs Python {wheel.python}, not {python}")
    for requirement, by in _unmet(wheels, has, roots, environment):
        name = canonicalize_name(requirement.name)
        version = wheels[name][0].version if name in wheels else has.get(name)
        found = f"there is {version}" if name in wheels or name in has else "it is missing"
        problems.append(f"{by} needs {requirement.name}{requirement.specifier}: {found}")
    return sorted(problems)


def main(
    python: str, folder: str | Path, sources: Iterable[str] = (), more: Iterable[str] = (),
    say: Callable[[str], None] = print,
) -> None:  # fmt: skip
    """Fill a folder, check it, say its size, and how to install it: by pip, since fa_lib itself needs some of it.

    Raises:
        ValueError: as `fill`; or something in the folder cannot be installed there, or it is larger than MEGABYTES.
        RuntimeError: as `fill`.
    """
    fill(folder, python, sources=sources, more=more, say=say)
    if problems := check(folder, python, roots=_roots(there())):
        raise ValueError(f"folder: {folder} cannot be installed there:\n" + "\n".join(problems))
    files = [path for path in Path(folder).iterdir() if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 1e6
    if size > MEGABYTES:
        raise ValueError(
            f"folder: {folder} has {size:.0f} MB; accepted are {MEGABYTES}: what is large, and not needed?"
        )
    say(f"{len(files)} files, {size:.1f} MB, are in {folder}: all that a record on Python {python} needs and lacks")
    say(f"there: python3 -m pip {INSTALL} --target build/site {folder}/*.whl && export PYTHONPATH=$PWD/build/site")


@dataclass(frozen=True)
class Wheel:
    path: Path
    version: Version
    tags: frozenset[Tag]
    python: SpecifierSet
    needs: tuple[Requirement, ...]


def _wheels(folder: Path) -> dict[str, list[Wheel]]:
    found = {}
    for path in sorted(folder.glob("*.whl")):
        try:
            name, version, _, tags = parse_wheel_filename(path.name)
            with zipfile.ZipFile(path) as archive:
                inner = next(n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n))
                metadata = email.parser.HeaderParser().parsestr(archive.read(inner).decode())
        except (ValueError, zipfile.BadZipFile, StopIteration) as error:
            raise ValueError(f"folder: {path} is no wheel ({error}); remove it") from error
        needs = tuple(Requirement(line) for line in metadata.get_all("Requires-Dist", []))
        wheel = Wheel(path, version, tags, SpecifierSet(metadata.get("Requires-Python", "")), needs)
        found.setdefault(name, []).append(wheel)
    return found


def _unmet(wheels, has, roots, environment):
    """(requirement, who has it) of what neither the wheels nor the machine meet, from the roots and all wheels on.

    What a package of the machine needs is taken to be there, its extras too.
    """
    todo = [(root, "this project") for root in roots] + [(Requirement(name), "the folder") for name in wheels]
    seen = set()
    while todo:
        requirement, by = todo.pop()
        if (f"{requirement}", by) in seen:
            continue
        seen.add((f"{requirement}", by))
        name = canonicalize_name(requirement.name)
        version = wheels[name][0].version if name in wheels else has.get(name)
        fits = version is None or requirement.specifier.contains(version, prereleases=True)
        if not fits or (name not in wheels and name not in has):
            yield requirement, by
        for wheel in wheels.get(name, []):
            for need in wheel.needs:
                cases = [environment | {"extra": extra} for extra in requirement.extras or {""}]
                if need.marker is None or any(need.marker.evaluate(case) for case in cases):
                    todo.append((need, f"{name} {wheel.version}"))


def _lacking(wheels, has, roots, environment) -> dict[str, SpecifierSet]:
    """Packages to download, with all that is asked of their versions; not those that are there in another version."""
    lacking = {}
    for requirement, _ in _unmet(wheels, has, roots, environment):
        name = canonicalize_name(requirement.name)
        if name not in wheels and name not in has:
            lacking[name] = lacking.get(name, SpecifierSet()) & requirement.specifier
    return lacking


def _roots(has) -> list[Requirement]:
    """Of what is needed, what the machine lacks: the versions it has are its own affair."""
    return [requirement for requirement in needed() if canonicalize_name(requirement.name) not in has]


def _pins() -> dict[str, str]:
    lines = (_checkout() / "requirements.lock").read_text().splitlines()
    return {canonicalize_name(line.split("==")[0]): line.split("==")[1] for line in lines if "==" in line}


def _checkout() -> Path:
    if CHECKOUT is None:
        raise ValueError("wheelhouse: there is no checkout here; accepted is a clone of the repository")
    return CHECKOUT


def _machine(python: str) -> tuple[dict[str, str], frozenset[Tag]]:
    """The environment of markers and the tags of wheels: CPython on x86-64 Linux, whatever runs here."""
    if not re.fullmatch(r"3\.\d+", python):
        raise ValueError(f"python: got {python!r}; accepted is a version such as 3.12")
    linux = dict(os_name="posix", sys_platform="linux", platform_system="Linux", platform_machine="x86_64")
    cpython = dict(implementation_name="cpython", platform_python_implementation="CPython")
    versions = dict(python_version=python, python_full_version=f"{python}.0", implementation_version=f"{python}.0")
    number = (3, int(python.split(".")[1]))
    tags = (
        *cpython_tags(number, platforms=_PLATFORMS),
        *compatible_tags(number, f"cp{number[0]}{number[1]}", _PLATFORMS),
    )
    return {**default_environment(), **linux, **cpython, **versions}, frozenset(tags)


_PLATFORMS = [
    *(f"manylinux_2_{minor}_x86_64" for minor in range(GLIBC, 4, -1)),
    *(f"manylinux{year}_x86_64" for year in ("2014", "2010", "1")),
]


def _platform(python):
    return ["--python-version", python, "--implementation", "cp", *(f"--platform={name}" for name in _PLATFORMS)]


def _download(folder, spec, options, settings, say):
    with tempfile.TemporaryDirectory(dir=folder, prefix=".") as part:
        _pip(["download", "--no-deps", "--dest", part, *options, spec], settings)
        for path in Path(part).iterdir():
            size = path.stat().st_size / 1e6
            os.replace(path, folder / path.name)  # a file of the folder is a whole one
            say(f"{path.name}, {size:.1f} MB")


def _pip(words, settings):
    command = [sys.executable, "-m", "pip", *words, "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | settings)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise RuntimeError(f"pip {words[0]} {words[-1]} failed: {errors[-1] if errors else done.returncode}")
