"""A kernel's identity: its function, the GPU in whose arithmetic it runs, its layout and its conventions."""

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points

from fa_lib.execution.reader_modules import module_name

GPU, GALLERY = "gpu:", "gallery:"  # what the text of a kernel may begin with
PACKAGE_OF_GALLERY = "attention_gallery"
ADAPTERS = "attention_check.adapters"  # of the instrument; imported for the kernels that are adapted


@dataclass(frozen=True)
class KernelRef:
    """Which kernel is meant. The command line makes one from a text by `of`; it is passed on as it is.

    Attributes:
        module: the function's, "" for a kernel that is built in or registered. function: its name.
        gpu: "H100", for example: it launches GPU kernels, which run on the CPU in this GPU's arithmetic. "": none.
        layout: of its tensors, a key of LAYOUTS. conventions: keys of READINGS or LAYOUTS, in the order of adapting.
        fn: the function, where it is at hand already (one that runs in another process, for example); it is not
            imported then, and is no part of the identity.
    """

    module: str
    function: str
    gpu: str = ""
    layout: str = "bhsd"
    conventions: tuple[str, ...] = ()
    fn: Callable | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, name: "str | KernelRef", gpu: str = "", layout: str = "bhsd") -> "KernelRef":
        """Read a kernel's text.

        Args:
            name: a KernelRef, which is returned as it is; or a text: a built-in or registered kernel's name,
                package.module:function, path/to/file.py:function or gallery:KEY. Before it may stand gpu:H100:, and
                after it @bshd or other conventions.
            gpu, layout: as of the class, where the text does not say so.

        Raises:
            ValueError: there is no such file, layout or convention.
        """
        if isinstance(name, KernelRef):
            return name
        if name.startswith(GPU):
            gpu, _, name = name.removeprefix(GPU).partition(":")
        before, colon, function = name.rpartition(":")
        function, *readings = function.split("@")
        where = f"{before}{colon}{function}"
        if where.startswith(GALLERY):
            where = f"{PACKAGE_OF_GALLERY}:{function}"
        module, _, function = module_name(where).rpartition(":")
        return cls(module, function, gpu).read_as(*([] if layout == "bhsd" else [layout]), *readings)

    def __str__(self) -> str:
        return self.key

    @property
    def key(self) -> str:
        """The kernel as a text that `of` reads: "gpu:H100:package.module:function@bshd"."""
        return "@".join((f"{GPU}{self.gpu}:{self._named}" if self.gpu else self._named, *self.readings))

    @property
    def label(self) -> str:
        """The kernel as readers know it: "gallery:fa2_cuda on A100", "my_file:attention@bshd on H100", "flash"."""
        gallery = self.module.partition(".")[0] == PACKAGE_OF_GALLERY
        name = "@".join((f"{GALLERY}{self.function}" if gallery else self._named, *self.readings))
        return f"{name} on {self.gpu}" if self.gpu else name

    @property
    def _named(self):
        return f"{self.module}:{self.function}" if self.module else self.function

    @property
    def is_named(self) -> bool:
        """Whether it has a name alone, of a kernel that is built in or registered, and so runs in this process."""
        return not self.module and not self.gpu

    @property
    def readings(self) -> tuple[str, ...]:
        """All that it is adapted to, the layout first."""
        return self.conventions if self.layout == "bhsd" else (self.layout, *self.conventions)

    @property
    def bare(self) -> "KernelRef":
        """The kernel as it is, adapted to nothing."""
        return replace(self, layout="bhsd", conventions=())

    def read_as(self, *readings: str) -> "KernelRef":
        """Return the kernel adapted to further layouts and conventions. A ValueError says that there is no such one."""
        if not readings:
            return self
        adapters = importlib.import_module(ADAPTERS)
        layouts = [reading for reading in readings if adapters.is_layout(reading)]
        if readings[0] in layouts and not self.readings:
            return replace(self, layout=readings[0], conventions=readings[1:])
        return replace(self, conventions=(*self.conventions, *readings))

    def adapted(self, fn: Callable) -> Callable:
        """Return its function `fn` adapted to f(q, k, v, ...) on (batch, heads, sequence, head_dim)."""
        for reading in self.readings:
            fn = importlib.import_module(ADAPTERS).read_as(fn, reading)
        return fn

    def imported(self) -> Callable:
        """Import its function, as it is in its module, or find it on a GPU.

        Raises:
            ValueError: it cannot be imported, or is no function.
        """
        if self.gpu:
            return simulated(replace(self, gpu="").bare, self.gpu)
        try:
            kernel = getattr(importlib.import_module(self.module), self.function)
        except (Exception, SystemExit) as error:  # a module may end the process that imports it
            raise unavailable(self, repr(error)) from error
        if not callable(kernel):
            raise uncallable(self, type(kernel).__name__)
        return kernel


def in_table(kernel: KernelRef | str | Callable) -> str | Callable:
    """Return what a table holds of a kernel: a KernelRef's key, and anything else as it is."""
    return kernel.key if isinstance(kernel, KernelRef) else kernel


def label_of(key: str) -> str:
    """Return the label of a kernel by its key, which tables hold."""
    return KernelRef.of(key).label


def simulated(kernel: KernelRef | Callable, gpu: str) -> Callable:
    """Return a kernel that launches GPU kernels, run on the CPU in a GPU's arithmetic, by the instrument that does so.

    Raises:
        ImportError: no such instrument is installed; ValueError: there is no such kernel or GPU.
    """
    machines = entry_points(group="fa_lib.gpu_kernels")
    if not machines:
        raise ImportError(f"gpu: got {gpu!r}; accepted is '' where attention_check is not installed")
    return next(iter(machines)).load()(kernel, gpu)


def unavailable(kernel: KernelRef, error: str) -> ValueError:
    """Make the error of a kernel that cannot be imported; error: the repr of what its import raised."""
    where = "; modules are looked for in the current folder and on PYTHONPATH" * error.startswith("ModuleNotFound")
    if said := re.fullmatch(r"(\w+)\((['\"])(.*)\2\)", error):
        text = said[3].replace("\\n", "\n").replace("\\'", "'")  # its other control characters stay escaped
        if said[1] == "ValueError" and text.startswith("kernel: got"):
            return ValueError(text)
        error = f"{said[1]}: {text}"
    return ValueError(f"kernel: got {kernel.label!r}; it cannot be had: {error}{where}")


def uncallable(kernel: KernelRef, type_name: str) -> ValueError:
    """Make the error of a kernel's name that names something else, of a type with this name."""
    return ValueError(f"kernel: got {kernel.label!r}, a {type_name}; accepted is a function f(q, k, v, ...)")
