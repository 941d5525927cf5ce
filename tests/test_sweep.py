"""Sweeps: tidy, cached cell by cell, resumed, and never half-read."""

import os
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import active_children

import pytest

from fa_lib import draw, kernels, sweep
from fa_lib.execution.pools import workers
from fa_lib.execution.sweep import _as_done, expand
from fa_lib.kernels.registry import _REGISTERED, register

CALLS = []


def cell(a, b, c=0):
    CALLS.append((a, b, c))
    if c == "fails" and a == 2:
        raise RuntimeError("no luck")
    return [{"sum": a + b, "part": part} for part in (0, 1)]


@pytest.fixture(autouse=True)
def forget():
    CALLS.clear()


def test_rows_come_in_the_grids_order():
    table = sweep(cell, dict(a=[1, 2], b=range(3), c="x"))
    assert list(table.columns) == ["a", "b", "c", "sum", "part"] and len(table) == 12
    assert table["sum"].tolist() == [s for a in (1, 2) for b in range(3) for s in [a + b] * 2]
    assert list(expand(dict(a=[1], b="text"))) == [{"a": 1, "b": "text"}]


def test_finished_cells_are_not_computed_again(tmp_path):
    first = sweep(cell, dict(a=[1, 2], b=[3]), cache=tmp_path)
    assert len(CALLS) == 2
    again = sweep(cell, dict(a=[1, 2, 5], b=[3]), cache=tmp_path)
    assert CALLS[2:] == [(5, 3, 0)]
    assert again[again.a < 5].equals(first)


def test_an_interrupted_sweep_goes_on_where_it_was(tmp_path):
    with pytest.raises(RuntimeError) as failure:
        sweep(cell, dict(a=[1, 2, 3], b=[0], c="fails"), cache=tmp_path)
    assert failure.value.__notes__ == ["in the cell {'a': 2, 'b': 0, 'c': 'fails'}"]
    assert CALLS == [(1, 0, "fails"), (2, 0, "fails")]
    with pytest.raises(RuntimeError):
        sweep(cell, dict(a=[1, 2, 3], b=[0], c="fails"), cache=tmp_path)
    assert CALLS[2:] == [(2, 0, "fails")]


@pytest.mark.slow
def test_a_damaged_cell_is_computed_again_wherever_a_byte_is_cut_or_changed(tmp_path):
    right = sweep(cell, dict(a=1, b=2), cache=tmp_path)
    (path,) = tmp_path.rglob("*.json")
    whole = path.read_bytes()
    for length in range(0, len(whole), 29):
        path.write_bytes(whole[:length])
        assert sweep(cell, dict(a=1, b=2), cache=tmp_path).equals(right)
        assert path.read_bytes() == whole
    for i in range(1, len(whole), 29):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :])
        assert sweep(cell, dict(a=1, b=2), cache=tmp_path).equals(right), i
        assert path.read_bytes() == whole, i


def through(kernel, n=32):
    """A cell that calls a kernel by its name."""
    return dict(sum=kernels.get(kernel)(*draw("normal", 0, (1, 1, n, 8))).sum().item())


def test_another_kernel_under_the_same_name_is_not_taken_from_the_cache(tmp_path):
    def first(q, k, v):
        return v

    def second(q, k, v):
        return 2 * v

    register("its name", first)
    try:
        one = sweep(through, dict(kernel="its name"), uses=[kernels.get("its name")], cache=tmp_path)
        _REGISTERED["its name"] = second
        other = sweep(through, dict(kernel="its name"), uses=[kernels.get("its name")], cache=tmp_path)
        assert not other.equals(one)
    finally:
        del _REGISTERED["its name"]


@pytest.mark.slow
def test_a_name_that_workers_do_not_have_is_refused_with_what_to_do():
    register("of this process", lambda q, k, v: v)
    refused = r"^kernel: got 'of this process'; .*, package\.module:function or path/to/file"
    try:
        with workers(1) as pool:
            with pytest.raises(ValueError, match=refused):
                sweep(through, dict(kernel="of this process"), executor=pool)
            assert len(sweep(through, dict(kernel="examples.my_kernel:attention"), executor=pool)) == 1
    finally:
        del _REGISTERED["of this process"]


@dataclass(frozen=True)
class Two:
    c: int
    d: list


def of_fixed(a, two, names, device):
    return dict(sum=a + two.c + len(names), device_is=device)


