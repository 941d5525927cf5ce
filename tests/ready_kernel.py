"""nbval's kernels as forks of a process that has imported and compiled what notebooks use: a kernel that imports it
itself takes five seconds to do so. Linux only."""

import os
import re
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from unittest.mock import patch

from jupyter_client import KernelManager

from fa_lib.execution import parallel_notebooks, process_settings
from fa_lib.execution.forked_kernel import Waiting
from fa_lib.execution.paths import NOTEBOOKS


class _Server(forkserver.ForkServer):
    """One more: that of multiprocessing is for `pools` and `parallel_notebooks`, which stop it."""

    def __init__(self):
        super().__init__()
        code = "\n".join(map(parallel_notebooks.code_of, NOTEBOOKS.glob("[0-9]*.ipynb")))
        imported = sorted({*re.findall(parallel_notebooks.IMPORT, code, re.MULTILINE)})
        self.set_forkserver_preload(["fa_lib.execution.warm", *imported])

    def connect_to_new_process(self, fds):
        own = process_settings.environment() | dict(MPLBACKEND=parallel_notebooks.INLINE)
        with patch.dict(os.environ, own):  # it may begin here
            return super().connect_to_new_process(fds)


_server = cache(_Server)  # it reads all notebooks: where none is tested, there is none


class _Process(ForkServerProcess):
    @staticmethod
    def _Popen(process):
        with patch.object(forkserver, "connect_to_new_process", _server().connect_to_new_process):
            return ForkServerProcess._Popen(process)


class _Context(ForkServerContext):
    Process = _Process


class ReadyKernel(KernelManager):
    """Takes the place of jupyter_client's in nbval."""

    async def _async_launch_kernel(self, kernel_cmd, **options):
        Waiting(_Context()).serve(self, kernel_cmd, **options)
