"""The tests of the machine ask both: numpy's and the compiled one."""

import pytest
import small_ptx


def pytest_generate_tests(metafunc):
    if "machine" in metafunc.fixturenames:
        metafunc.parametrize("machine", ["compiled", "numpy"], indirect=True)


@pytest.fixture
def machine(request, monkeypatch):
    monkeypatch.setattr(small_ptx, "COMPILED", [request.param == "compiled"])
