"""What commands set for themselves and for what they start, and a program that imports fa_lib does not."""

import os
import re
import subprocess
import sys

import pytest

from fa_lib.execution import environment
from fa_lib.execution.paths import ROOT

COMMAND = ["-m", "fa_lib", "--help"]
PROGRAM = ["-c", "import fa_lib"]


@pytest.mark.skipif(sys.platform != "linux", reason="GNU's OpenMP tells its settings, another one others")
@pytest.mark.parametrize(
    "words, policy, spins", [(COMMAND, None, False), (COMMAND, "ACTIVE", True), (PROGRAM, None, True)]
)
def test_threads_of_a_command_sleep_unless_the_reader_says_otherwise(words, policy, spins):
    """As OpenMP itself has read it, when torch was imported."""
    env = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    env |= dict(PYTHONPATH=str(ROOT), OMP_DISPLAY_ENV="VERBOSE") | ({"OMP_WAIT_POLICY": policy} if policy else {})
    done = subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, check=True)
    assert (int(re.search(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)[1]) > 0) == spins


def test_what_the_reader_has_set_is_kept(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert environment.environment()["OMP_WAIT_POLICY"] == "ACTIVE"
    monkeypatch.delenv("OMP_WAIT_POLICY")
    assert environment.environment()["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setattr(sys, "argv", ["/usr/bin/fa-lib", "check"])
    monkeypatch.setattr(os, "environ", dict(ATEN_CPU_CAPABILITY="avx512"))
    environment.in_commands()
    assert os.environ == environment.PASSIVE | dict(ATEN_CPU_CAPABILITY="avx512")


@pytest.mark.parametrize("code, isa", [("avx2", "AVX512_CORE_FP16"), ("DEFAULT", "AVX512_CORE_FP16"), ("avx512", None)])
def test_onednn_leaves_amx_alone_where_torch_runs_older_code(monkeypatch, code, isa):
    """Else torch's flash kernel packs K and V for AMX, and has no code to do so."""
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", code)
    assert environment.environment().get("ONEDNN_MAX_CPU_ISA") == isa
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")  # the reader's own
    assert environment.environment()["ONEDNN_MAX_CPU_ISA"] == "AVX2"
