"""What the heading of a page says of a check: the package that was judged, what judged it, when and where."""

import platform
from importlib.metadata import entry_points

import torch

from fa_lib.execution.machine import date, installed, package, processor
from fa_lib.execution.results import versions
from fa_lib.kernels.kernel_ref import KernelRef


def package_of(kernel: KernelRef) -> str:
    """Write the package that a kernel is of, with its version."""
    for source in entry_points(group="fa_lib.kernel_packages", name=kernel.module.partition(".")[0] or kernel.function):
        if project := source.load()(kernel):
            return project
    return (package(kernel.module) or "none that is installed") if kernel.module else "fa_lib, built in"


def circumstances(device: str) -> dict[str, str]:
    """Versions, the date and the device."""
    on_gpu, count = torch.device(device).type == "cuda", torch.get_num_threads()
    name = torch.cuda.get_device_name(device) if on_gpu else processor()
    threads = "" if on_gpu else f", {count} thread{'' if count == 1 else 's'}"
    own = f"fa_lib {installed('fa_lib') or 'of a checkout'}"
    libraries = f"{own}, torch {versions()['torch']}, Python {platform.python_version()}"
    return {"Judged by": libraries, "Date": date(), "Device": f"{name}{threads}"}
