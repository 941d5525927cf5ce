"""Threads that wait asleep: in commands, and not in a program that imports fa_lib."""

import os
import re
import subprocess
import sys

import pytest

from fa_lib import waiting
from fa_lib.paths import ROOT

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
    assert waiting.environment()["OMP_WAIT_POLICY"] == "ACTIVE"
    monkeypatch.delenv("OMP_WAIT_POLICY")
    assert waiting.environment()["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setattr(sys, "argv", ["/usr/bin/fa-lib", "check"])
    monkeypatch.setattr(os, "environ", {})
    waiting.in_commands()
    assert os.environ == waiting.PASSIVE
