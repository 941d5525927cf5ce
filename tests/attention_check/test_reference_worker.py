"""The process that computes golden values during a judgement: the same bits, and nothing is left of it."""

import operator
import os
import subprocess
import sys
import time
from concurrent.futures import wait
from dataclasses import replace
from multiprocessing import resource_tracker

import psutil
import pytest

from attention_check.isolation.calls import judged_by_one_thread
from attention_check.measure import reference_store
from attention_check.measure.examine import examine
from attention_check.measure.plan import QUICK
from attention_check.measure.reference_store import ReferenceStore, reference_worker, references

TINY = replace(QUICK, lengths=(97,), shapes=("97",), troubled_n=64, bias_seeds=1, relations=(), drawn=())


@pytest.fixture
def worker(monkeypatch):
    """The worker, on any machine."""
    monkeypatch.setattr(reference_store, "_cores", lambda: 2)
    with reference_worker():
        yield references().worker


def test_what_it_has_computed_is_taken_and_it_ends(worker):
    references().prefetch([(os.getpid,)])
    wait(worker.futures.values(), 120)
    (process,) = worker.processes
    assert references().compute(os.getpid) == process.pid != os.getpid()
    assert references().compute(abs, -1) == 1, "no task of its own"


@pytest.mark.skipif(sys.platform != "linux" or reference_store._cores() < 2, reason="one is forked on Linux's cores")
def test_a_forked_one_has_what_is_imported_computes_gradients_and_gives_the_same_bits():
    code = """
import torch
from attention_check.isolation.calls import judged_by_one_thread
from attention_check.measure.reference_store import reference_worker, references
from fa_lib.kernels.rule import Case, exact
from concurrent.futures import wait
case = Case("97", 64, "normal", "BF16", 0, True)
with reference_worker(forked=True):
    worker = references().worker
    references().prefetch([(max, 1, 2), (exact, case)])
    wait(worker.futures.values(), 60)
    begun = references().begin(exact, case)
    with judged_by_one_thread():
        here = exact(case)
    for there in (references().compute(exact, case), begun()):
        assert here.keys() == there.keys() and all(torch.equal(here[name], there[name]) for name in here), there
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_what_is_no_longer_needed_is_dropped_and_the_rest_is_kept(worker):
    references().prefetch([(abs, -1), (abs, -2), (abs, -3)])
    kept = worker.futures[abs, -2]
    references().prefetch([(abs, -2), (abs, -4)])
    assert worker.futures[abs, -2] is kept and (abs, -4) in worker.futures
    assert [references().compute(abs, -i) for i in (1, 2, 3, 4)] == [1, 2, 3, 4]


def test_what_is_begun_is_computed_there_or_here(worker):
    wait([worker.ready], 120)
    begun = references().begin(os.getpid)
    time.sleep(1)
    (process,) = worker.processes
    assert begun() == process.pid
    process.kill()
    process.join()
    assert references().begin(os.getpid)() == os.getpid()
    references().prefetch([(abs, -1)])
    assert references().compute(abs, -1) == 1
    assert ReferenceStore().begin(os.getpid)() == os.getpid()


def test_what_it_has_not_computed_is_computed_here(worker):
    wait([worker.ready], 120)
    references().prefetch([(os.getpid,), (abs, -2), (abs, -3), (time.sleep, 60)])  # it begins with the last
    assert references().compute(os.getpid) == os.getpid()
    for process in worker.processes:
        process.kill()
    assert references().compute(abs, -3) == 3 and references().compute(time.sleep, 0) is None


def test_an_error_there_is_an_error_here_where_the_result_is_wanted(worker):
    references().prefetch([(os.getpid,), (operator.truediv, 1, 0)])
    wait(worker.futures.values(), 120)
    assert references().compute(os.getpid) != os.getpid()
    with pytest.raises(ZeroDivisionError):
        references().compute(operator.truediv, 1, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what is open")
@pytest.mark.parametrize("cores", [1, 2])
def test_nothing_is_left_of_it(cores, monkeypatch):
    monkeypatch.setattr(reference_store, "_cores", lambda: cores)
    resource_tracker.ensure_running()  # multiprocessing's own, which stays
    own = psutil.Process()
    before, open_before = {*own.children()}, {*os.listdir("/proc/self/fd")}
    with pytest.raises(KeyboardInterrupt), reference_worker():
        references().prefetch([(time.sleep, 60)])
        assert len({*own.children()} - before) == cores - 1
        raise KeyboardInterrupt
    assert {*own.children()} == before and {*os.listdir("/proc/self/fd")} == open_before
    assert references() == ReferenceStore() and references().compute(os.getpid) == os.getpid()


@pytest.mark.skipif(reference_store._cores() < 2, reason="there is no worker on one core")
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
    asked, prefetch, get = set(), worker.prefetch, worker.get

    def all_of_it(tasks):
        prefetch(tasks)
        wait(worker.futures.values(), 240)

    def taken(*task):
        asked.add(task)
        return get(*task)

    monkeypatch.setattr(worker, "prefetch", all_of_it)
    monkeypatch.setattr(worker, "get", taken)
    with judged_by_one_thread():
        ahead = examine("flash", TINY)
    assert {*worker.futures} <= asked, "each is asked for, and was done there"
    monkeypatch.setattr(worker, "prefetch", lambda tasks: worker.futures.clear())
    with judged_by_one_thread():
        here = examine("flash", TINY)
    for (name, table), (_, other) in zip(ahead.items(), here.items()):
        assert table.equals(other), name
