"""A notebook's kernel as a fork of this process: what is imported and compiled here, the notebook finds ready."""

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext

from ipykernel.kernelapp import IPKernelApp
from jupyter_client import AsyncKernelManager, KernelManager


@contextmanager
def forked_kernel() -> Iterator[type[AsyncKernelManager]]:
    """A manager of one kernel, as nbclient takes it. The kernel's process is forked here, before nbclient starts its
    threads, and waits; on leaving it has ended, whether or not it became a kernel. Linux only."""
    process = Waiting(multiprocessing.get_context("fork"))

    class Manager(AsyncKernelManager):
        async def _async_launch_kernel(self, kernel_cmd, **kw):  # the place that jupyter_client names for another start
            process.serve(self, kernel_cmd, **kw)

    try:
        yield Manager
    finally:
        process.end()


class Waiting:
    """A process that becomes a kernel when it is told to. jupyter_client takes it for a `subprocess.Popen`.

    Args:
        context: of multiprocessing, which starts it.
    """

    stdin = stdout = stderr = None

    def __init__(self, context: BaseContext):
        theirs, self.told = context.Pipe(duplex=False)
        self.process = context.Process(target=_wait, args=(theirs, self.told))
        self.process.start()
        theirs.close()
        self.pid = self.process.pid

    def serve(self, manager: KernelManager, kernel_cmd: list[str], *, env: dict[str, str], cwd: str | None = None, **_):
        """Become the kernel of a manager, which would start the command `kernel_cmd` with these options."""
        arguments = kernel_cmd[kernel_cmd.index("-f") :]
        self.told.send((arguments, cwd or os.getcwd(), env))
        manager.provisioner.process = self
        manager.provisioner.pid = manager.provisioner.pgid = self.pid
        manager._reconcile_connection_info(manager.provisioner.connection_info)

    def end(self) -> None:
        self.told.close()
        self.process.join()

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self) -> int | None:
        self.process.join()
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()


def _wait(told: Connection, teller: Connection) -> None:
    """In the forked process."""
    teller.close()  # the other end, inherited: while it is open here, the parent's end is not noticed
    try:
        arguments, folder, environment = told.recv()
    except EOFError:
        return
    os.setsid()  # signals to its group reach what it starts, and not its parent
    os.chdir(folder)
    os.environ.update(environment)
    # ipykernel read the environment's word on its parent, with whom it ends, when it was imported
    IPKernelApp.launch_instance(argv=[*arguments, f"--IPKernelApp.parent_handle={os.getppid()}"])
