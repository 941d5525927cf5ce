"""Where the machine keeps what it compiles and fetches."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parents[1]  # of a checkout


def build() -> Path:
    """Return the folder for all that is made anew: build/ of the checkout, or of the current folder."""
    return (ROOT if (ROOT / "pyproject.toml").is_file() else Path.cwd()) / "build"
