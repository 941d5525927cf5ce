"""The gallery's survey: what becomes of a kernel that crashes or hangs, what is kept, and what a row says."""

import json
import math
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from processes import lives, wait_until, written

from attention_check.judge.findings import Finding, Severity
from attention_check.measure.measurements import Measurements
from attention_gallery import causes
from attention_gallery.catalogue import ENTRIES
from attention_gallery.commands import judging
from attention_gallery.commands.judging import EndedCall, JudgingSettings
from fa_lib.execution.paths import ROOT

ENTRY = ENTRIES["torch_math"]
LENGTHS = pd.DataFrame([
    dict(n=n, queries=queries, times_max=times, relative=times / 100, outcome=outcome, problem=problem, finite=finite)
    for n, queries, times, outcome, problem, finite in (
        (128, 1, 0.5, "answered", "", True), (4096, 1, 50.0, "answered", "", True),
        (128, 16, 0.7, "answered", "", True), (128, 128, 0.9, "answered", "", True),
        (4096, 16, math.nan, "malformed", "in whatever words", False),
        (1500, 1500, 0.8, "refused", "raises", True),
    )
]).assign(fmt="FP16", distribution="normal", seed=0)  # fmt: skip


def record(**more):
    found = [
        Finding("carry", Severity.FAILS, dict(sum="accumulator", fmt="FP16", tile=1), 400.0, 2.0),
        Finding("gradients", Severity.REPORTED, {}, 4.5, 3.0),
        Finding("outwards", Severity.REPORTED, dict(baseline=0.19), 0.21, 0.05),
    ]
    told = [vars(each) | dict(severity=each.severity.value) for each in found]
    own = dict(key="k", kind="kernel", verdict="fails", subject="x", problem="")
    return own | dict(numbers=judging.errors(LENGTHS), findings=told) | more


def test_errors_are_the_worst_by_number_of_queries():
    found = dict(
        times_1=50, relative_1=0.5, times_16=math.inf, relative_16=math.inf, times_many=0.9, relative_many=0.009
    )
    assert judging.errors(LENGTHS) == pytest.approx(found)
    assert judging.errors(LENGTHS[:0]) == {}


def test_a_row_says_what_was_found():
    row = judging.row(ENTRY, json.loads(json.dumps(record())))
    assert (row["carries"], row["carried_in"], row["tile"]) == ("accumulator", "FP16", 1)
    assert (row["gradients"], row["outwards"], row["baseline_outwards"]) == (4.5, 0.21, 0.19)
    assert row["verdict"] == "fails" and row["cause"] == "carry" and row["times_1"] == 50
    assert judging.row(ENTRY, dict(verdict="not_judged", problem="slow"))["verdict"] == "not_judged"
    missing = SimpleNamespace(
        key="x", project="p", needs=("no-such-wheel",), version="", cannot="", use="", problem="it needs a wheel"
    )
    assert judging.row(missing, None)["verdict"] == "cannot_run"


def test_every_failure_has_a_cause_that_was_read_and_no_cause_is_without_a_failure():
    tables = dict(cpu="data/gallery/verdicts.csv", modelled="data/gallery/modelled.csv")
    recorded = (ROOT / "data" / "recorded").glob("*/data/results/14_gallery.csv")
    tables |= {path.parts[-4].replace("_", " "): path for path in recorded}
    failed = set()
    for device, path in tables.items():
        table = causes.explained(pd.read_csv(ROOT / path, keep_default_na=False, na_values=[""]), device)
        assert set(table.verdict) <= {"passes", "fails", "differs", "cannot_run", "not_judged"}
        failed |= {(key, device) for key in table.key[table.verdict.isin(("fails", "differs"))]}
    read = causes.causes()
    assert failed == set(read)
    for row in read.values():
        assert row["standing"] in ("fails", "differs") and (row["reason"] or row["standing"] == "fails"), row
        assert row["cause"] and len(row["cause"].split()) <= 14, row
        assert re.search(r":\d+|line", row["source"]), row


def ends(monkeypatch, code, printed=""):
    """Every call of judge_all ends so, at once."""
    monkeypatch.setattr(judging, "call_each", lambda keys, *_: [EndedCall(key, code, printed) for key in keys])


def test_a_kernel_may_crash_or_hang_and_an_error_of_ours_may_not(monkeypatch, tmp_path):
    said, settings = [], JudgingSettings(str(tmp_path), "quick")
    ends(monkeypatch, -11)
    table = judging.judge_all(["torch_math"], settings, said.append, jobs=1)
    assert table.verdict.tolist() == ["fails"] and table.problem[0] == "ended its process by signal 11"
    ends(monkeypatch, None)
    table = judging.judge_all(["torch_math"], settings, said.append)
    assert (table.verdict[0], table.problem[0]) == ("not_judged", "took longer than 600 s")
    assert said[-1] == "torch_math: took longer than 600 s"
    assert judging.judgement_of("torch_math", JudgingSettings(str(tmp_path))) is None
    ends(monkeypatch, 1, "ours")
    with pytest.raises(RuntimeError, match="judging torch_math failed:\nours"):
        judging.judge_all(["torch_math"], settings, said.append)
    with pytest.raises(ValueError, match="kernel: got 'nobody'"):
        judging.judge_all(["nobody"], settings, said.append)


