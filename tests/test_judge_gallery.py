"""The gallery's survey: what becomes of a kernel that crashes or hangs, what is kept, and what a row says."""

import json
import math
import re
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from attention_check.judge.findings import Finding, Severity
from attention_check.measure.measurements import Measurements
from attention_gallery import causes
from attention_gallery.catalogue import ENTRIES
from attention_gallery.commands import gallery_rows, judge_gallery
from attention_gallery.commands.gallery_settings import JudgingSettings
from fa_lib.execution.forked_calls import EndedCall
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
    return own | dict(numbers=gallery_rows.errors(LENGTHS), findings=told) | more


def test_errors_are_the_worst_by_number_of_queries():
    found = dict(
        times_1=50, relative_1=0.5, times_16=math.inf, relative_16=math.inf, times_many=0.9, relative_many=0.009
    )
    assert gallery_rows.errors(LENGTHS) == pytest.approx(found)
    assert gallery_rows.errors(LENGTHS[:0]) == {}


def test_a_row_says_what_was_found():
    row = gallery_rows.row(ENTRY, json.loads(json.dumps(record())))
    assert (row["carries"], row["carried_in"], row["tile"]) == ("accumulator", "FP16", 1)
    assert (row["gradients"], row["outwards"], row["baseline_outwards"]) == (4.5, 0.21, 0.19)
    assert row["verdict"] == "fails" and row["cause"] == "carry" and row["times_1"] == 50
    assert gallery_rows.row(ENTRY, dict(verdict="not_judged", problem="slow"))["verdict"] == "not_judged"
    missing = SimpleNamespace(
        key="x", project="p", needs=("no-such-wheel",), version="", cannot="", use="", problem="it needs a wheel"
    )
    assert gallery_rows.row(missing, None)["verdict"] == "cannot_run"


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
    monkeypatch.setattr(
        judge_gallery, "call_each", lambda _, keys, *__: [EndedCall(key, code, printed) for key in keys]
    )


def test_a_kernel_may_crash_or_hang_and_an_error_of_ours_may_not(monkeypatch, tmp_path):
    said, manner = [], JudgingSettings(str(tmp_path), "quick")
    ends(monkeypatch, -11)
    table = judge_gallery.judge_all(["torch_math"], manner, said.append, jobs=1)
    assert table.verdict.tolist() == ["fails"] and table.problem[0] == "ended its process by signal 11"
    ends(monkeypatch, None)
    table = judge_gallery.judge_all(["torch_math"], manner, said.append)
    assert (table.verdict[0], table.problem[0]) == ("not_judged", "took longer than 600 s")
    assert said[-1] == "torch_math: took longer than 600 s"
    assert judge_gallery.judgement_of("torch_math", JudgingSettings(str(tmp_path))) is None
    ends(monkeypatch, 1, "ours")
    with pytest.raises(RuntimeError, match="judging torch_math failed:\nours"):
        judge_gallery.judge_all(["torch_math"], manner, said.append)
    with pytest.raises(ValueError, match="kernel: got 'nobody'"):
        judge_gallery.judge_all(["nobody"], manner, said.append)


def test_on_a_gpu_an_error_is_a_row(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    manner = JudgingSettings(str(tmp_path), "gpu", "cuda")
    row = judge_gallery.rows(["torch_math", "xformers_split_k"], manner).set_index("key")
    assert row.loc["torch_math", ["verdict", "problem"]].tolist() == ["not_judged", "not judged yet"]
    assert row.verdict["xformers_split_k"] == "cannot_run" and "needs xformers" in row.problem["xformers_split_k"]
    ends(monkeypatch, 1, "Traceback\nAcceleratorError: CUDA error: an illegal memory access\n\n")
    table = judge_gallery.judge_all(["torch_math"], manner, print)
    assert table.verdict[0] == "not_judged" and table.problem[0].endswith("CUDA error: an illegal memory access")
    with pytest.raises(ValueError, match="kernel: got 'ggml_decode'"):
        judge_gallery.judge_all(["ggml_decode"], manner, print)


def test_a_kernel_that_refuses_every_call_cannot_run(monkeypatch, tmp_path):
    asked = pd.DataFrame(dict(outcome=["refused", "refused"], problem=["raises ImportError: no libcudnn", "raises"]))
    manner = JudgingSettings(str(tmp_path), "rehearsal")
    monkeypatch.setattr(judge_gallery, "examine", lambda *_, **__: Measurements(asked=asked))
    judge_gallery.judge_one("torch_math", manner)
    row = judge_gallery.rows(["torch_math"], manner).iloc[0]
    assert (row.verdict, row.problem) == ("cannot_run", "raises ImportError: no libcudnn")
    assert judge_gallery.judgement_of("torch_math", manner) is None


def test_what_is_done_is_not_done_again(monkeypatch, tmp_path):
    def judged(_, keys, *__):
        manner = JudgingSettings(str(tmp_path), depth)
        for key in keys:
            runs.append(key)
            judge_gallery._write(manner.entry(key), manner, record(key=judge_gallery._key(manner.entry(key), manner)))
            yield EndedCall(key, 0, "")

    runs = []
    monkeypatch.setattr(judge_gallery, "call_each", judged)
    for depth in ("quick", "quick", "full"):  # another depth is another judgement
        judge_gallery.judge_all(["torch_math"], JudgingSettings(str(tmp_path), depth), print)
    assert runs == ["torch_math"] * 2
    assert judge_gallery.judgement_of("torch_math", JudgingSettings(str(tmp_path))).carries == ("accumulator",)
    for count, damaged in enumerate(("{", "[]", "null", '{"key": 1}'), 3):
        (tmp_path / "torch_math.json").write_text(damaged)
        waiting = judge_gallery.rows(["torch_math"], JudgingSettings(str(tmp_path))).iloc[0]
        manner = JudgingSettings(str(tmp_path))
        assert waiting.verdict == "not_judged" and judge_gallery.judgement_of("torch_math", manner) is None
        judge_gallery.judge_all(["torch_math"], JudgingSettings(str(tmp_path)), print)
        assert runs == ["torch_math"] * count
