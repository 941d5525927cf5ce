"""Calls in processes that are forked from one which has imported what they need."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fa_lib.commands import judge_gallery
from fa_lib.execution.forks import Forks

READY = []


def prepare():
    READY.append(os.getpid())


def says_who_it_is():
    print(os.getpid(), *READY, sys.stdin.read() == "")


def ends(how):
    print("so far")
    sys.stdout.flush()
    how()


def list_threads():
    judge_gallery.prepare()
    READY[:] = sorted(
        Path(f"/proc/self/task/{task}/comm").read_text().strip() for task in os.listdir("/proc/self/task")
    )


@pytest.fixture
def forks():
    with Forks(prepare, os.environ | dict(PYTHONPATH=os.pathsep.join(sys.path))) as each:
        yield each


def test_each_call_has_a_process_of_its_own_and_the_same_preparation(forks):
    said = [forks.call(says_who_it_is, limit_s=60) for _ in range(2)]
    assert [code for code, _ in said] == [0, 0]
    (one, before, empty), (other, again, _) = (text.split() for _, text in said)
    assert one != other and before == again != one and empty == "True"
    assert int(before) == forks.server.pid and forks.server.poll() is None


def test_how_a_call_ends_is_told_and_the_next_one_runs(forks):
    assert forks.call(ends, os.abort, limit_s=60) == (-signal.SIGABRT, "so far\n")
    code, text = forks.call(ends, KeyError, limit_s=60)
    assert (code, text) == (0, "so far\n")
    code, text = forks.call(int, "none", limit_s=60)
    assert code == 1 and text.endswith("invalid literal for int() with base 10: 'none'\n")
    assert [forks.call(sys.exit, status, limit_s=60)[0] for status in (3, None, "because")] == [3, 0, 1]
    assert forks.call(signal.raise_signal, signal.SIGINT, limit_s=60)[0] == -signal.SIGINT
    with pytest.raises(TimeoutError):
        forks.call(time.sleep, 60, limit_s=0.2)
    assert forks.call(says_who_it_is, limit_s=60)[0] == 0


def leaves_children(path, then):
    Path(path).write_text(str(subprocess.Popen(["sleep", "1000"]).pid))
    then()


def wait(done, seconds=60):
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until
        time.sleep(0.05)


def ended(pid):
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


@pytest.mark.parametrize("ends", ["in time", "too late", "interrupted"])
def test_what_a_call_has_started_ends_with_it(forks, tmp_path, ends):
    """The compiler that a kernel runs, say."""
    path = tmp_path / "child"
    if ends == "in time":
        assert forks.call(leaves_children, path, print, limit_s=60)[0] == 0
    elif ends == "too late":
        with pytest.raises(TimeoutError):
            forks.call(leaves_children, path, signal.pause, limit_s=2)
    else:
        threading.Thread(target=lambda: (wait(path.exists), forks.interrupt())).start()
        assert forks.call(leaves_children, path, signal.pause, limit_s=60)[0] == -signal.SIGINT
    wait(lambda: ended(int(path.read_text())))
    if ends == "interrupted":  # and so is a call that has not begun
        assert forks.call(signal.pause, limit_s=60)[0] == -signal.SIGINT


def test_a_process_that_has_ended_is_told(forks):
    forks.call(says_who_it_is, limit_s=60)
    forks.server.kill()
    with pytest.raises((RuntimeError, BrokenPipeError)):
        forks.call(says_who_it_is, limit_s=60)


def test_what_the_gallery_prepares_leaves_no_thread_behind():
    """A fork copies the thread that forks and none beside it: a lock that another held would never be free again."""
    environment = os.environ | dict(PYTHONPATH=os.pathsep.join(sys.path), OMP_NUM_THREADS="1")
    with Forks(list_threads, environment) as forks:
        code, text = forks.call(says_who_it_is, limit_s=120)
    assert code == 0 and len(set(text.split()[1:-1]) - {"jemalloc_bg_thd"}) == 1, text  # jemalloc's knows of forks
