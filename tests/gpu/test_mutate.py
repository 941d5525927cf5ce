"""`fa-lib dev mutate`: a weak test lets a change survive that a strong one notices."""

import sys

import pytest
from in_a_folder import command

KERNEL = '''
import torch
from ptx_machine import Kernel

PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry larger(.param .u64 a, .param .u64 o)
{
.reg .b64 %d<4>; .reg .f32 %f<4>;
ld.param.u64 %d0, [a];
ld.param.u64 %d1, [o];
ld.global.f32 %f1, [%d0];
max.f32 %f2, %f1, 0f40000000;
st.global.f32 [%d1], %f2;
ret;
}
"""

def larger(x):
    o = torch.zeros(1)
    Kernel(PTX)((1,), (1,), 0, x, o)
    return float(o)
'''
TEST = """
import torch
from my_kernel import larger

def test_larger():
    for x in {values}:
        assert larger(torch.tensor([x, 9.0])) == max(x, 2.0)
"""


@pytest.mark.parametrize(("values", "survivors"), [([2.0], ["maximum"]), ([1.0, 3.0], [])])
def test_a_weak_test_lets_a_change_survive(values, survivors, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_kernel.py").write_text(KERNEL)
    (tmp_path / "test_my.py").write_text(TEST.format(values=values))
    words = ["dev", "mutate", "my_kernel.py:larger", "--gpu", "H100", "--"]
    words += [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my.py"]
    done = command(*words)
    assert done.exit_code == 0, done.output
    first, *found, last = done.output.strip().split("\n\n")
    assert first == "2 possible changes, 2 drawn"
    assert last == f"{2 - len(survivors)} noticed, {len(survivors)} survived, 0 crashed, 0 timeout"
    assert [each.split("\n")[0].split(": ")[1] for each in found] == survivors


def test_tests_that_fail_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_kernel.py").write_text(KERNEL)
    words = ["dev", "mutate", "my_kernel.py:larger", "--", sys.executable, "-c", "raise SystemExit(1)"]
    done = command(*words)
    assert done.exit_code == 2 and "fail with the unchanged kernel" in done.output
