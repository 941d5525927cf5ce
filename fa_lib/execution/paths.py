"""Where things are: what fa_lib reads, and where it writes when nothing else is said.

In a checkout notebooks/ and data/ are beside the package. An installed wheel brings them inside, below share/, which
nothing writes to: what is written then goes below the current folder.
"""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
CHECKOUT = PACKAGE.parent if (PACKAGE.parent / "pyproject.toml").exists() else None
INSTRUMENTS = CHECKOUT / "instruments" if CHECKOUT else PACKAGE.parent
PACKAGES = {"fa_lib": PACKAGE} | {  # all that one distribution installs
    name: INSTRUMENTS / name for name in ("ptx_machine", "attention_check", "attention_gallery")
}
ROOT = CHECKOUT or PACKAGE / "share"  # of what is read
NOTEBOOKS = ROOT / "notebooks"
PUBLISHED = ROOT / "data" / "published.csv"
RESULTS = ROOT / "data" / "results"
RECORDED = ROOT / "data" / "recorded"
GPU = ROOT / "data" / "gpu"  # of GPU kernels, run without one
STYLE = ["default", PACKAGE / "plots" / "paper.mplstyle"]  # for matplotlib: over nothing of the reader's


def build() -> Path:
    """Return the folder for all that is made anew: build/ of the checkout, or of the current folder."""
    return (CHECKOUT or Path.cwd()) / "build"


def reports() -> Path:
    """Return the folder for pages where none is named: build/reports of the checkout where the current folder lies in
    it, else of the current folder."""
    here = Path.cwd()
    return (build() if CHECKOUT and here.resolve().is_relative_to(CHECKOUT) else here / "build") / "reports"


def other_checkout(folder: Path) -> Path | None:
    """Return the package of a checkout in a folder; None where there is none, or where it is the package that runs."""
    own = folder / "fa_lib"
    if not (folder / "pyproject.toml").is_file() or not (own / "__init__.py").is_file() or own.resolve() == PACKAGE:
        return None
    return own


def same_code(other: Path) -> bool:
    """Say whether another checkout's fa_lib and instruments have the modules of those that run."""
    theirs = {name: other.parent / ("." if name == "fa_lib" else "instruments") / name for name in PACKAGES}
    return all(_modules(theirs[name]) == _modules(package) for name, package in PACKAGES.items())


def _modules(package):
    return {str(path.relative_to(package)): path.read_bytes() for path in package.rglob("*.py")}
