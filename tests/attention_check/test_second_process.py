"""The process that computes golden values beside a judgement: the same bits, and nothing is left of it."""

import operator
import os
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest

from attention_check.isolation.calls import judged_by_one_thread
from attention_check.measure import examine, second_process
from attention_check.measure.plan import QUICK
from attention_check.measure.second_process import compute_ahead, result

TINY = replace(QUICK, lengths=(97,), shapes=("97",), troubled_n=64, bias_seeds=1, relations=(), drawn=())


@pytest.fixture
def second(monkeypatch):
    """The second process, on any machine."""
    monkeypatch.setattr(second_process, "_cores", lambda: 2)
    with second_process.second_process():
        yield second_process._SECOND.get()


def test_what_it_has_computed_is_taken_and_it_ends(second):
    compute_ahead([(os.getpid,)])
    second.reader.join(60)
    assert result(os.getpid) == second.process.pid != os.getpid()
    assert result(abs, -1) == 1, "no task of its own"


def test_what_it_has_not_computed_is_computed_here(second):
    compute_ahead([(os.getpid,), (time.sleep, 60)])  # it begins with the last
    assert result(os.getpid) == os.getpid()
    second.process.kill()
    second.reader.join(60)
    assert result(os.getpid) == os.getpid()


def test_an_error_there_is_an_error_here_where_the_result_is_wanted(second):
    compute_ahead([(os.getpid,), (operator.truediv, 1, 0)])
    second.reader.join(60)
    assert result(os.getpid) == os.getpid()
    with pytest.raises(ZeroDivisionError):
        result(operator.truediv, 1, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what is open")
@pytest.mark.parametrize("cores", [1, 2])
def test_nothing_is_left_of_it(cores, monkeypatch):
    monkeypatch.setattr(second_process, "_cores", lambda: cores)
    own = psutil.Process()
    before, open_before = {*own.children()}, {*os.listdir("/proc/self/fd")}
    with pytest.raises(KeyboardInterrupt), second_process.second_process():
        compute_ahead([(time.sleep, 60)])
        assert len({*own.children()} - before) == cores - 1
        raise KeyboardInterrupt
    assert {*own.children()} == before and {*os.listdir("/proc/self/fd")} == open_before
    compute_ahead([(os.getpid,)])
    assert result(os.getpid) == os.getpid()


@pytest.mark.skipif(second_process._cores() < 2, reason="there is no second process on one core")
def test_it_ends_when_the_command_is_killed(tmp_path):
    words = [sys.executable, "-m", "fa_lib", "check", "kernel", "flash", "--out", tmp_path]
    with psutil.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as command:
        while not (children := command.children()):
            assert command.poll() is None
            time.sleep(0.05)
        time.sleep(1)  # it imports, or computes
        command.kill()
    gone, left = psutil.wait_procs(children, 60)
    assert gone and not left


def test_tables_have_the_same_bits_with_and_without_it(second, monkeypatch):
    tasks, asked, took = [], set(), second.result

    def all_of_it(given):
        compute_ahead(given)
        tasks.extend(given)
        second.reader.join(120)

    def taken(*task):
        asked.add(task)
        return took(*task)

    monkeypatch.setattr(second, "result", taken)
    monkeypatch.setattr(examine, "compute_ahead", all_of_it)
    with judged_by_one_thread():
        ahead = examine.examine("flash", TINY)
    assert asked == {*tasks} and len(asked) == len(tasks) == len(second.results), (
        "each is asked for, and was done there"
    )
    monkeypatch.setattr(examine, "compute_ahead", lambda tasks: None)
    monkeypatch.setattr(second, "numbers", {})
    with judged_by_one_thread():
        here = examine.examine("flash", TINY)
    for (name, table), (_, other) in zip(ahead.items(), here.items()):
        assert table.equals(other), name
