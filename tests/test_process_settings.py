"""What commands set for themselves and for what they start, and a program that imports fa_lib does not; and the same
bits, and so the same printed numbers, whatever the processor offers and however many threads there are."""

import os
import re
import runpy
import subprocess
import sys

import pytest

from fa_lib.execution import process_settings
from fa_lib.execution.paths import ROOT

COMMAND = "from fa_lib.execution.process_settings import prepare; prepare(); import torch"
PROGRAM = "import fa_lib; fa_lib.kernels"
ASKED = "import sys; from fa_lib.commands.cli import main; sys.argv = {words}\ntry: main()\nexcept SystemExit: pass\n"
ASKED += "print('torch' in sys.modules)"


def said(code, **environment):
    env = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"} | environment
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="GNU's OpenMP tells its settings, another one others")
@pytest.mark.parametrize("code, spins", [(COMMAND, False), (PROGRAM, True)])
def test_threads_of_a_command_sleep_and_those_of_a_program_do_not(code, spins):
    """As OpenMP itself has read it, when torch was imported."""
    _, told = said(code, OMP_DISPLAY_ENV="VERBOSE")
    assert (int(re.search(r"GOMP_SPINCOUNT = '(\d+)'", told)[1]) > 0) == spins


@pytest.mark.parametrize("words", [["fa-lib", "--help"], ["fa-lib", "check", "--help"], ["fa-lib", "dev", "claims"]])
def test_help_and_the_ledger_need_no_torch(words):
    out, _ = said(ASKED.format(words=words))
    assert out.splitlines()[-1] == "False"


def test_what_the_reader_has_set_is_kept(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert process_settings.environment()["OMP_WAIT_POLICY"] == "ACTIVE"
    monkeypatch.delenv("OMP_WAIT_POLICY")
    assert process_settings.environment()["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setattr(os, "environ", dict(ATEN_CPU_CAPABILITY="avx512"))
    process_settings.prepare()
    assert os.environ == process_settings.PASSIVE | dict(ATEN_CPU_CAPABILITY="avx512")


@pytest.mark.parametrize("code, isa", [("avx2", "AVX512_CORE_FP16"), ("DEFAULT", "AVX512_CORE_FP16"), ("avx512", None)])
def test_onednn_leaves_amx_alone_where_torch_runs_older_code(monkeypatch, code, isa):
    """Else torch's flash kernel packs K and V for AMX, and has no code to do so."""
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", code)
    assert process_settings.environment().get("ONEDNN_MAX_CPU_ISA") == isa
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")  # the reader's own
    assert process_settings.environment()["ONEDNN_MAX_CPU_ISA"] == "AVX2"


OTHER = {  # than this process runs under: the least of each library, and two threads
    "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "2",
}  # fmt: skip
DIGESTS = ROOT / "tests" / "digests.py"


@pytest.mark.slow
def test_emulated_bits_are_the_same_under_other_settings(capsys):
    there = subprocess.run([sys.executable, DIGESTS], env=os.environ | OTHER, cwd=ROOT, capture_output=True, text=True)
    assert there.returncode == 0, there.stderr
    runpy.run_path(f"{DIGESTS}")
    assert there.stdout == capsys.readouterr().out and len(re.findall(r"\w{64}\n", there.stdout)) == 5