def test_on_a_gpu_an_error_is_a_row(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    settings = JudgingSettings(str(tmp_path), "gpu", "cuda")
    row = judging.rows(["torch_math", "flash_attn"], settings).set_index("key")
    assert row.loc["torch_math", ["verdict", "problem"]].tolist() == ["not_judged", "not judged yet"]
    assert row.verdict["flash_attn"] == "cannot_run" and "needs flash-attn" in row.problem["flash_attn"]
    ends(monkeypatch, 1, "Traceback\nAcceleratorError: CUDA error: an illegal memory access\n\n")
    table = judging.judge_all(["torch_math"], settings, print)
    assert table.verdict[0] == "not_judged" and table.problem[0].endswith("CUDA error: an illegal memory access")
    with pytest.raises(ValueError, match="kernel: got 'ggml_decode'"):
        judging.judge_all(["ggml_decode"], settings, print)


def test_a_kernel_that_refuses_every_call_cannot_run(monkeypatch, tmp_path):
    asked = pd.DataFrame(dict(outcome=["refused", "refused"], problem=["raises ImportError: no libcudnn", "raises"]))
    settings = JudgingSettings(str(tmp_path), "rehearsal")
    monkeypatch.setattr(judging, "examine", lambda *_, **__: Measurements(asked=asked))
    judging.judge_one("torch_math", settings)
    row = judging.rows(["torch_math"], settings).iloc[0]
    assert (row.verdict, row.problem) == ("cannot_run", "raises ImportError: no libcudnn")
    assert judging.judgement_of("torch_math", settings) is None


def test_what_is_done_is_not_done_again(monkeypatch, tmp_path):
    def judged(keys, *_):
        settings = JudgingSettings(str(tmp_path), depth)
        for key in keys:
            runs.append(key)
            judging._write(settings, key, record(key=judging._fingerprint(settings.entry(key), settings)))
            yield EndedCall(key, 0, "")

    runs = []
    monkeypatch.setattr(judging, "call_each", judged)
    for depth in ("quick", "quick", "full"):  # another depth is another judgement
        judging.judge_all(["torch_math"], JudgingSettings(str(tmp_path), depth), print)
    assert runs == ["torch_math"] * 2
    assert judging.judgement_of("torch_math", JudgingSettings(str(tmp_path))).carries == ("accumulator",)
    for count, damaged in enumerate(("{", "[]", "null", '{"key": 1}'), 3):
        (tmp_path / "torch_math.json").write_text(damaged)
        waiting = judging.rows(["torch_math"], JudgingSettings(str(tmp_path))).iloc[0]
        settings = JudgingSettings(str(tmp_path))
        assert waiting.verdict == "not_judged" and judging.judgement_of("torch_math", settings) is None
        judging.judge_all(["torch_math"], JudgingSettings(str(tmp_path)), print)
        assert runs == ["torch_math"] * count


# --- each kernel in a process of its own

ENDS = {  # what a process does instead of judging -> how it ends
    "os.abort()": -6, "pass": 0, "sys.exit(3)": 3, "time.sleep(60)": None, "int('none')": 1,
}  # fmt: skip


def test_how_a_process_ends_is_said_and_stops_no_other(tmp_path):
    program = f"import os, sys, time; print('so far', flush=True); exec({[*ENDS]!r}[int(sys.argv[1])])"
    settings = JudgingSettings(str(tmp_path), limit_s=5)
    ended = {call.key: call for call in judging.call_each([*"01234"], settings, 2, program)}
    assert [ended[f"{i}"].code for i in range(5)] == [*ENDS.values()]
    assert all(call.printed.startswith("so far\n") for call in ended.values())
    assert "invalid literal for int() with base 10: 'none'\n" in ended["4"].printed


WITH_CHILD = """import subprocess, sys, time
from pathlib import Path
path, _, then = sys.argv[1].partition(" ")
Path(path).write_text(str(subprocess.Popen(["sleep", "1000"]).pid))
time.sleep(60 if then == "hang" else 0)
"""


@pytest.mark.parametrize("then", ["end", "hang"])
def test_what_a_process_has_started_ends_with_it(tmp_path, then):
    """The compiler that a kernel runs, say."""
    [ended] = judging.call_each([f"{tmp_path / 'child'} {then}"], JudgingSettings("", limit_s=3), 1, WITH_CHILD)
    assert ended.code == (0 if then == "end" else None)
    wait_until(lambda: not lives((tmp_path / "child").read_text()))


def test_an_error_of_the_caller_ends_all_processes(tmp_path):
    keys = [f"{tmp_path / 'child'} hang", f"{tmp_path / 'other'} end"]
    running = judging.call_each(keys, JudgingSettings(""), 2, WITH_CHILD)
    assert next(running).code == 0  # the other: this one hangs
    child = written(tmp_path / "child")
    running.close()
    wait_until(lambda: not lives(child))


def test_a_process_that_judges_ends_with_its_parent(tmp_path):
    program = (
        "import os, pathlib, subprocess, sys, time; from attention_gallery.commands import judging;"
        "judging.judge_one = lambda *_: (pathlib.Path(sys.argv[1]).write_text(f'{os.getpid()}'), time.sleep(60));"
        'judging.judge_for_parent(sys.argv[1], \'{"folder": ""}\')'
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {program!r},"
         f" {str(tmp_path / 'pid')!r}], start_new_session=True)"], env=os.environ | dict(PYTHONPATH=":".join(sys.path)),
    )  # fmt: skip
    pid = written(tmp_path / "pid")
    parent.kill()
    parent.wait()
    wait_until(lambda: not lives(pid))
