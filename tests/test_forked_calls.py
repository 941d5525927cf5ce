"""Calls in processes that are forked from one which has imported what they need."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fa_lib.execution.forked_calls import call_each

TIME_S = 60


def here(**more):
    return dict(PYTHONPATH=os.pathsep.join(sys.path)) | more


def calls(fn, *arguments, jobs=1, timeout=TIME_S, **environment):
    return {each.argument: each for each in call_each(fn, arguments, jobs, timeout, here(**environment))}


def say_who_it_is(name):
    print(name, os.getpid(), os.getppid(), os.environ["COLOUR"], sys.stdin.read() == "")


def test_each_call_has_a_process_of_its_own_and_the_environment():
    ended = calls(say_who_it_is, "a", "b", COLOUR="blue")
    assert [each.code for each in ended.values()] == [0, 0] and "COLOUR" not in os.environ
    a, b = (each.printed.split() for each in ended.values())
    assert a[0] == "a" and a[1] != b[1] and a[2] == b[2] != f"{os.getpid()}"
    assert a[3:] == b[3:] == ["blue", "True"]


ENDS = dict(aborts=os.abort, returns=dict, exits=lambda: sys.exit(3), sleeps=lambda: time.sleep(TIME_S),
            is_interrupted=lambda: signal.raise_signal(signal.SIGINT), fails=lambda: int("none"))  # fmt: skip


def end(how):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore it
    print("so far", flush=True)
    ENDS[how]()


def test_a_later_call_has_its_own_environment():
    calls(say_who_it_is, "a", COLOUR="blue")
    assert calls(say_who_it_is, "a", COLOUR="red")["a"].printed.split()[3] == "red"


def test_how_a_call_ends_is_told_and_stops_no_other():
    ended = calls(end, *ENDS, jobs=2, timeout=5)
    codes = {how: each.code for how, each in ended.items()}
    assert codes == dict(aborts=-signal.SIGABRT, returns=0, exits=3, sleeps=None, is_interrupted=1, fails=1)
    assert all(each.printed.startswith("so far\n") for each in ended.values())
    assert "invalid literal for int() with base 10: 'none'\n" in ended["fails"].printed


def leave_a_child(argument):
    path, then = argument
    Path(path).write_text(str(subprocess.Popen(["sleep", "1000"]).pid))
    if then == "hang":
        signal.pause()


@pytest.mark.parametrize("then", ["end", "hang"])
def test_what_a_call_has_started_ends_with_it(tmp_path, then):
    """The compiler that a kernel runs, say."""
    path = str(tmp_path / "child")
    [ended] = call_each(leave_a_child, [(path, then)], 1, 3, here())
    assert ended.code == (0 if then == "end" else None) and has_ended(path)


def test_an_error_of_the_caller_ends_all_calls(tmp_path):
    path = str(tmp_path / "child")
    running = call_each(leave_a_child, [(path, "hang"), (str(tmp_path / "other"), "end")], 2, TIME_S, here())
    assert next(running).code == 0  # the other: this one hangs
    while not Path(path).exists():
        time.sleep(0.05)
    running.close()
    assert has_ended(path)


def has_ended(path, seconds=20):
    status, until = Path(f"/proc/{Path(path).read_text()}/status"), time.monotonic() + seconds
    while status.exists() and "\nState:\tZ" not in status.read_text():
        assert time.monotonic() < until
        time.sleep(0.05)
    return True


def test_what_the_gallery_imports_leaves_no_thread_behind():
    """A fork copies the thread that forks and none beside it: a lock that another held would never be free again."""
    code = "import os, attention_gallery.commands.judge_gallery; print(*(open(f'/proc/self/task/{t}/comm').read() for t in os.listdir('/proc/self/task')))"  # noqa: E501
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=os.environ | here(OMP_NUM_THREADS="1"), capture_output=True, text=True, check=True)
    threads = [name for name in done.stdout.split() if name != "jemalloc_bg_thd"]  # jemalloc's knows of forks
    assert len(threads) == 1, threads
