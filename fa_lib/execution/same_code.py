"""Whether the process that runs a notebook's cells has the fa_lib that runs the notebook."""

import subprocess
from pathlib import Path

from jupyter_client.kernelspec import KernelSpecManager

from fa_lib.execution.paths import PACKAGE

WHERE = "import importlib.util as u; found = u.find_spec('fa_lib'); print(found and found.origin or '')"


def refuse_another_fa_lib(folder: Path, kernel: str) -> None:
    """Refuse a notebook whose cells would import another fa_lib than this one. That happens where PYTHONPATH does not
    reach this one (Python takes a folder with a colon in its name for two), or where the kernel is another Python's.

    Args:
        folder: where the notebook runs. kernel: the name of its kernelspec.

    Raises:
        RuntimeError: the cells would import another fa_lib, or none.
    """
    interpreter = KernelSpecManager().get_kernel_spec(kernel).argv[0]
    found = subprocess.run([interpreter, "-c", WHERE], cwd=folder, capture_output=True, text=True).stdout.strip()
    package = Path(found).resolve().parent if found else None
    if package != PACKAGE:
        words = f"would run the fa_lib in {package}" if package else "finds no fa_lib"
        raise RuntimeError(
            f"the notebook's kernel, {interpreter}, {words}, not this one, {PACKAGE}; accepted is a Python that has no "
            "other one, and a folder without a colon in its path"
        )
