"""Where things are, and the one way a file is written."""

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "data" / "published.csv"
RESULTS = ROOT / "data" / "results"
RECORDED = ROOT / "data" / "recorded"


@contextmanager
def replacing(path):
    """A temporary path beside `path` that becomes it when the block ends well, and is removed when it does not.

    Raises:
        OSError: the disk is full, or `path` cannot be written; with its path.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    try:
        yield Path(name)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except OSError as error:
        error.filename = error.filename or str(path)  # a full disk names no file
        raise
    finally:
        Path(name).unlink(missing_ok=True)
