"""A process that ends with the one that started it, `make` or another of ours."""

import os
import signal
import threading
import time

SECONDS = 0.5


NAME = "FA_LIB_PARENT"


def end_with_parent() -> None:
    """Where the environment says who the parent is (FA_LIB_PARENT, its process id), this process is interrupted, as by
    `kill`, when that has ended, by SIGKILL too. Started otherwise, it may outlive its parent."""
    parent = os.environ.pop(NAME, "")
    if not parent.isdigit():
        return

    def follow():
        while os.getppid() == int(parent):
            time.sleep(SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()
