"""The process that computes golden values during a judgement: the same bits, and nothing is left of it."""

import operator
import os
import subprocess
import sys
import time
from concurrent.futures import Future, wait
from dataclasses import replace
from multiprocessing import resource_tracker

import psutil
import pytest
import torch

from attention_check.isolation.calls import judged_by_one_thread
from attention_check.measure import reference_worker as module
from attention_check.measure.examine import examine
from attention_check.measure.plan import QUICK
from attention_check.measure.reference_worker import compute, prefetch, reference_worker
from fa_lib.kernels.rule import Case, exact

TINY = replace(QUICK, lengths=(97,), shapes=("97",), troubled_n=64, bias_seeds=1, relations=(), drawn=())


@pytest.fixture
def worker(monkeypatch):
    """The worker, on any machine."""
    monkeypatch.setattr(module, "_cores", lambda: 2)
    with reference_worker() as own:
        yield own


def test_what_it_has_computed_is_taken_and_it_ends(worker):
    prefetch([(os.getpid,)])
    wait(worker.futures.values(), 120)
    (process,) = worker.processes
    assert compute(os.getpid) == process.pid != os.getpid()
    assert compute(abs, -1) == 1, "no task of its own"


def test_it_computes_gradients_with_the_same_bits(worker):
    case = Case("97", 64, "normal", "BF16", 0, True)
    prefetch([(max, 1, 2), (exact, case)])
    wait(worker.futures.values(), 120)
    with judged_by_one_thread():
        here, there = exact(case), compute(exact, case)
    assert here.keys() == there.keys() and all(torch.equal(here[name], there[name]) for name in here), there


def test_what_it_has_not_computed_is_computed_here(worker):
    prefetch([(abs, -1)])
    wait(worker.futures.values(), 120)
    prefetch([(os.getpid,), (abs, -2), (abs, -3), (time.sleep, 60)])  # it begins with the last
    assert compute(os.getpid) == os.getpid()
    for process in worker.processes:
        process.kill()
    assert compute(abs, -3) == 3 and compute(time.sleep, 0) is None


def test_an_error_there_is_an_error_here_where_the_result_is_wanted(worker):
    prefetch([(os.getpid,), (operator.truediv, 1, 0)])
    wait(worker.futures.values(), 120)
    assert compute(os.getpid) != os.getpid()
    with pytest.raises(ZeroDivisionError):
        compute(operator.truediv, 1, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what is open")
@pytest.mark.parametrize("cores", [1, 2])
def test_nothing_is_left_of_it(cores, monkeypatch):
    monkeypatch.setattr(module, "_cores", lambda: cores)
    resource_tracker.ensure_running()  # multiprocessing's own, which stays
    own = psutil.Process()
    before, open_before = {*own.children()}, {*os.listdir("/proc/self/fd")}
    with pytest.raises(KeyboardInterrupt), reference_worker():
        prefetch([(time.sleep, 60)])
        assert len({*own.children()} - before) == cores - 1
        raise KeyboardInterrupt
    assert {*own.children()} == before and {*os.listdir("/proc/self/fd")} == open_before
    assert compute(os.getpid) == os.getpid()


@pytest.mark.skipif(module._cores() < 2, reason="there is no worker on one core")
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


def test_tables_have_the_same_bits_with_and_without_it(worker, monkeypatch):
    submit, taken = worker.pool.submit, []

    def at_once(*task):
        future = submit(*task)
        wait([future], 240)
        return future

    monkeypatch.setattr(worker.pool, "submit", at_once)
    monkeypatch.setattr(module.pickle, "loads", lambda x, loads=module.pickle.loads: taken.append(x) or loads(x))
    with judged_by_one_thread():
        ahead = examine("flash", TINY)
    assert len(taken) >= len(worker.futures) > 1, "each is asked for, and was done there"
    worker.futures.clear()
    monkeypatch.setattr(worker.pool, "submit", lambda *task: Future())  # one that never begins
    with judged_by_one_thread():
        here = examine("flash", TINY)
    for (name, table), (_, other) in zip(ahead.items(), here.items()):
        assert table.equals(other), name
