"""A notebook's kernel as a fork of this process: what is imported and compiled here, the notebook finds ready."""

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from ipykernel.kernelapp import IPKernelApp
from jupyter_client import AsyncKernelManager


@contextmanager
def forked_kernel() -> Iterator[type[AsyncKernelManager]]:
    """A manager of one kernel, as nbclient takes it. The kernel's process is forked here, before nbclient starts its
    threads, and waits; on leaving it has ended, whether or not it became a kernel. Linux only."""
    process = _Waiting()

    class Manager(AsyncKernelManager):
        async def _async_launch_kernel(self, kernel_cmd, **kw):  # the place that jupyter_client names for another start
            process.become(kernel_cmd[kernel_cmd.index("-f") :], kw.get("cwd") or os.getcwd(), kw["env"])
            self.provisioner.process = process
            self.provisioner.pid = self.provisioner.pgid = process.pid
            self._reconcile_connection_info(self.provisioner.connection_info)

    try:
        yield Manager
    finally:
        process.end()


class _Waiting:
    """A process that becomes a kernel when it is told to. jupyter_client takes it for a `subprocess.Popen`."""

    stdin = stdout = stderr = None

    def __init__(self):
        context = multiprocessing.get_context("fork")
        theirs, self.told = context.Pipe(duplex=False)
        self.process = context.Process(target=_wait, args=(theirs, self.told))
        self.process.start()
        theirs.close()
        self.pid = self.process.pid

    def become(self, arguments: list[str], folder: str, environment: dict[str, str]) -> None:
        # ipykernel read the environment's word on its parent, with whom it ends, when it was imported
        self.told.send(([*arguments, f"--IPKernelApp.parent_handle={os.getpid()}"], folder, environment))

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
    IPKernelApp.launch_instance(argv=arguments)
