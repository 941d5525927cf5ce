"""What a report says of the machine and of the packages that it ran with: for readers, not for results."""

import importlib.metadata
import importlib.util
import os
import platform
import time
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# instructions, by Linux's names, that decide which formats a processor computes in
FORMATS_OF = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16", "asimd", "bf16", "fphp")

MODEL = {  # of /proc/cpuinfo: field -> label
    "vendor_id": "", "cpu family": "family", "model": "model", "CPU implementer": "implementer", "CPU part": "part",
}  # fmt: skip


def _cpuinfo():
    """Return field -> text of the first processor in /proc/cpuinfo; nothing where the system has no such file."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {name.strip(): text.strip() for name, _, text in (line.partition(":") for line in lines)}


def processor() -> str:
    """Return the processor's name; its architecture where the system does not say."""
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


def model() -> str:
    """Return the processor's vendor, family and model, as "AuthenticAMD, family 25, model 1"; where the system does not
    say, Python's name of it."""
    fields = _cpuinfo()
    parts = [f"{label} {fields[name]}".strip() for name, label in MODEL.items() if name in fields]
    return ", ".join(parts) or platform.processor()


def instructions() -> list[str]:
    """List those of FORMATS_OF that the processor has; none where the system does not say. By them a library chooses
    the format in which it computes another one."""
    fields = _cpuinfo()
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    return [name for name in FORMATS_OF if name in flags]


def date() -> str:
    """Return today's date, YYYY-MM-DD, in UTC; or that of SOURCE_DATE_EPOCH, for pages that are built again."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    return time.strftime("%Y-%m-%d", time.gmtime(int(epoch) if epoch.isdigit() else None))


def package(module: str) -> str:
    """Return the installed package that has a module, with its version, as "numpy 2.2.1"; "" where none has. Nothing is
    imported."""
    top = module.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    origin = spec and (spec.origin or next(iter(spec.submodule_search_locations or ()), None))
    if not origin:
        return ""
    for name in importlib.metadata.packages_distributions().get(top, ()):
        found = importlib.metadata.distribution(name)
        if Path(origin).resolve().is_relative_to(Path(str(found.locate_file(""))).resolve()):
            return f"{name} {found.version}"
    return ""


_version = cache(version)  # each call reads files; an absent distribution may be installed later, so it is not cached


def installed(distribution: str) -> str | None:
    """Return the installed version of a distribution, or None."""
    try:
        return _version(distribution)
    except PackageNotFoundError:
        return None
