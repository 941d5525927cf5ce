"""A Jupyter kernel that runs one notebook after the other: what the first has imported and compiled, the next finds
ready."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import nbformat
import psutil
from jupyter_client.manager import KernelManager

from fa_lib.execution import process_settings
from fa_lib.execution.same_code import refuse_another_fa_lib

SLOW_S = 600  # seconds that a kernel may take to start, and outputs to arrive: a loaded machine is no error
QUIET = [
    "--IPKernelApp.log_level=CRITICAL",  # the kernel program's own lines are no business of a reader
    "--HistoryManager.hist_file=:memory:",  # nor are a notebook's cells any of the reader's history
]
FORGET_S = 60
FORGET = (  # the reset deletes __spec__ too, without which multiprocessing starts no process
    "import matplotlib.pyplot; matplotlib.pyplot.close('all'); get_ipython().run_line_magic('reset', '-f'); "
    "__import__('sys').modules['__main__'].__spec__ = None"
)


class NotebookKernel:
    """Started for its first notebook. Before each later one, the names of the one before are deleted and its figures
    closed; what was imported stays.

    Args:
        cores: torch's threads in it.
    """

    def __init__(self, cores: int):
        self.cores = cores
        self.manager: KernelManager | None = None
        self.pid: int | None = None
        self.of = ("", Path())  # the kernel's name, and the folder in which it runs

    def ready(self, notebook: Path) -> KernelManager:
        """The manager of a kernel in which no name is bound, as nbclient takes it.

        Args:
            notebook: its path. It runs in its folder.

        Raises:
            RuntimeError: the kernel that it names imports another fa_lib.
        """
        name = nbformat.read(notebook, as_version=4).metadata.get("kernelspec", {}).get("name", "python3")
        if self.manager is not None and self.of == (name, notebook.parent) and self._forget():
            return self.manager
        self.end()
        refuse_another_fa_lib(notebook.parent, name)
        environment = {"OMP_NUM_THREADS": f"{self.cores}"} | process_settings.environment()
        self.manager, self.of = KernelManager(kernel_name=name), (name, notebook.parent)
        self.manager.client_class = "jupyter_client.asynchronous.AsyncKernelClient"  # the one that nbclient awaits
        self.manager.start_kernel(cwd=str(notebook.parent), env=environment, extra_arguments=QUIET)
        provisioner: Any = self.manager.provisioner  # of a process of this machine: it has a pid
        self.pid = provisioner.pid
        return self.manager

    def _forget(self):
        """Whether the kernel lives, and has forgotten the notebook before."""
        assert self.manager is not None
        if not self.manager.is_alive():
            return False
        client = self.manager.blocking_client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=FORGET_S)
            options = dict(timeout=FORGET_S, store_history=False, output_hook=lambda _: None)
            return client.execute_interactive(FORGET, **options)["content"]["status"] == "ok"
        except (RuntimeError, TimeoutError):  # it died, or is at work still
            return False
        finally:
            client.stop_channels()

    def cpu_seconds(self) -> float:
        """Of its process, and of all that it started; 0 where there is none."""
        total = 0.0
        with suppress(psutil.Error):  # it has ended
            process = psutil.Process(self.pid) if self.pid else None
            for each in [process, *process.children(recursive=True)] if process else ():
                with suppress(psutil.Error):
                    total += sum(each.cpu_times()[:4])
        return total

    def end(self) -> None:
        """Kill its process. The next notebook has a new one."""
        if self.manager is not None:
            with suppress(RuntimeError):  # it had not begun, or another thread ends it
                self.manager.shutdown_kernel(now=True)
            self.manager = self.pid = None


@contextmanager
def notebook_kernel(cores: int) -> Iterator[NotebookKernel]:
    """A kernel that ends with the context."""
    kernel = NotebookKernel(cores)
    try:
        yield kernel
    finally:
        kernel.end()
