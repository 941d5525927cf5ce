"""A Jupyter kernel that runs one notebook after the other: what the first has imported and compiled, the next finds
ready."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import psutil
from jupyter_client.manager import KernelManager

from fa_lib.execution import process_settings
from fa_lib.execution.same_code import refuse_another_fa_lib

SLOW_S = 600  # seconds that a kernel may take to start, and outputs to arrive: a loaded machine is no error
QUIET = ["--IPKernelApp.log_level=CRITICAL"]  # the kernel program's own lines are no business of a reader
FORGET = "import matplotlib.pyplot; matplotlib.pyplot.close('all'); get_ipython().run_line_magic('reset', '-f')"


class NotebookKernel:
    """Started for its first notebook. Before each later one, the names of the one before are deleted and its figures
    closed; what was imported stays.

    Args:
        cores: of this machine, as many threads as torch has in it.
    """

    def __init__(self, cores: int):
        self.cores = cores
        self.manager: KernelManager | None = None
        self.pid: int | None = None

    def ready(self, notebook: Path) -> KernelManager:
        """The manager of a kernel in which no name is bound, as nbclient takes it.

        Args:
            notebook: its path. It runs in its folder.

        Raises:
            RuntimeError: the kernel that it names imports another fa_lib.
        """
        name = nbformat.read(notebook, as_version=4).metadata.get("kernelspec", {}).get("name", "python3")
        if self.manager is not None and self.manager.kernel_name == name:
            self._forget()
            return self.manager
        self.end()
        refuse_another_fa_lib(notebook.parent, name)
        environment = {"OMP_NUM_THREADS": f"{self.cores}"} | process_settings.environment()
        manager = KernelManager(kernel_name=name)
        manager.client_class = "jupyter_client.asynchronous.AsyncKernelClient"  # the one that nbclient awaits
        manager.start_kernel(cwd=str(notebook.parent), env=environment, extra_arguments=QUIET)
        provisioner: Any = manager.provisioner  # of a process of this machine: it has a pid
        self.manager, self.pid = manager, provisioner.pid
        return manager

    def _forget(self):
        assert self.manager is not None
        client = self.manager.blocking_client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=SLOW_S)
            client.execute_interactive(FORGET, timeout=SLOW_S, store_history=False, output_hook=lambda _: None)
        finally:
            client.stop_channels()

    def cpu_seconds(self) -> float:
        """Of its process, and of all that it started; 0 where there is none."""
        if self.manager is None:
            return 0
        process = psutil.Process(self.pid)
        return sum(sum(each.cpu_times()[:4]) for each in [process, *process.children(recursive=True)])

    def end(self) -> None:
        """Kill its process. The next notebook has a new one."""
        manager, self.manager = self.manager, None
        if manager is not None:
            manager.shutdown_kernel(now=True)


@contextmanager
def notebook_kernel(cores: int) -> Iterator[NotebookKernel]:
    """A kernel that ends with the context."""
    kernel = NotebookKernel(cores)
    try:
        yield kernel
    finally:
        kernel.end()