def test_what_is_fixed_is_no_axis_and_a_dataclass_stands_by_its_fields(tmp_path):
    fixed = dict(two=Two(10, [1, 2]), names=["x", "y", "z"], device="cpu")
    for _ in range(2):
        table = sweep(of_fixed, dict(a=[1, 2]), fixed=fixed, cache=tmp_path)
        assert table.columns.tolist() == ["a", "c", "d", "device", "sum", "device_is"]
        assert table["sum"].tolist() == [14, 15] and table.c.tolist() == [10, 10]
    assert len(list(tmp_path.rglob("*.json"))) == 2
    sweep(of_fixed, dict(a=[1, 2]), fixed=fixed | dict(two=Two(11, [1, 2])), cache=tmp_path)
    assert len(list(tmp_path.rglob("*.json"))) == 4


def test_a_cell_of_other_code_is_computed_again(tmp_path, monkeypatch):
    sweep(cell, dict(a=1, b=2), cache=tmp_path)
    monkeypatch.setattr("importlib.metadata.version", lambda library: "another")
    sweep(cell, dict(a=1, b=2), cache=tmp_path)
    assert len(CALLS) == 2


@pytest.mark.slow
@pytest.mark.parametrize("pool", [ThreadPoolExecutor, workers])
def test_an_executor_gives_the_same_table(pool, tmp_path):
    grid = dict(n=[64, 96], kernel=["flash", "every_step"])
    here = sweep(through, grid)
    with pool(2) as executor:
        assert sweep(through, grid, cache=tmp_path, executor=executor).equals(here)
    assert sweep(through, grid, cache=tmp_path).equals(here)


def test_with_an_executor_a_cell_that_fails_is_reported_and_the_rest_are_finished(tmp_path, capsys):
    grid = dict(a=[1, 2, 3], b=[0, 1], c="fails")
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="no luck") as failure:
        sweep(cell, grid, cache=tmp_path, executor=pool)
    assert failure.value.__notes__[1:] == ["2 of 6 cells failed"] and len(CALLS) == 6
    printed = capsys.readouterr().err
    for b in (0, 1):
        assert f"RuntimeError: no luck; in the cell {{'a': 2, 'b': {b}, 'c': 'fails'}}" in printed
    with pytest.raises(RuntimeError):
        sweep(cell, grid, cache=tmp_path)
    assert CALLS[6:] == [(2, 0, "fails")]  # the others were kept


@pytest.mark.slow
def test_of_a_broken_pool_no_call_is_waited_for_and_no_worker_is_left():
    """Python 3.11 forgets calls that are submitted while a worker is killed, and waits for one that was beginning."""
    with pytest.raises(BrokenProcessPool), workers(1) as pool:
        pool.submit(int).result()
        (worker,) = (p for p in active_children() if p.pid in pool._processes)
        with pytest.raises(BrokenProcessPool, match="not usable"):
            os.kill(worker.pid, signal.SIGKILL)
            for _ in _as_done([Future()], pool):  # forgotten
                pass
        raise BrokenProcessPool
    with workers(2) as pool:  # one that stops, as by the lock of one that was killed, is not waited for
        assert [*pool.map(abs, [-1, -2])] == [1, 2]
        for pid in pool._processes:
            os.kill(pid, signal.SIGSTOP)
    since = time.monotonic()
    with pytest.raises(BrokenProcessPool), workers(1) as pool:
        pool.submit(int).result()
        pool.submit(time.sleep, 60)
        raise BrokenProcessPool
    assert time.monotonic() - since < 30


def test_what_is_no_executor_is_refused():
    for count in ("slrum", -1, 1.5):
        with pytest.raises(ValueError, match=rf"^executor: got {count!r}; .*'slurm'"):
            workers(count).__enter__()


def test_bad_grids_are_refused():
    with pytest.raises(ValueError, match="grid: a has no values"):
        sweep(cell, dict(a=[], b=1))
    with pytest.raises(ValueError, match="grid: got an unexpected keyword argument 'z'; accepted are the parameters"):
        sweep(cell, dict(a=1, b=1, z=2))
    with pytest.raises(ValueError, match="not JSON serializable; accepted with a cache"):
        sweep(cell, dict(a=[1j], b=1), cache="unused")


def test_the_order_of_a_grids_names_does_not_matter_to_its_cache(tmp_path):
    for grid in (dict(a=[1, 2], b=3), dict(b=3, a=[1, 2]), dict(a=[1, 2], b=3)):
        sweep(cell, grid, cache=tmp_path)
    assert len(CALLS) == 2
